"""Encoded receipts are the same for any order of the reports and whoever encodes them."""

from __future__ import annotations

import collections
import datetime as dt
import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.control.encoded_receipts import (
    Applied,
    Batch,
    BatchReceipts,
    ReceiptColumns,
    encode_receipts,
    id_hash,
    receipt_columns,
)
from penstock.control.receipts import Outcome, Receipt, RecordPosition, Report

BATCH = Batch(8, dt.datetime(2026, 11, 21, tzinfo=dt.UTC))


def report(offset: int, outcome: Outcome, **more: Any) -> Report:
    place = RecordPosition("commands", "00000", offset)
    return Report(place, f"id-{offset}", "set", "rules/*", 3, "ann", outcome, **more)


def told(reports: list[Report]) -> list[Receipt]:
    return [receipt for command in encode_receipts(reports, BATCH) for receipt in command.receipts]


REPORTS = [
    report(1, "applied", key_groups=[0, 1], keys=10),
    report(1, "applied", key_groups=[2], keys=5),
    report(2, "refused", reason="version 3 is stale: version 4 has been applied"),
    report(2, "refused", reason="version 3 is stale: version 4 has been applied"),
    report(3, "duplicate"),
    report(4, "applied", key_groups=[0], keys=1),
    report(4, "degraded", key_groups=[5], failed=[6, 4], keys=2, reason="ValueError: no"),
    report(5, "refused", reason="version 3 is stale: version 9 has been applied"),
    report(5, "applied", key_groups=[7], keys=1),
]


def test_each_command_has_its_receipts() -> None:
    """Counts are summed over the slots, the worst outcome wins, and a duplicate adds nothing."""
    random.Random(1).shuffle(REPORTS)
    receipts = told(REPORTS)
    found: dict[str, list[str]] = {}
    for receipt in receipts:
        found.setdefault(receipt.id, []).append(receipt.status)
    assert found == {
        "id-1": ["ACCEPTED", "VALIDATED", "APPLIED"],
        "id-2": ["ACCEPTED", "REJECTED"],
        "id-4": ["ACCEPTED", "VALIDATED", "DEGRADED"],
        "id-5": ["ACCEPTED", "VALIDATED", "APPLIED"],
    }
    by_status = {(receipt.id, receipt.status): receipt for receipt in receipts}
    applied = by_status["id-1", "APPLIED"]
    assert (applied.key_groups, applied.keys, applied.batch) == (3, 15, 8)
    assert by_status["id-2", "REJECTED"].reason == "version 3 is stale: version 4 has been applied"
    degraded = by_status["id-4", "DEGRADED"]
    assert (degraded.degraded, degraded.reason, degraded.key_groups, degraded.keys) == (
        [4, 6],
        "ValueError: no",
        2,
        3,
    )


def test_the_order_of_reports_does_not_matter() -> None:
    """Tasks finish in any order; a replay still writes the same bytes."""
    expected = told(REPORTS)
    for seed in range(20):
        shuffled = list(REPORTS)
        random.Random(seed).shuffle(shuffled)
        assert told(shuffled) == expected


TEXTS = st.text(max_size=6) | st.sampled_from(['"status":"ACCEPTED"', "\\", "ü\n", "\x7f\u2028"])
ALONE = st.builds(
    Report,
    place=st.builds(
        RecordPosition, st.just("commands"), st.sampled_from(["00000", "00001"]), st.integers(0, 2**62)
    ),
    id=TEXTS,
    kind=st.sampled_from(["set", "retrain"]),
    target=TEXTS,
    version=st.none() | st.integers(0, 2**62),
    issued_by=TEXTS,
    outcome=st.sampled_from(["applied", "applied", "applied", "refused"]),
    key_groups=st.lists(st.integers(0, 9), max_size=2, unique=True),
    keys=st.integers(0, 2),
    replies=st.sampled_from([(), (), ((None, "done"),)]),
    alone=st.just(True),
)


@examples(120)
@given(st.lists(ALONE, max_size=12, unique_by=lambda one: one.place), st.randoms(use_true_random=False))
def test_commands_of_a_single_slot_have_the_same_receipts(
    reports: list[Report], order: random.Random
) -> None:
    """Receipts are the same as columns, in any order, from any number of tasks, and with any values."""
    plain = encode_receipts(reports, BATCH)
    parts: list[list[Report]] = [[], []]
    for one in reports:
        parts[order.randrange(2)].append(one)
    runs = [run for part in parts for run in receipt_columns(part, [], BATCH)]
    order.shuffle(runs)
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=ReceiptColumns) for run in runs]
    found = BatchReceipts.of(sent)
    assert found.lines == b"".join(command.lines for command in plain)
    assert found.hashes.tolist() == [id_hash(command.id) for command in plain]
    assert found.outcomes == collections.Counter(command.outcome for command in plain)
    assert len(found) == len(plain)


def test_what_is_told_alone_and_together_is_in_one_order() -> None:
    """The receipts of a micro-batch are ordered by the positions of their commands."""
    alone = [report(offset, "applied", keys=1, alone=True) for offset in (1, 3, 5)]
    together = [report(offset, "applied", keys=2) for offset in (2, 4)]
    found = BatchReceipts.of(receipt_columns(alone, [], BATCH), encode_receipts(together, BATCH))
    assert found.lines == b"".join(command.lines for command in encode_receipts([*alone, *together], BATCH))
    assert [command.id for command in found.together] == ["id-2", "id-4"]
    assert not BatchReceipts.of([])


def test_many_commands_come_in_parts() -> None:
    """One Arrow column holds at most 2 GiB."""
    applied = Applied("commands", "00000")
    for offset in range(120_000):
        applied.add_sets([offset], [f"c{offset}"], ["rules/1"], [""])
    runs = receipt_columns([], [applied], BATCH)
    assert [len(run.lines) for run in runs] == [50_000, 50_000, 20_000]
    assert len(BatchReceipts.of(runs)) == 120_000
