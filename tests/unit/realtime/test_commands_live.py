"""Commands in real time: applied at once or at the checkpoint, and what slots keep when an interval has
several rounds.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from domains import Reading
from encoded_commands import command_to
from live_runner import LiveRunner

import penstock as ps
from penstock.runtime.packed_rows import FETCHED


@dataclass
class Judged:
    room: int
    value: int
    limit: int
    level: int


class Judge(ps.ProcessFunction):
    """Emits each reading with the limit in force."""

    limit = ps.Setting(int, 0)
    level = 1

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Judged]:
        yield Judged(record.room, record.value, self.limit.get(), self.level)


class JudgeAgain(Judge):
    level = 2


def judged_job() -> ps.Job:
    """Return a job of two steps with different keys, fed by four streams."""
    job = ps.Job("judged", key_groups=16)
    streams = [job.data_stream(f"readings{number}", schema=Reading) for number in range(4)]
    readings = streams[0].union(*streams[1:])
    first = readings.key_by("room").process("first", Judge(), output=Judged)
    first.sink_to("first")
    first.key_by("value").process("second", JudgeAgain(), output=Judged).sink_to("second")
    return job


def set_limit(step: str, limit: int, command_id: str = "", **more: Any) -> bytes:
    """Return a command that sets the limit of a step."""
    return command_to(step, "set", {"limit": limit}, id=command_id or f"{step} {limit}", **more)


class Sender:
    """A thread that sends numbered readings to all streams until it is closed."""

    def __init__(self, live: LiveRunner, seed: int) -> None:
        self._live, self._random = live, random.Random(seed)
        self.sent = [0, 0, 0, 0]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(0.003):
            stream = self._random.randrange(4)
            number = 4 * self.sent[stream] + stream
            self._live.send(f"readings{stream}", {"room": self._random.randrange(40), "value": number})
            self.sent[stream] += 1

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


def cuts_of(judged: list[Any]) -> dict[int, dict[int, tuple[int, int]]]:
    """Return the first and last reading of each stream under each limit, by the stream's own numbering."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for one in judged:
        number, stream = divmod(one.value, 4)
        low, high = found.setdefault(one.limit, {}).get(stream, (number, number))
        found[one.limit][stream] = min(low, number), max(high, number)
    return found


def check_cuts(live: LiveRunner, intervals: int) -> None:
    """Set both limits at each checkpoint under load. In all slots each takes effect between the same two
    readings.
    """
    judged: dict[str, list[Any]] = {"first": [], "second": []}
    ends: list[list[int]] = []
    sender = Sender(live, seed=intervals)
    try:
        for interval in range(intervals):

            def during(interval: int = interval) -> None:
                begun = sum(sender.sent)
                while sum(sender.sent) < begun + 15:
                    time.sleep(0.001)
                for step in ("first", "second"):
                    live.send("commands", set_limit(step, interval + 1, apply="at-checkpoint"))
                while sum(sender.sent) < begun + 30:
                    time.sleep(0.001)

            outcome = live.run(during)
            applied = [(one.id, one.apply) for one in outcome.receipts if one.status == "APPLIED"]
            assert applied == [(f"{step} {interval + 1}", "at-checkpoint") for step in ("first", "second")]
            positions = live.files.read(interval).positions  # type: ignore[union-attr]
            ends.append([positions[f"readings{number}"]["position"] for number in range(4)])
            for step, found in judged.items():
                some = outcome.outputs.get(step, [])
                # Each interval is judged by the limit that was set at the end of the previous interval.
                assert {one.limit for one in some} == {interval}, step
                found += some
    finally:
        sender.close()
    for found in judged.values():
        cuts = cuts_of(found)
        for limit, before, after in zip(range(intervals), [[0] * 4, *ends], ends, strict=False):
            expected = {n: (low, high - 1) for n, (low, high) in enumerate(zip(before, after, strict=True))}
            assert cuts[limit] == {n: cut for n, cut in expected.items() if cut[0] <= cut[1]}


def test_a_command_at_the_checkpoint_is_one_cut_in_all_slots(tmp_path: Path) -> None:
    """Under load, in two steps with different keys, on four slots and four streams."""
    with LiveRunner(judged_job(), tmp_path, 4) as live:
        check_cuts(live, 3)


@pytest.mark.chaos
def test_fifty_commands_at_checkpoints_are_fifty_cuts(tmp_path: Path) -> None:
    """The same with fifty commands."""
    with LiveRunner(judged_job(), tmp_path, 4) as live:
        check_cuts(live, 50)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_repeated_interval_has_the_same_cut(tmp_path: Path, parallelism: int) -> None:
    """A command at the checkpoint is applied after the same records, and its receipts are the same."""
    with LiveRunner(judged_job(), tmp_path, parallelism) as live:
        for number in range(4):

            def during(number: int = number) -> None:
                for room in range(10):
                    live.send("readings0", {"room": room, "value": room})
                    if room == 3:
                        live.send("commands", set_limit("first", number + 1, apply="at-checkpoint"))
                        live.send("commands", set_limit("second", number + 1, apply="at-once"))
                live.await_written("second", 10)

            first = live.run(during, commits=False)
            state = live.after
            live.forget()
            again = live.run()
            assert again.data == first.data
            assert live.states == state
            assert {one.limit for one in again.outputs["first"]} == {number}


def test_a_command_at_the_checkpoint_ends_an_interval_by_itself(tmp_path: Path) -> None:
    """The command ends the interval even if nothing else arrives, so it is applied soon."""
    with LiveRunner(judged_job(), tmp_path, 2, interval_s=0.1) as live:

        def during() -> None:
            live.send("commands", set_limit("first", 1, apply="at-checkpoint"))
            live.await_end()

        outcome = live.run(during)
    assert [one.status for one in outcome.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]


def test_all_ids_of_an_interval_are_kept(tmp_path: Path) -> None:
    """A command from any round of an interval that is sent again after a restart is not applied again."""
    with LiveRunner(judged_job(), tmp_path, 2, ends_sessions=True) as live:
        sent = [set_limit("first", limit, version=limit) for limit in (1, 2, 3)]

        def one_by_one() -> None:
            for count, command in enumerate(sent, 1):
                live.send("commands", command)
                live.send("readings0", {"room": 1, "value": count})
                while not live.emitted("first") or live.emitted("first")[-1].limit < count:
                    live.send("readings0", {"room": 1, "value": count})
                    time.sleep(0.002)

        # The first save stores the whole register; later ones store only what was added.
        live.run(lambda: live.send("commands", set_limit("first", 0)))
        live.run(one_by_one)
        live.forget()

        def again() -> None:
            live.send("commands", *sent)
            live.send("readings0", {"room": 1, "value": 9})
            live.await_written("first", 1)

        outcome = live.run(again)
    assert outcome.receipts == []
    assert [one.limit for one in outcome.outputs["first"]] == [3]


class Strict(ps.ProcessFunction):
    """Keeps a count per key, which a command sets, possibly to a value too large to store."""

    limit = ps.Setting(int, 0)
    count = ps.ValueState(int)

    @ps.on_command("count", scope="step")
    def take_count(self, payload: int, ctx: ps.CommandContext) -> None:
        for _ in ctx.keys():
            self.count.set(payload)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Judged]:
        self.count.set(record.value)
        yield Judged(record.room, record.value, self.limit.get(), 0)


def test_a_value_that_cannot_be_stored_undoes_nothing_of_earlier_rounds(tmp_path: Path) -> None:
    """Settings of earlier rounds of the same interval stay."""
    job = ps.Job("strict", key_groups=8)
    readings = job.data_stream("readings", schema=Reading).key_by("room")
    readings.process("first", Strict(), output=Judged).sink_to("judged")
    with LiveRunner(job, tmp_path, 1) as live:

        def send_until(limit: int) -> None:
            while not live.emitted("judged") or live.emitted("judged")[-1].limit != limit:
                live.send("readings", {"room": 1, "value": 1})
                time.sleep(0.002)

        def during() -> None:
            live.send("commands", set_limit("first", 5))
            send_until(5)
            too_large = {"id": "large", "kind": "count", "target": {"step": "first"}, "payload": 1 << 70}
            live.send("commands", json.dumps(too_large).encode(), command_to(None, "trace"))

        outcome = live.run(during)
        statuses = {one.id: one.status for one in outcome.receipts}

        def at_last() -> None:
            live.send("commands", command_to("first", "reload-config", {"from": "/not/allowed"}))
            live.send("readings", {"room": 2, "value": 1})

        outcome = live.run(at_last)
    assert statuses["large"] == "DEGRADED"
    assert [one.limit for one in outcome.outputs["judged"]] == [5]
    # The driver learns which settings were stored.
    kept = [path.name for path in (tmp_path / "fetched").iterdir()]
    assert [name for kind, name, *_ in outcome.reports if kind == FETCHED] == kept
