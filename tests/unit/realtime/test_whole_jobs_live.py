"""Timers, windows, commands and held data in real time: a job's output equals that in micro-batches."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from domains import Counted, PassOn, Reading, Visit
from encoded_commands import command_to
from live_runner import LiveRunner

import penstock as ps


@dataclass
class Total:
    user: str
    start: int
    total: int


class Sum(ps.WindowFunction):
    def process(self, key: str, records: list[Visit], ctx: ps.WindowContext) -> Iterator[Total]:
        yield Total(key, ctx.window.start, sum(one.number for one in records))


def windows_job() -> ps.Job:
    job = ps.Job("windows", key_groups=8)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("1s"))
    totals = visits.key_by("user").window(ps.TumblingWindows("10s")).process("totals", Sum(), output=Total)
    totals.sink_to("totals")
    job_wide = totals.key_by("user").window(ps.TumblingWindows("20s"))
    job_wide.sum("twice", "total").sink_to("twice")
    return job


NUMBERS = [("a", 1), ("b", 2)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_fire_as_the_watermark_passes(tmp_path: Path, parallelism: int) -> None:
    """They fire within the interval, in both window steps, whichever task has the key."""
    with LiveRunner(windows_job(), tmp_path, parallelism) as live:

        def during() -> None:
            for second in range(45):
                at = 1000 * second
                live.send("visits", *({"user": user, "at": at, "number": n} for user, n in NUMBERS))
                time.sleep(0.005)

        outcome = live.run(during)
    found = sorted((one.user, one.start, one.total) for one in outcome.outputs["totals"])
    assert found == [(user, start, 10 * n) for user, n in NUMBERS for start in range(0, 40_000, 10_000)]
    # No result of the first step is late in the second: its watermark follows its records.
    assert sorted((one.user, one.value) for one in outcome.outputs["twice"]) == [
        ("a", 20.0),
        ("a", 20.0),
        ("b", 40.0),
        ("b", 40.0),
    ]


class Remind(ps.ProcessFunction):
    """Emits the count of a key 50 ms after each of its pings; a command's value is added."""

    count = ps.ValueState(int)
    more = ps.Setting(int, 0)

    def process_record(self, record: Reading, ctx: ps.Context) -> None:
        self.count.set((self.count.get() or 0) + 1)
        ctx.timers.register(dt.datetime.now(dt.UTC) + dt.timedelta(milliseconds=50), "remind")

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Counted]:
        yield Counted(ctx.key, (self.count.get() or 0) + self.more.get())


def pings_job() -> ps.Job:
    job = ps.Job("pings", key_groups=8)
    pings = job.data_stream("pings", schema=Reading).key_by("room")
    pings.process("remind", Remind(), output=Counted).sink_to("late")
    return job


def command(kind: str, payload: Any = None) -> bytes:
    return command_to("remind", kind, payload)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_timers_and_commands(tmp_path: Path, parallelism: int) -> None:
    """A timer fires within the interval in which it was set, and a setting takes effect as soon as it arrives."""
    with LiveRunner(pings_job(), tmp_path, parallelism) as live:
        emitted = 10

        def during() -> None:
            nonlocal emitted
            live.send("pings", *({"room": key} for key in range(10)))
            live.await_written("late", emitted)
            live.send("commands", command("set", {"more": 100}))
            while max(one.count for one in live.emitted("late")) < 100:
                live.send("pings", {"room": 1})
                emitted += 1
                live.await_written("late", emitted)

        outcome = live.run(during)
        late = sorted((one.key, one.count) for one in outcome.outputs["late"])
        pings = 1 + emitted - 10
        assert late == sorted(
            [*((key, 1) for key in range(10)), *((1, n) for n in range(2, pings)), (1, 100 + pings)]
        )
        assert [receipt.status for receipt in outcome.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]
        # The setting is in the state of all slots, also on workers with cold caches.
        live.forget()

        def ping() -> None:
            live.send("pings", {"room": 2})
            live.await_written("late", 1)

        outcome = live.run(ping)
        assert [(one.key, one.count) for one in outcome.outputs["late"]] == [(2, 102)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_data_of_a_paused_step_waits(tmp_path: Path, parallelism: int) -> None:
    """It is held by key group, so that it can be rescaled, until the step resumes in a later interval."""
    with LiveRunner(pings_job(), tmp_path, parallelism) as live:
        live.run(lambda: live.send("commands", command("pause")))
        assert (
            "late" not in live.run(lambda: live.send("pings", *({"room": key} for key in range(10)))).outputs
        )
        assert live.records.get("remind", 0) == 0

        def resume() -> None:
            live.send("commands", command("resume"))
            live.await_written("late", 10)

        outcome = live.run(resume)
        assert sorted((one.key, one.count) for one in outcome.outputs["late"]) == [
            (key, 1) for key in range(10)
        ]


@dataclass
class Tick:
    key: int
    number: int


class Metronome(ps.ProcessFunction):
    """Emits a numbered tick of each key every millisecond."""

    count = ps.ValueState(int)

    def process_record(self, record: Reading, ctx: ps.Context) -> None:
        self._register(ctx)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Tick]:
        number = (self.count.get() or 0) + 1
        self.count.set(number)
        yield Tick(number, number)
        self._register(ctx)

    def _register(self, ctx: ps.Context) -> None:
        ctx.timers.register(dt.datetime.now(dt.UTC) + dt.timedelta(milliseconds=1), "tick")


def test_timers_rest_when_their_level_has_ended_its_interval(tmp_path: Path) -> None:
    """Their output belongs to the next interval, and none of it is lost on the way to the next step."""
    job = ps.Job("ticks", key_groups=8)
    ticks = job.data_stream("pings", schema=Reading).key_by("room").process("ticks", Metronome(), output=Tick)
    ticks.sink_to("ticks")
    ticks.key_by("key").process("pass", PassOn(), output=Tick).sink_to("passed")
    with LiveRunner(job, tmp_path, 3, interval_s=0.01) as live:
        live.send("pings", {"room": 1}, {"room": 2}, {"room": 3})
        for _ in range(30):
            outcome = live.run(live.await_end)
            ticked, passed = (
                sorted(one.number for one in outcome.outputs.get(sink, [])) for sink in ("ticks", "passed")
            )
            assert ticked == passed
    assert live.records["pass"] > 30
