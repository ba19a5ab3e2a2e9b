"""Event time of unions: the minimum over all active streams, as for one topic with all records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from domains import Pane, PassOn, ShowPanes, Visit, ms_of
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from rescaling import Stage, run_beside, stages

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND, milliseconds_of
from penstock.streams.stream import DataStream
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import NOW, BatchRunner
from penstock.testing.saved_states import rescale_runner

AT_ONCE = ps.Watermarks.monotonous()
PATIENT = AT_ONCE.with_idleness("1m")
MINUTE = dt.timedelta(minutes=1)


@dataclass
class Told:
    text: str
    at: int


class Tell(ps.ProcessFunction):
    """Emits the watermark at each record, and sets a timer at its time."""

    def process_record(self, click: Visit, ctx: ps.Context) -> Iterator[Told]:
        ctx.timers.register(EPOCH + click.at * MILLISECOND, domain="event")
        yield Told(f"{ctx.stream} at {ms_of(ctx.watermark)}", click.at)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Told]:
        yield Told(f"timer at {ms_of(ctx.watermark)}", milliseconds_of(timer.at))


def clicks(job: ps.Job, name: str, watermarks: ps.Watermarks = AT_ONCE, event_time: str = "at") -> DataStream:
    return job.data_stream(name, schema=Visit, event_time=event_time, watermarks=watermarks)


def passed(stream: DataStream, name: str) -> DataStream:
    return stream.key_by("user").process(name, PassOn(), output=Visit)


def telling(web: ps.Watermarks = AT_ONCE, app: ps.Watermarks = AT_ONCE, *, steps: int = 0) -> ps.Job:
    """Return a job over the stream `web` and the stream `app`, which passes through some steps first."""
    job = ps.Job("shop", key_groups=4)
    other = clicks(job, "app", app)
    for number in range(steps):
        other = passed(other, f"step {number}")
    clicks(job, "web", web).union(other).key_by("user").process("tell", Tell()).sink_to("told")
    return job


def told(job: BatchRunner, **times: int) -> list[str]:
    """Return the output for one click of each stream, and for timers."""
    inputs = {name: [("p", [Visit("a", at)])] for name, at in times.items()}
    return [f"{one.text}: {one.at}" for one in job.run(inputs).output("told")]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_stream_that_is_furthest_behind_counts(steps: int) -> None:
    """A stream without records yet holds time back; streams through steps count in the same micro-batch."""
    app = f"step {steps - 1}" if steps else "app"
    job = BatchRunner(telling(steps=steps), parallelism=2)
    assert told(job, web=100) == ["web at None: 100"]
    assert told(job, app=51) == [f"{app} at None: 51"]
    assert told(job, web=200, app=151) == [
        "web at 50: 200",
        f"{app} at 50: 151",
        "timer at 150: 51",
        "timer at 150: 100",
    ]
    assert told(job, app=300) == [f"{app} at 150: 300", "timer at 199: 151"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stream_that_is_idle_holds_nothing_back(steps: int) -> None:
    """Steps report when they become idle or active; this holds while no input arrives."""
    app = f"step {steps - 1}" if steps else "app"
    job = BatchRunner(telling(AT_ONCE, PATIENT, steps=steps), parallelism=2)
    assert told(job, web=100, app=30) == ["web at None: 100", f"{app} at None: 30"]
    assert told(job, web=101) == ["web at 29: 101"]
    job.now += MINUTE
    assert told(job) == ["timer at 100: 30", "timer at 100: 100"]
    assert told(job, web=200) == ["web at 100: 200", "timer at 199: 101"]
    assert told(job, web=301, app=250) == ["web at 199: 301", f"{app} at 199: 250", "timer at 249: 200"]
    assert told(job, web=400) == ["web at 249: 400"]
    assert told(job, app=350) == [f"{app} at 249: 350", "timer at 349: 250", "timer at 349: 301"]


def test_a_stream_from_which_nothing_ever_comes_falls_idle() -> None:
    job = BatchRunner(telling(AT_ONCE, PATIENT, steps=2), parallelism=3)
    assert told(job, web=100) == ["web at None: 100"]
    job.now += MINUTE
    assert told(job, web=201) == ["web at None: 201", "timer at 200: 100"]


def test_when_all_are_idle_the_one_that_is_furthest_counts() -> None:
    job = BatchRunner(telling(PATIENT, PATIENT, steps=1), parallelism=2)
    told(job, web=100, app=300)
    job.now += MINUTE
    assert told(job) == ["timer at 299: 100"]
    assert told(job, web=400) == ["web at 299: 400", "timer at 399: 300"]


def test_a_paused_step_before_a_union_holds_time() -> None:
    """Even if it gets no input for long, its held records are not late after the union."""
    job = BatchRunner(telling(AT_ONCE, PATIENT, steps=1), parallelism=2)
    told(job, web=100, app=50)
    job.now += MINUTE
    assert told(job) == ["timer at 99: 50"]
    job.run(commands(command_to("step 0", "pause")))
    assert told(job, web=500, app=200) == ["web at 99: 500"]
    job.now += MINUTE
    assert told(job, web=501) == told(job, web=501) == ["web at 99: 501"]
    result = job.run(commands(command_to("step 0", "resume")))
    texts = [(one.text, one.at) for one in result.output("told")]
    assert texts == [("step 0 at 99", 200), *(("timer at 500", at) for at in (100, 200, 500))]


def test_what_holds_time_behind_a_union_is_told() -> None:
    job = BatchRunner(telling(steps=1))
    told(job, web=100)
    traced = job.run(commands(command_to("tell", "trace")))
    (found,) = msgspec.json.decode(traced.receipts[-1].details)
    assert (found["watermark"], found["held_by"]) == (None, "step 0")


def test_after_a_rescaling_a_step_tells_anew_how_far_it_is() -> None:
    """It reports even if its watermark stays: the union advances by its other streams."""
    job = telling(steps=1)
    running = BatchRunner(job, parallelism=2)
    told(running, web=20, app=101)
    running = rescale_runner(running, 3)
    assert told(running, web=80) == ["web at 19: 80", "timer at 79: 20"]
    assert told(running, web=200) == ["web at 79: 200", "timer at 100: 80"]


def test_streams_that_count_on_arrival_are_one_on_arrival() -> None:
    """This holds after a step as well, in all of its tasks, with or without input."""
    job = ps.Job("shop", key_groups=4)
    web, app = (job.data_stream(name, schema=Visit, event_time=ps.INGESTION_TIME) for name in ("web", "app"))
    web.union(passed(app, "step")).key_by("user").process("tell", Tell()).sink_to("told")
    now = milliseconds_of(NOW)
    for partitions in (1, 2, 4):
        running = BatchRunner(job, parallelism=partitions)
        assert told(running, app=now + 1000) == [f"step at None: {now + 1000}"]
        running.now += dt.timedelta(seconds=2)
        assert told(running) == [f"timer at {now + 1999}: {now + 1000}"]


def windowed(job: ps.Job, stream: DataStream, assigner: ps.WindowAssigner) -> ps.Job:
    panes = stream.key_by("user").window(assigner).process("panes", ShowPanes())
    panes.sink_to("panes")
    panes.side_output("late").sink_to("late")
    return job


def told_of(result: BatchOutcome) -> Any:
    """Return the panes of each key in order, and the late records."""
    panes: dict[str, list[Pane]] = {}
    for pane in result.output("panes"):
        panes.setdefault(pane.user, []).append(pane)
    late = sorted(click.number for click in result.output("late"))
    return panes, late, result.counts("late")


@examples(20)
@given(
    drawn=stages(["app", "web"]),
    strategy=st.sampled_from(["3ms", "20ms"]).map(lambda bound: ps.Watermarks.bounded(bound)),
    idle=st.booleans(),
    sessions=st.booleans(),
    through=st.sampled_from([(), ("app",), ("web",), ("app", "web")]),
)
def test_a_union_is_as_one_topic_with_a_partition_for_each_stream(
    drawn: list[Stage], strategy: ps.Watermarks, idle: bool, sessions: bool, through: tuple[str, ...]
) -> None:
    """Each micro-batch is equal, on any number of tasks, restarted and rescaled, with any streams through
    steps.
    """
    assigner = ps.SessionWindows("6ms") if sessions else ps.TumblingWindows("10ms")
    strategy = strategy.with_idleness("20ms") if idle else strategy
    one = ps.Job("one", key_groups=5)
    straight = BatchRunner(
        windowed(one, clicks(one, "all", strategy), assigner), partitions={"all": ("app", "web")}
    )
    job = ps.Job("two", key_groups=5)
    app, web = (clicks(job, name, strategy) for name in ("app", "web"))
    app, web = (passed(s, f"{s.name} step") if s.name in through else s for s in (app, web))
    windowed(job, app.union(web), assigner)
    moved = BatchRunner(job, parallelism=2)

    def inputs_of(runs: Any) -> Any:
        return {"all": list(runs.items())}, {name: [("p", found)] for name, found in runs.items()}

    for expected, result in run_beside(straight, moved, drawn, Visit, inputs_of):
        assert told_of(result) == told_of(expected)
        watermarks, expected_watermarks = result.watermarks("panes", expected)
        assert watermarks == expected_watermarks
        assert not result.dead_letters
