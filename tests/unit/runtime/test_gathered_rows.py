"""Gathered rows: a slot gets all of its rows in order, with a bounded part of them in memory."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from encoded_commands import command_to, commands

import penstock as ps
from penstock.base.instants import instant_of
from penstock.runtime import gathered_rows, level
from penstock.runtime.gathered_rows import GatheredRows, in_memory, pieces_of_groups
from penstock.runtime.packed_rows import PackedRow
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries

MIB = 1 << 20


def row(group: int, body: bytes, destination: str = "step", offset: int = 0) -> PackedRow:
    return PackedRow(destination, group, 0, "/hits/0", offset, body)


@pytest.mark.parametrize("max_bytes", [0, 20, 1 << 20])
def test_rows_are_in_order_wherever_they_are(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """This includes rows that differ only in their bodies."""
    monkeypatch.setattr(gathered_rows, "_MAX_BYTES", max_bytes)
    rows = [
        row(group, body, destination)
        for group in range(4)
        for body in (b"", b"abc", b"abd", b"ab", b"abc")
        for destination in ("step", "other")
    ]
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    with GatheredRows(shuffled) as gathered:
        found = {name: list(map(in_memory, part)) for name, part in gathered.lists.items()}
    assert found == {
        name: sorted(one for one in rows if one.destination == name) for name in ("other", "step")
    }


def test_pieces_are_of_whole_key_groups() -> None:
    """So processing by pieces equals processing all rows at once."""
    rows = [row(group, bytes(size)) for group, size in ((0, 4), (0, 4), (1, 1), (2, 9), (2, 9), (3, 1))]
    pieces = [[one.key_group for one in piece] for piece in pieces_of_groups(rows, 8)]
    assert pieces == [[0, 0], [1, 2, 2], [3]]
    assert list(pieces_of_groups([], 8)) == []


@dataclass
class Hit:
    page: int
    text: str


@dataclass
class Length:
    page: int
    total: int


class Total(ps.ProcessFunction):
    """The number of characters of a page so far."""

    total = ps.ValueState(int)

    def process_record(self, hit: Hit, ctx: ps.Context) -> Iterator[Length]:
        total = (self.total.get() or 0) + len(hit.text)
        self.total.set(total)
        yield Length(hit.page, total)


def total_job() -> ps.Job:
    job = ps.Job("job", key_groups=8)
    hits = job.data_stream("hits", schema=Hit)
    hits.key_by("page").process("total", Total()).sink_to("totals")
    return job


class OneSlot:
    """Holds the states of a slot."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def entries(self, step_id: str) -> Any:
        return self._entries.setdefault(step_id, MemoryEntries({}))


def test_a_slot_holds_a_bound_of_rows_in_memory() -> None:
    """192 MiB of rows need less than half of that in memory."""

    def rows() -> Iterator[PackedRow]:
        for number in range(192):
            yield row(number % 8, bytes(MIB), destination="sink/elsewhere", offset=number)

    plan = BatchRunner(total_job()).plan
    levels = level.Level(plan, [node.id for node in plan.levels()[0]])
    tracemalloc.start()
    try:
        passed = [one.first_offset for one in levels.run(rows(), OneSlot(), instant_of(0), plan.slot_of[0])]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert passed == sorted(range(192), key=lambda number: (number % 8, number))
    assert peak < 90 * MIB


def test_a_job_does_the_same_with_rows_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes data held for a paused step, which is then stored in several parts."""
    outputs = []
    for max_bytes in (64 * MIB, 0):
        monkeypatch.setattr(gathered_rows, "_MAX_BYTES", max_bytes)
        monkeypatch.setattr(level, "_HELD_BYTES", max_bytes)
        job = BatchRunner(total_job(), parallelism=2)
        told = []
        for number, kind in enumerate(("pause", "", "resume", "")):
            sent = [command_to("total", kind)] if kind else []
            hits = [Hit(page, "x" * (page + number)) for page in (5, 1, 3, 1, 2, 7)]
            found = job.run({**commands(*sent), "hits": [("0", hits), ("1", hits[::-1])]}, seed=number)
            told.append([dataclasses.astuple(total) for total in found.output("totals")])
        outputs.append(told)
    assert outputs[0] == outputs[1]
    assert [len(told) for told in outputs[0]] == [0, 0, 36, 12]
