"""Receipts: one story for each command, whatever order its reports come in."""

from __future__ import annotations

import datetime as dt
import random

import msgspec

from penstock.control.receipts import Batch, Outcome, Place, Receipt, Report, stories

BATCH = Batch(8, dt.datetime(2026, 11, 21, tzinfo=dt.UTC))


def report(offset: int, outcome: Outcome, **more: object) -> Report:
    place = Place("commands", "00000", offset)
    return Report(place, f"id-{offset}", "set", "rules/*", 3, "ann", outcome, **more)  # type: ignore[arg-type]


def told(reports: list[Report]) -> list[Receipt]:
    return [receipt for story in stories(reports, BATCH) for receipt in story.receipts]


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


def test_each_command_has_its_story() -> None:
    """Counts are summed over the slots; the worst outcome counts; a duplicate is no news."""
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
    by_story = {(receipt.id, receipt.status): receipt for receipt in receipts}
    applied = by_story["id-1", "APPLIED"]
    assert (applied.key_groups, applied.keys, applied.batch) == (3, 15, 8)
    assert by_story["id-2", "REJECTED"].reason == "version 3 is stale: version 4 has been applied"
    degraded = by_story["id-4", "DEGRADED"]
    assert (degraded.degraded, degraded.reason, degraded.key_groups, degraded.keys) == (
        [4, 6],
        "ValueError: no",
        2,
        3,
    )


def test_the_order_of_reports_does_not_matter() -> None:
    """Tasks finish in any order; a replay writes the same bytes."""
    expected = told(REPORTS)
    for seed in range(20):
        shuffled = list(REPORTS)
        random.Random(seed).shuffle(shuffled)
        assert told(shuffled) == expected


def test_a_command_that_stands_alone_has_the_same_story() -> None:
    """The quick way writes the very bytes that the other one does, whatever stands in the values."""
    for number, more in enumerate(
        ({"version": 3}, {"version": None, "id": '"status":"ACCEPTED"\\', "target": "ü/*"})
    ):
        one = msgspec.structs.replace(report(number, "applied", key_groups=[4], keys=1), **more)  # type: ignore[arg-type]
        quick = stories([msgspec.structs.replace(one, alone=True)], BATCH)
        assert quick == stories([one], BATCH)
        assert [receipt.status for receipt in quick[0].receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]
