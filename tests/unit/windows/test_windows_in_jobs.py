"""Windows in whole jobs: the panes are the same on any number of tasks, restarted and rescaled."""

from __future__ import annotations

from typing import Any

from domains import Pane, ShowPanes, Visit
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from rescaling import Stage, run_beside, stages

import penstock as ps
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner

TOPIC = ("0", "1")


ASSIGNERS: dict[str, Any] = {
    "tumbling": lambda: ps.TumblingWindows("10ms"),
    "sliding": lambda: ps.SlidingWindows("10ms", "4ms"),
    "gaps": lambda: ps.SlidingWindows("3ms", "7ms"),
    "session": lambda: ps.SessionWindows("6ms"),
    "count": lambda: ps.CountWindows(3),
    "clock": lambda: ps.TumblingWindows("10ms", time="processing"),
    "clock session": lambda: ps.SessionWindows("6ms", "processing"),
}
TRIGGERS: dict[str, Any] = {
    "default": lambda: None,
    "count": lambda: ps.CountTrigger(2),
    "purging": lambda: ps.PurgingTrigger(ps.CountTrigger(2)),
    "continuous": lambda: ps.ContinuousEventTimeTrigger("4ms"),
}
EVICTORS: dict[str, Any] = {
    "none": lambda: None,
    "count": lambda: ps.CountEvictor(2),
    "time": lambda: ps.TimeEvictor("4ms", after=True),
}


def described(assigner: str, trigger: str, evictor: str, lateness: str) -> ps.Job:
    job = ps.Job("j", key_groups=5)
    strategy = ps.Watermarks.bounded("3ms").with_idleness("20ms")
    clicks = job.data_stream("clicks", schema=Visit, event_time="at", watermarks=strategy)
    windowed = clicks.key_by("user").window(ASSIGNERS[assigner]()).allowed_lateness(lateness)
    given_trigger, given_evictor = TRIGGERS[trigger](), EVICTORS[evictor]()
    if given_trigger is not None:
        windowed = windowed.trigger(given_trigger)
    if given_evictor is not None:
        windowed = windowed.evictor(given_evictor)
    panes = windowed.process("panes", ShowPanes())
    panes.sink_to("panes")
    panes.side_output("late").sink_to("late")
    return job


def panes_of(result: BatchOutcome) -> dict[str, list[Pane]]:
    found: dict[str, list[Pane]] = {}
    for pane in result.output("panes"):
        found.setdefault(pane.user, []).append(pane)
    return found


@examples(15)
@given(
    drawn=stages(TOPIC),
    assigner=st.sampled_from(sorted(ASSIGNERS)),
    trigger=st.sampled_from(sorted(TRIGGERS)),
    evictor=st.sampled_from(sorted(EVICTORS)),
    lateness=st.sampled_from(["0s", "8ms"]),
)
def test_panes_are_the_same_restarted_and_rescaled(
    drawn: list[Stage], assigner: str, trigger: str, evictor: str, lateness: str
) -> None:
    """Every key has the same panes in the same micro-batches; all records are accounted for, and replays are
    identical.
    """
    job = described(assigner, trigger, evictor, lateness)
    straight = BatchRunner(job, parallelism=1, partitions={"clicks": TOPIC})
    moved = BatchRunner(job, parallelism=2, partitions={"clicks": TOPIC})

    def inputs_of(runs: Any) -> Any:
        inputs = {"clicks": [(name, runs[name]) for name in TOPIC if name in runs]}
        return inputs, inputs

    for expected, found in run_beside(straight, moved, drawn, Visit, inputs_of):
        assert panes_of(found) == panes_of(expected)
        late = sorted(click.number for click in found.output("late"))
        assert late == sorted(click.number for click in expected.output("late"))
        assert not found.dead_letters
        for kind in ("in_windows", "late", "without_window", "records"):
            assert found.counts(kind) == expected.counts(kind)
