"""Windows in the step core, with stored state: Flink's cases, and the fate of every record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from property_examples import examples, some_in_test
from window_cases import Case, case_ids, check, load_case, load_expected
from window_driver import AtEndOfStream, made_assigner, made_evictor, made_trigger, ms
from window_reference import run
from window_streams import EVENT_TIME, specs_and_elements

import penstock as ps
from penstock.base.instants import EPOCH, MILLISECOND
from penstock.engine.slot import Slot
from penstock.engine.slot_run import BatchTime, SlotRun
from penstock.engine.step import StepResult
from penstock.operators.record_blocks import OFFSET, Block
from penstock.operators.watermarks import WatermarkUpdate
from penstock.runtime.plan import JobPlan
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries
from penstock.windows.window import GLOBAL


@dataclass
class Element:
    """A record of a case, with its position in `place`."""

    key: str
    ts: int
    v: float
    place: int
    gap: int = 0


@dataclass
class Shown:
    """A pane."""

    key: str
    start: int | None
    end: int | None
    values: list[float]
    places: list[int]
    ts: int


class Show(ps.WindowFunction):
    def process(self, key: str, records: Sequence[Element], ctx: ps.WindowContext) -> Iterator[Shown]:
        window = ctx.window
        start, end = (None, None) if window == GLOBAL else window
        values, places = [one.v for one in records], [one.place for one in records]
        yield Shown(key, start, end, values, places, window.max_timestamp)


def delta(old: Element, new: Element) -> float:
    return abs(old.v - new.v)


def described(spec: dict[str, Any]) -> ps.Job:
    """Return a job with the windows of a case."""
    job = ps.Job("windows", key_groups=1)
    stream = job.data_stream("in", schema=Element, event_time="ts", watermarks=ps.Watermarks.none())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("window_driver.delta", delta)
        assigner: Any = made_assigner(spec["assigner"])
        if spec["assigner"]["type"] == "dynamic_session":
            assigner = ps.SessionWindows(lambda record: ms(record.gap))
        windowed = stream.key_by("key").window(assigner)
        trigger = made_trigger(spec["trigger"])
        if trigger is None and spec["assigner"].get("end_of_stream"):
            trigger = AtEndOfStream()
        evictor = made_evictor(spec["evictor"])
    if trigger is not None:
        windowed = windowed.trigger(trigger)
    if evictor is not None:
        windowed = windowed.evictor(evictor)
    panes = windowed.allowed_lateness(ms(spec["lateness"])).process("panes", Show())
    panes.sink_to("panes")
    panes.side_output("late").sink_to("late")
    return job


class Driver:
    """Runs the elements of a case through the step core, each in its own micro-batch, and returns the output.

    The state is stored at each element, and read again at every eighth, as after a restart. Processing-time
    timers fire after their millisecond, as Flink's do outside its test harness; so the clock is moved one
    further for them, and back for records.

    With `stores_every`, the elements are rounds of real time, and the state is stored after that many.
    """

    def __init__(self, spec: dict[str, Any], stores_every: int = 1) -> None:
        plan = JobPlan(described(spec).graph, 1, frozenset(), frozenset(), strict=False)
        (node,) = plan.graph.steps()
        self.core = plan.core(node)
        self._watermark_rules = plan.watermark_rules(node)
        self._schema = plan.step_schema(node, 0)
        self._entries = MemoryEntries({})
        self._tables = SlotTables(self.core.state_schema, self._entries)
        self._runs = 0
        self._stores_every = stores_every
        self._spec = spec
        self.counts: dict[str, int] = {}
        self._clock_ms = 0

    def run(self, elements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for at, element in enumerate(elements):
            if "wm" in element:
                result = self._run([], WatermarkUpdate("source/in", {"": element["wm"]}))
            elif "pt" in element:
                self._clock_ms = element["pt"] + 1
                result = self._run([])
                self._clock_ms -= 1
            else:
                record = Element(element["key"], element["ts"], element["v"], at, element.get("gap", 0))
                result = self._run([record])
            assert not result.dead_letters
            for kind, count in result.counts.items():
                self.counts[kind] = self.counts.get(kind, 0) + count
            found += self._told(result, elements, at)
        return found

    def _run(self, records: list[Element], *updates: WatermarkUpdate) -> StepResult:
        self._runs += 1
        if not self._tables.changed and self._runs % 8 == 0:
            self._tables = SlotTables(self.core.state_schema, self._entries)
        tables = self._tables
        now = EPOCH + self._clock_ms * MILLISECOND
        run = SlotRun(self.core, Slot((0,), True), tables, BatchTime(now, self._watermark_rules, updates))
        run.begin_data()
        blocks = []
        if records:
            batch = self.core.inputs[0].record_type.batch(records)
            offsets = pa.array([record.place for record in records], pa.int64())
            blocks = [
                Block(0, "s", "p", records[0].place, batch.append_column(OFFSET, offsets).cast(self._schema))
            ]
        result = run.process(0, blocks)
        run.close()
        if tables.changed and self._runs % self._stores_every == 0:
            tables.store()
        return result

    def _told(
        self, result: StepResult, elements: Sequence[dict[str, Any]], at: int
    ) -> Iterator[dict[str, Any]]:
        for emission in result.emissions:
            for record in self.core.outputs[emission.output].objects(emission.batch):
                if emission.output == "":
                    told = {"key": record.key, "start": record.start, "end": record.end}
                    yield {**told, "values": record.values, "ts": record.ts, "at": at, "seq": record.places}
                elif self._spec["late_output"]:
                    yield {"late": dict(elements[record.place]), "at": at}


@pytest.mark.parametrize("case_id", some_in_test(case_ids()))
def test_a_step_emits_what_flink_emitted(case_id: str) -> None:
    """Each case is compared watermark by watermark; windows are stored at every element and often reloaded."""
    case = load_case(case_id)
    driver = Driver(case.spec)
    check(case, driver.run(case.elements), load_expected(case_id))


def check_in_real_time(case_id: str) -> None:
    """Run a case with each element as a round; windows are stored after three rounds, and often reloaded."""
    case = load_case(case_id)
    check(case, Driver(case.spec, stores_every=3).run(case.elements), load_expected(case_id))


@pytest.mark.parametrize("case_id", case_ids()[1::8])
def test_rounds_of_real_time_emit_what_flink_emitted(case_id: str) -> None:
    """Some of the cases; the difference to micro-batches is when the state is stored."""
    check_in_real_time(case_id)


@pytest.mark.chaos
@pytest.mark.parametrize("case_id", case_ids())
def test_rounds_of_real_time_emit_all_that_flink_emitted(case_id: str) -> None:
    """All of the cases."""
    check_in_real_time(case_id)


@examples(12)
@given(specs_and_elements())
def test_a_step_emits_what_the_model_emits(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """This holds for any windows and stream; each record is in windows, late, or in a gap between windows."""
    spec, elements = drawn
    sessions = spec["assigner"]["type"] in {"session", "dynamic_session", "pt_session"}
    assume(not (sessions and spec["evictor"]["type"] in {"count", "delta"}))
    # A processing-time timer that is due fires in the next micro-batch, but in the model when the clock
    # moves.
    by_clock = "processing_time" in str(spec["trigger"])
    assume(not (by_clock and spec["assigner"]["type"] in EVENT_TIME))
    outcome = run(spec, elements)
    driver = Driver(spec)
    check(Case("drawn", "", spec, tuple(elements)), driver.run(elements), outcome.emissions)
    assert driver.counts.get("late", 0) == len(outcome.late) + len(outcome.dropped_late)
    assert driver.counts.get("without_window", 0) == len(outcome.dropped_in_gap)
