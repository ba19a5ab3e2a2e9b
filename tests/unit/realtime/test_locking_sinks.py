"""Locking sinks: an interval stores its state before records of the next one wait for the sink's locks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from domains import Reading
from live_runner import LiveRunner

import penstock as ps
from penstock.realtime.slot_rounds import Write
from penstock.realtime.slot_turns import SlotTurns


@dataclass
class Seen:
    room: int
    count: int


class Counts(ps.ProcessFunction):
    """Counts the readings of a room."""

    count = ps.ValueState(int)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Seen]:
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield Seen(record.room, count)


def counts_job() -> ps.Job:
    job = ps.Job("counts", key_groups=4)
    job.data_stream("readings", schema=Reading).key_by("room").process("counts", Counts()).sink_to("seen")
    return job


@pytest.mark.parametrize("locks", [False, True])
def test_what_an_interval_stores_is_not_behind_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """With other sinks, storing runs alongside the rounds of the next interval."""
    left: list[int] = []
    live = SlotTurns.live

    def looked_at(turns: SlotTurns, beside: Iterator[None], write: Write) -> None:
        left.append(sum(1 for _ in beside))
        live(turns, iter(()), write)

    monkeypatch.setattr(SlotTurns, "live", looked_at)
    with LiveRunner(counts_job(), tmp_path) as runner:
        runner.sinks["seen"][0].holds_locks = locks
        for number in range(2):
            runner.send("readings", *({"room": room, "value": number} for room in range(8)))
            runner.run()
    assert left[0] == 0
    assert (left[1] == 0) == locks
