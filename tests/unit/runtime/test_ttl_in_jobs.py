"""Time to live in whole jobs over micro-batches, against plain Python, with the test's own clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

import penstock as ps
from penstock.errors import JobDefinitionError
from penstock.state.slot_tables import SlotTables
from penstock.testing.batch_runner import NOW, BatchRunner

AFTER = dt.timedelta(seconds=10)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass
class Touch:
    key: int
    state: str
    act: str
    at: dt.datetime = EPOCH


@dataclass
class Seen:
    key: int
    text: str


class Acts(ps.ProcessFunction):
    """Applies a record's actions to a state, emits the content, and raises if the record says so."""

    def process_record(self, record: Touch, ctx: ps.Context) -> Iterator[Seen]:
        state = getattr(self, record.state)
        act = record.act.removesuffix("!")
        if act == "write":
            if isinstance(state, ps.ListState):
                state.add(1)
            elif isinstance(state, ps.MapState):
                state.put(len(state), 1)
            elif isinstance(state, ps.ReducingState):
                state.add(1)
            else:
                state.set((state.get() or 0) + 1)
        elif act == "clear":
            state.clear()
        elif act == "blind":
            state.set(
                {0: 1} if isinstance(state, ps.MapState) else [1] if isinstance(state, ps.ListState) else 1
            )
        seen = ""
        if act != "blind":
            seen = str(len(state) if isinstance(state, ps.ListState | ps.MapState) else state.get() or 0)
        if record.act.endswith("!"):
            raise ValueError("no")
        yield Seen(record.key, f"{record.state} {seen}")


def acts(time: Any) -> ps.ProcessFunction:
    class Timed(Acts):
        value = ps.ValueState(int, ttl=ps.Ttl(AFTER, time=time))
        read = ps.ValueState(int, ttl=ps.Ttl(AFTER, on="read_and_write", time=time))
        items = ps.ListState(int, ttl=ps.Ttl(AFTER, time=time))
        read_items = ps.ListState(int, ttl=ps.Ttl(AFTER, on="read_and_write", time=time))
        entries = ps.MapState(int, int, ttl=ps.Ttl(AFTER, time=time))
        total = ps.ReducingState(int, lambda a, b: a + b, ttl=ps.Ttl(AFTER, on="read_and_write", time=time))
        kept = ps.ValueState(int)

    return Timed()


STATES = ["value", "read", "items", "read_items", "entries", "total", "kept"]
ACTS = ["write", "write", "look", "look", "clear", "blind", "write!", "look!", "clear!", "blind!"]


@dataclass
class Model:
    """The model: for each key and state a number, and the second in which it expires."""

    by_event: bool
    held: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    clock: float = float("-inf")

    def record(self, record: Touch, now: float) -> str | None:
        place = record.key, record.state
        time = (record.at - EPOCH).total_seconds() if self.by_event else now
        self.clock = max(self.clock, time)
        count, expires = self.held.get(place, (0, float("-inf")))
        if expires <= self.clock:
            count, expires = 0, float("-inf")
        act = record.act.removesuffix("!")
        touched = act in ("write", "blind")
        if act in ("write", "blind", "clear"):
            count = {"write": count + 1, "blind": 1, "clear": 0}[act]
        # A value read after a late write may have expired already.
        after = float("inf") if record.state == "kept" else max(expires, time + AFTER.total_seconds())
        if touched or (count and record.state in ("read", "read_items", "total")):
            expires = after
        if record.act.endswith("!"):
            return None
        if expires <= self.clock:
            count = 0
        self.held[place] = count, expires if count else float("-inf")
        return f"{record.state} {'' if act == 'blind' else count}"


def job_of(function: ps.ProcessFunction, *, key_groups: int, partitions: int) -> BatchRunner:
    job = ps.Job("j", key_groups=key_groups)
    stream = job.data_stream("touches", schema=Touch, event_time="at")
    stream.key_by("key").process("step", function).sink_to("seen")
    return BatchRunner(job, parallelism=partitions)


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.booleans(),
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(STATES), st.sampled_from(ACTS), st.integers(0, 60)),
            max_size=12,
        ),
    ),
    max_size=8,
)


@pytest.mark.parametrize("by_event", [False, True])
@examples(20)
@given(batches=BATCHES)
def test_values_are_there_until_they_expire_and_never_longer(by_event: bool, batches: Any) -> None:
    """This holds within a micro-batch, after reloads, and after records that raised."""
    groups, partitions = (1, 1) if by_event else (4, 2)
    job = job_of(acts("event" if by_event else "processing"), key_groups=groups, partitions=partitions)
    model = Model(by_event)
    for passed, cold, records in batches:
        job.now += dt.timedelta(seconds=passed)
        if cold:
            job.forget()
        touches = [
            Touch(key, state, act, EPOCH + dt.timedelta(seconds=at)) for key, state, act, at in records
        ]
        result = run_and_replay(job, {"touches": [("p", touches)]})
        told = [(one.key, one.text) for one in result.output("seen")]
        expected = []
        for touch in touches:
            text = model.record(touch, (job.now - EPOCH).total_seconds())
            if text is not None:
                expected.append((touch.key, text))
        by_key = [
            [text for key, text in found if key == wanted]
            for found in (told, expected)
            for wanted in range(3)
        ]
        assert by_key[:3] == by_key[3:]


class InBulk(ps.ProcessFunction):
    value = ps.ValueState(int, ttl=ps.Ttl(AFTER))
    read = ps.ValueState(int, ttl=ps.Ttl(AFTER, on="read_and_write"))

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        slots = np.unique(ctx.key_indices)
        states = {"value": self.value, "read": self.read}
        for name in records.column("state").to_pylist():
            states[name].put(slots, states[name].columns().values[slots] + 1)
        texts = [
            f"{self.value.columns().values[slot]} {self.read.columns().values[slot]}"
            for slot in ctx.key_indices
        ]
        return pa.record_batch({"key": records.column("key"), "text": texts})


def test_columns_are_kept_alive_and_expire() -> None:
    """Reading a column refreshes the values of the keys in the batch."""
    job = ps.Job("j", key_groups=2)
    stream = job.data_stream("touches", schema=Touch)
    stream.key_by("key").process("step", InBulk(), output=Seen).sink_to("seen")
    found = BatchRunner(job)
    told = []
    for seconds, state in [(0, "value"), (0, "read"), (6, "read"), (6, "read"), (9, "value"), (10, "value")]:
        found.now += dt.timedelta(seconds=seconds)
        told += [one.text for one in found.run({"touches": [("p", [Touch(1, state, "")])]}).output("seen")]
    assert told == ["1 0", "1 1", "1 2", "0 3", "1 3", "1 0"]


class Keys(ps.ConnectedProcessFunction):
    value = ps.ValueState(int, ttl=ps.Ttl(AFTER))

    def process_control(self, record: Touch, ctx: ps.Context) -> Iterator[Seen]:
        for key in ctx.keys():
            yield Seen(key, str(self.value.get()))

    def process_record(self, record: Touch, ctx: ps.Context) -> Iterator[Seen]:
        self.value.set(1)
        yield from ()


def test_keys_whose_values_have_expired_are_no_keys() -> None:
    """ctx.keys() omits them, although they are still in the table."""
    job = ps.Job("j", key_groups=2)
    control = job.control_stream("asks", schema=Touch)
    data = job.data_stream("touches", schema=Touch)
    data.key_by("key").connect(control.broadcast()).process("step", Keys()).sink_to("seen")
    found = BatchRunner(job)
    found.run({"touches": [("p", [Touch(1, "", "")])]})
    found.now += dt.timedelta(seconds=5)
    found.run({"touches": [("p", [Touch(2, "", "")])]})
    found.now += dt.timedelta(seconds=5)
    asked = found.run({"asks": [("p", [Touch(0, "", "")])]}).output("seen")
    assert [one.key for one in asked] == [2]


def test_event_time_needs_records_that_have_it() -> None:
    """The error comes when the job is described."""
    job = ps.Job("j")
    stream = job.data_stream("touches", schema=Touch).key_by("key")
    with pytest.raises(
        JobDefinitionError, match=r"'value' of step 'step' expires by event time, .* event_time="
    ):
        stream.process("step", acts("event"))


def test_a_state_may_get_and_lose_its_time_to_live() -> None:
    """Earlier values are kept; removing the declaration removes their expiry."""

    def counting(ttl: ps.Ttl | None) -> BatchRunner:
        class Counting(ps.ProcessFunction):
            count = ps.ValueState(int, ttl=ttl)

            def process_record(self, record: Touch, ctx: ps.Context) -> Iterator[Seen]:
                self.count.set((self.count.get() or 0) + 1)
                yield Seen(record.key, str(self.count.get()))

        return job_of(Counting(), key_groups=1, partitions=1)

    told = []
    states: Any = {}
    for number, ttl in enumerate([None, ps.Ttl(AFTER), ps.Ttl(AFTER), None]):
        job = counting(ttl)
        job.states = states
        job.now = NOW + dt.timedelta(minutes=number)
        told += [one.text for one in job.run({"touches": [("p", [Touch(1, "", "")])]}).output("seen")]
    assert told == ["1", "2", "1", "2"]


def test_what_nobody_touches_any_more_goes_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch checks a bounded number of rows, and in the end none is left."""
    monkeypatch.setattr("penstock.state.slot_tables._SWEPT_ROWS", 10)
    job = job_of(acts("processing"), key_groups=1, partitions=1)
    job.run({"touches": [("p", [Touch(key, "value", "blind") for key in range(200)])]})
    job.now += AFTER
    held = []
    for _ in range(25):
        report = job.run({"touches": [("p", [Touch(1000, "kept", "write")])]})
        held.append(report.counts("keys")["step"])
    # Once most rows are gone, the rest is rewritten completely.
    assert held[:10] == [191 - 10 * number for number in range(10)]
    assert held[-1] == 1


def test_sweeping_goes_on_where_it_was_when_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the last rows would never be checked."""
    monkeypatch.setattr("penstock.state.slot_tables._SWEPT_ROWS", 10)
    job = job_of(acts("processing"), key_groups=4, partitions=1)
    job.run({"touches": [("p", [Touch(key, "kept", "blind") for key in range(100)])]})
    seen = set()
    original = SlotTables.sweep

    def sweep(tables: SlotTables, clocks: Any) -> None:
        original(tables, clocks)
        seen.add(tables._head.swept)

    monkeypatch.setattr(SlotTables, "sweep", sweep)
    for _ in range(20):
        job.run({"touches": [("p", [Touch(1, "kept", "look")])]})
    assert len(seen) > 9


@dataclass
class Mark:
    key: int
    at: int


class Marked(ps.ProcessFunction):
    """Emits whether the previous mark is still there."""

    last = ps.ValueState(int, ttl=ps.Ttl(dt.timedelta(milliseconds=20), time="event"))

    def process_record(self, mark: Mark, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(mark.key, str(self.last.get()))
        self.last.set(mark.at)


@pytest.mark.parametrize("last_key", range(8))
def test_in_real_time_values_expire_as_records_come(last_key: int) -> None:
    """Each round's records of a later time come last, so earlier values are still there."""
    job = ps.Job("marks", key_groups=16)
    marks = job.data_stream("marks", schema=Mark, event_time="at", watermarks=ps.Watermarks.bounded("1s"))
    marks.key_by("key").process("marked", Marked()).sink_to("seen")
    keys = [key for key in range(8) if key != last_key]
    records = [Mark(key, at) for at in (1, 11) for key in keys] + [Mark(last_key, 1000)]
    result = BatchRunner(job, in_real_time=True).run({"marks": [("p", records)]})
    expected = [("1" if mark.at == 11 else "None") for mark in records]
    assert [seen.text for seen in result.output("seen")] == expected
    assert [seen.key for seen in result.output("seen")] == [mark.key for mark in records]
