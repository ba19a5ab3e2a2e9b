"""Edge cases of control: malformed input, limits of handlers, and agreement between keys, tasks and stamps."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from domains import PassOn, Reading

import penstock as ps
from penstock.testing import BatchOutcome, JobHarness


@dataclass
class Label:
    room: int
    number: int


@dataclass
class Judgement:
    room: int
    limit: int | None
    label: int | None
    offset: int | None


class Judge(ps.ConnectedProcessFunction):
    """Emits for each reading the room's state."""

    side_outputs: ClassVar = {"alarms": Reading}
    limit = ps.ValueState(int)
    label = ps.ValueState(int)
    offset = ps.Setting(int, 0)
    trend = ps.TemporalState(int)

    @ps.on_command("warn")
    def warn(self, limit: int, ctx: ps.CommandContext) -> None:
        self.limit.set(limit)
        ctx.side_output("alarms", Reading(ctx.key, limit))

    @ps.on_command("answer", scope="step")
    def answer(self, number: int, ctx: ps.CommandContext) -> None:
        ctx.reply(number)

    @ps.on_command("tell")
    def tell(self, limit: int, ctx: ps.CommandContext) -> Iterator[Judgement]:
        yield Judgement(ctx.key, limit, None, None)

    @ps.on_command("shift", scope="step")
    def shift(self, offset: int, ctx: ps.CommandContext) -> None:
        self.offset.set(offset)
        for room in ctx.keys():
            if room == 3:
                raise ValueError("three")

    def process_control(self, label: Label, ctx: ps.Context) -> Iterator[Judgement]:
        self.label.set(label.number)
        yield Judgement(label.room, label.number, None, None)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Judgement]:
        if self.limit.get() is None:
            self.limit.set(0)
        yield Judgement(reading.room, self.limit.get(), self.label.get(), self.offset.get())


def judging(*, parallelism: int = 2, stamped: bool = False) -> JobHarness:
    """Return the step, with a second step after it or with stamped output."""
    job = ps.Job("rooms", key_groups=8)
    readings = job.data_stream("readings", schema=Reading)
    labels = job.control_stream("labels", schema=Label, version="number")
    judged = readings.key_by("room").connect(labels.key_by("room")).process("judge", Judge())
    judged.side_output("alarms").sink_to("alarms")
    if stamped:
        judged = judged.stamp_control_version()
    judged.sink_to("judgements")
    if not stamped:
        judged.key_by("room").process("copy", PassOn(), output=Judgement).sink_to("copies")
    return JobHarness(job, parallelism=parallelism)


def run_batch(run: JobHarness, *readings: Reading) -> BatchOutcome:
    """Run a micro-batch of readings and control records, with the same result after a crash."""
    run.send("readings", *readings)
    run.run_batch()
    outcome = run.crash()
    assert outcome is not None
    return outcome


def test_a_refused_command_to_the_job_has_one_story_not_one_for_each_step() -> None:
    """It is read once, and refused once."""
    run = judging()
    run.send_command("trace", expires_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert [receipt.status for receipt in run_batch(run).receipts] == ["ACCEPTED", "REJECTED"]


DEEP = b"[" * 5000 + b"]" * 5000
POISON = {
    "deep payload": b'{"id":"x","kind":"pause","payload":' + DEEP + b"}",
    "deep key": b'{"id":"x","kind":"set","target":{"step":"judge","key":'
    + DEEP
    + b'},"payload":{"limit":1}}',
    "utf-8 id": b'{"id":"\xff","kind":"pause"}',
    "utf-8 payload": b'{"id":"x","kind":"set","target":{"step":"judge","key":1},"payload":{"\xff":1}}',
    "version 2**64": b'{"id":"x","kind":"pause","version":18446744073709551616}',
    "setting 2**64": b'{"id":"x","kind":"set","target":{"step":"judge"},"payload":{"offset":18446744073709551616}}',
    "reply 2**64": b'{"id":"x","kind":"answer","target":{"step":"judge"},"payload":18446744073709551616}',
}


@pytest.mark.parametrize("poison", POISON)
def test_poison_never_stops_the_job(poison: str) -> None:
    """Whatever it would raise, it is refused, or its handler is blamed."""
    run = judging()
    run.send("commands", POISON[poison])
    assert run_batch(run).receipts[-1].status in ("REJECTED", "DEGRADED")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a\0b", None),
        ("~nouser/x", None),
        ("x.json", b'{"offset": "\xff"}'),
        ("y.yaml", b'"offset": &a [*a]\n'),
        ("z.yaml", b'"offset": "\\ud800"\n'),
    ],
)
def test_a_file_that_cannot_be_used_is_rejected(name: str, content: bytes | None, tmp_path: Path) -> None:
    """The error may be in its name or its content."""
    place = name if name.startswith("~") else f"/{name}"
    if content is not None:
        (tmp_path / name).write_bytes(content)
        place = str(tmp_path / name)
    run = judging()
    run.runner.fetched_folder = str(tmp_path / "kept")
    run.runner.allow_read = ["/"]
    run.send_command("reload-config", "judge", {"from": place})
    assert run_batch(run).receipts[-1].status == "REJECTED"


class Shifting(ps.ProcessFunction):
    """Has a setting that may hold from an event time on."""

    offset = ps.Setting(int, 0)

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Reading]:
        yield Reading(record.room, self.offset.get())


def test_an_effective_time_beyond_utc_is_rejected() -> None:
    """It could not be compared with other times."""
    job = ps.Job("timed", key_groups=8)
    timed = job.data_stream("readings", schema="room BIGINT, at TIMESTAMP", event_time="at")
    timed.key_by("room").process("shift", Shifting()).sink_to("shifted")
    run = JobHarness(job)
    target, at = {"step": "shift"}, "0001-01-01T00:00:00+14:00"
    run.send(
        "commands", {"id": "x", "kind": "set", "target": target, "payload": {"offset": 1}, "effective_at": at}
    )
    assert run_batch(run).receipts[-1].status == "REJECTED"


def test_a_standing_command_may_use_a_side_output() -> None:
    """This works also when it reaches a later key, for which nothing is emitted."""
    run = judging()
    run.send_command("warn", "judge/*", 7)
    run_batch(run)
    outcome = run_batch(run, Reading(1))
    assert (outcome.output("judgements")[0].limit, outcome.dead_letters) == (7, [])
    assert outcome.output("alarms") == []


def test_a_key_that_a_command_names_first_gets_what_all_got() -> None:
    """It gets that before the command, in the same micro-batch."""
    run = judging()
    run.send_command("set", "judge/*", {"limit": 7})
    run.send_command("set", "judge/1", {"label": 3})
    run_batch(run)
    assert run_batch(run, Reading(1)).output("judgements") == [Judgement(1, 7, 3, 0)]


def test_settings_are_the_same_in_all_tasks_after_a_step_handler_raised_for_one_key() -> None:
    """This includes the tasks where it did not raise."""
    run = judging(parallelism=3)
    rooms = [Reading(room) for room in range(6)]
    run_batch(run, *rooms)
    run.send_command("shift", "judge", 9)
    run_batch(run)
    assert len({judgement.offset for judgement in run_batch(run, *rooms).output("judgements")}) == 1


def test_data_that_was_held_sees_the_keyed_controls_of_the_resuming_batch() -> None:
    """All controls of a micro-batch come before any data, even held data."""
    run = judging()
    run.send_command("pause", "judge")
    assert run_batch(run, Reading(1)).output("judgements") == []
    run.send_command("resume", "judge")
    run.send("labels", Label(1, 6))
    assert run_batch(run).output("judgements") == [Judgement(1, 6, None, None), Judgement(1, 0, 6, 0)]


def test_a_control_record_is_stamped_with_its_own_version_like_a_command() -> None:
    """A control record's output has the version of that record."""
    run = judging(stamped=True)
    run.send("labels", Label(1, 6), Label(1, 7))
    run_batch(run)
    run.send_command("tell", "judge/1", 8, version=8)
    run_batch(run)
    assert [judgement.control_version for judgement in run.output("judgements")] == [6, 7, 8]


def test_a_trace_of_a_stamped_step_shows_users_settings_only() -> None:
    """The version with which penstock stamps is hidden."""
    run = judging(stamped=True)
    run.send_command("trace")
    details = msgspec.json.decode(run_batch(run).receipts[-1].details)
    assert details[0]["settings"] == {"offset": 0}


def test_many_keys_in_one_command_take_linear_time() -> None:
    """A one-megabyte command names some 150,000 keys: eight times as many take about eight times as long."""

    def seconds(count: int) -> float:
        run = judging()
        run.send_command("set", "judge", {"limit": 1}, keys=range(count))
        begin = time.process_time()
        assert run.run_batch().receipts[-1].keys == count
        return time.process_time() - begin

    seconds(10)
    assert min(seconds(40_000) for _ in range(3)) < 16 * min(seconds(5_000) for _ in range(3))


class Breaker(ps.ProcessFunction):
    """Has handlers that raise or return in the middle of a loop over keys."""

    seen = ps.ValueState(int)
    offset = ps.Setting(int, 0)

    @ps.on_command("shift-behind-a-loop", scope="step")
    def shift_behind_a_loop(self, offset: int, ctx: ps.CommandContext) -> None:
        for room in ctx.keys():
            if room == 3:
                raise ValueError("three")
        self.offset.set(offset)

    @ps.on_command("shift-and-raise", scope="step")
    def shift_and_raise(self, offset: int, ctx: ps.CommandContext) -> None:
        self.offset.set(offset)
        for _ in ctx.keys():
            break
        raise ValueError("for the whole step, in every task")

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Reading]:
        self.seen.set(1)
        yield Reading(reading.room, self.offset.get())


@pytest.mark.parametrize(("kind", "rooms"), [("shift-behind-a-loop", range(6)), ("shift-and-raise", [1])])
def test_settings_are_the_same_in_all_tasks(kind: str, rooms: Any) -> None:
    """After a loop over keys, which may end differently in each task, they cannot be changed."""
    job = ps.Job("rooms", key_groups=8)
    job.data_stream("readings", schema=Reading).key_by("room").process("break", Breaker()).sink_to("offsets")
    run = JobHarness(job, parallelism=3)
    run_batch(run, *map(Reading, rooms))
    run.send_command(kind, "break", 9)
    run_batch(run)
    assert len({found.value for found in run_batch(run, *map(Reading, range(12))).output("offsets")}) == 1
