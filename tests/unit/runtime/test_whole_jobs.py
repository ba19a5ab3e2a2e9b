"""Whole jobs in this process: what leaves them is what a plain fold over the input says, however it is run."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from domains import CountRecords
from hypothesis import example, given
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime import level
from penstock.testing.batch_runner import BatchRunner, Inputs

BAD_FOR_FILTER, BAD_FOR_MAP, BAD_FOR_SPLIT, BAD_FOR_STEP = 90, 91, 92, 93


@dataclass
class Reading:
    origin: str
    sensor: int | None
    value: int


@dataclass
class Limit:
    sensor: int | None
    limit: int


@dataclass
class Bonus:
    sensor: int
    bonus: int


@dataclass
class Alert:
    sensor: int
    value: int
    limit: int


@dataclass
class Quiet:
    sensor: int
    value: int


@dataclass
class Verdict:
    sensor: int
    value: int
    hot: bool


def is_used(reading: Reading) -> bool:
    if reading.value == BAD_FOR_FILTER:
        raise ValueError("filter")
    return reading.value % 7 != 0


def doubled(reading: Reading) -> Reading:
    if reading.value == BAD_FOR_MAP:
        raise ValueError("map")
    return Reading(reading.origin, reading.sensor, reading.value * 2)


def split(reading: Reading) -> Iterator[Reading]:
    """The reading as often as its value says; the first ones are made before it raises."""
    for part in range(reading.value % 3):
        yield Reading(reading.origin, reading.sensor, reading.value + part)
    if reading.value == BAD_FOR_SPLIT * 2:
        raise ValueError("split")


class Check(ps.ConnectedProcessFunction):
    """Alerts above limit + bonus; readings without a limit leave by the side."""

    side_outputs: ClassVar[dict[str, Any]] = {"quiet": Quiet}
    limit = ps.ValueState(int)
    bonus = ps.ValueState(int)

    def process_control(self, record: Any, ctx: ps.Context) -> None:
        if ctx.stream == "limits":
            self.limit.set(record.limit)
        else:
            self.bonus.set((self.bonus.get() or 0) + record.bonus)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Alert]:
        limit = self.limit.get()
        if limit is None:
            ctx.side_output("quiet", Quiet(ctx.key, reading.value))
            return
        limit += self.bonus.get() or 0
        self.bonus.set(self.bonus.get() or 0)
        if reading.value > limit:
            yield Alert(ctx.key, reading.value, limit)
        if reading.value == BAD_FOR_STEP * 2:
            raise ValueError("step")


class Judge(ps.ConnectedProcessFunction):
    """A chained step that is steered by a stream which also steers the step before it."""

    limit = ps.ValueState(int)

    def process_control(self, record: Limit, ctx: ps.Context) -> None:
        self.limit.set(record.limit)

    def process_record(self, alert: Alert, ctx: ps.Context) -> Iterator[Verdict]:
        yield Verdict(alert.sensor, alert.value, alert.value > 2 * (self.limit.get() or 0))


def third(alert: Alert) -> int:
    return alert.sensor % 3


def make_job(key_groups: int) -> ps.Job:
    """One data stream to a sink and two steps, two control streams, a side output, two chained steps."""
    job = ps.Job("all", key_groups=key_groups)
    readings = job.data_stream("readings", schema=Reading)
    limits = job.control_stream("limits", schema=Limit)
    bonuses = job.control_stream("bonuses", schema=Bonus)
    readings.sink_to("copy")
    used = readings.filter(is_used, name="used").map(doubled, name="doubled").flat_map(split, name="split")
    checked = (
        used.key_by("sensor")
        .connect(limits.key_by("sensor"), bonuses.key_by("sensor"))
        .process("check", Check())
    )
    checked.sink_to("alerts")
    checked.side_output("quiet").sink_to("quiet")
    readings.key_by("sensor").process("seen", CountRecords()).sink_to("seen")
    checked.key_by(third).process("thirds", CountRecords()).sink_to("thirds")
    checked.key_by("sensor").connect(limits.key_by("sensor")).process("judge", Judge()).sink_to("verdicts")
    return job


class Reference:
    """The same in plain Python: one dictionary for each state, one loop for each stream."""

    def __init__(self) -> None:
        self.limit: dict[int, int] = {}
        self.bonus: dict[int, int] = {}
        self.seen: dict[int, int] = defaultdict(int)
        self.thirds: dict[int, int] = defaultdict(int)

    def run(self, inputs: Inputs) -> dict[str, list[tuple[Any, ...]]]:
        out: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        letters = out["dead-letters"]
        for stream, state in (("limits", self.limit), ("bonuses", self.bonus)):
            for record, _, _ in in_order(inputs, stream):
                if record.sensor is None:
                    # Both steps that read the stream lack the key.
                    letters += [("limits", "check"), ("limits", "judge")]
                elif stream == "limits":
                    state[record.sensor] = record.limit
                else:
                    state[record.sensor] = state.get(record.sensor, 0) + record.bonus
        for reading, _, _ in in_order(inputs, "readings"):
            out["copy"].append((reading.origin, reading.sensor, reading.value))
            if reading.sensor is None:
                letters.append(("readings", "seen"))
            else:
                self.seen[reading.sensor] += 1
                out["seen"].append((reading.sensor, self.seen[reading.sensor]))
            self._used(reading, out)
        return out

    def _used(self, reading: Reading, out: dict[str, list[tuple[Any, ...]]]) -> None:
        letters = out["dead-letters"]
        value = reading.value
        if value == BAD_FOR_FILTER:
            letters.append(("readings", "transform/used"))
        if value == BAD_FOR_FILTER or value % 7 == 0:
            return
        if value in (BAD_FOR_MAP, BAD_FOR_SPLIT):
            step = "doubled" if value == BAD_FOR_MAP else "split"
            letters.append(("readings", f"transform/{step}"))
            return
        for part in range(2 * value % 3):
            if reading.sensor is None:
                letters.append(("readings", "check"))
            else:
                self._check(reading.sensor, 2 * value + part, out)

    def _check(self, sensor: int, value: int, out: dict[str, list[tuple[Any, ...]]]) -> None:
        if sensor not in self.limit:
            out["quiet"].append((sensor, value))
            return
        if value == BAD_FOR_STEP * 2:
            out["dead-letters"].append(("readings", "check"))
            return
        limit = self.limit[sensor] + self.bonus.get(sensor, 0)
        if value > limit:
            out["alerts"].append((sensor, value, limit))
            self.thirds[sensor % 3] += 1
            out["thirds"].append((sensor % 3, self.thirds[sensor % 3]))
            out["verdicts"].append((sensor, value, value > 2 * self.limit[sensor]))


def in_order(inputs: Inputs, stream: str) -> list[tuple[Any, str, int]]:
    """A stream's records by partition and place."""
    runs = sorted(inputs.get(stream, ()), key=lambda run: run[0])
    return [(record, partition, place) for partition, records in runs for place, record in enumerate(records)]


def by_first_field(records: list[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Records by key (for the copy: by origin), whose order is promised; that between keys is not."""
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for record in records:
        found[record[0]].append(record)
    return found


SENSORS = st.none() | st.integers(0, 6)
VALUES = st.integers(0, 60) | st.sampled_from([BAD_FOR_FILTER, BAD_FOR_MAP, BAD_FOR_SPLIT, BAD_FOR_STEP])


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, list[tuple[str, list[Any]]]]:
    """A micro-batch: each stream brings up to three runs from up to two partitions."""
    found: dict[str, list[tuple[str, list[Any]]]] = {}
    partitions = draw(st.lists(st.sampled_from("ab"), max_size=3))
    found["readings"] = [
        (name, [Reading(name, *pair) for pair in draw(st.lists(st.tuples(SENSORS, VALUES), min_size=1))])
        for name in partitions
    ]
    limits = st.builds(Limit, SENSORS, st.integers(0, 50))
    bonuses = st.builds(Bonus, st.integers(0, 6), st.integers(-5, 5))
    for name, strategy in (("limits", limits), ("bonuses", bonuses)):
        found[name] = [
            (place, draw(st.lists(strategy, min_size=1, max_size=6)))
            for place in draw(st.lists(st.sampled_from("xy"), max_size=2))
        ]
    return found


@given(
    batches=st.lists(inputs(), min_size=1, max_size=3),
    partitions=st.integers(1, 4),
    key_groups=st.sampled_from([1, 2, 7, 16]),
    seed=st.integers(0, 1000),
    block_bytes=st.sampled_from([1, 1_000, 8 << 20]),
)
def test_a_job_computes_what_a_plain_fold_computes(
    batches: list[Inputs], partitions: int, key_groups: int, seed: int, block_bytes: int
) -> None:
    """Every key has the same records in the same order, batch by batch, for any number of tasks and key groups.

    How large the blocks are in which emitted records travel on does not matter either.
    """
    job = BatchRunner(make_job(key_groups), parallelism=partitions)
    reference = Reference()
    for batch in batches:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(level, "_BLOCK_BYTES", block_bytes)
            result = job.run(batch, seed=seed)
        expected = reference.run(batch)
        for sink in ("copy", "alerts", "quiet", "seen", "thirds", "verdicts"):
            found = by_first_field(map(dataclasses.astuple, result.output(sink)))
            assert found == by_first_field(expected[sink]), sink
        letters = sorted((letter.stream, letter.step) for letter in result.dead_letters)
        assert letters == sorted(expected["dead-letters"])
        assert result.counts("out") == {name: len(written.records) for name, written in result.sinks.items()}


@given(
    batches=st.lists(inputs(), min_size=1, max_size=3),
    partitions=st.integers(1, 4),
    seeds=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)
# A row that was loaded shares its memory with others, and one that was kept does not.
@example(
    batches=[
        {"bonuses": [("x", [Bonus(0, 0), Bonus(1, 0), Bonus(4, 0), Bonus(6, 0)])]},
        {"bonuses": [("x", [Bonus(0, 0)])]},
    ],
    partitions=1,
    seeds=(0, 0),
)
def test_a_replay_gives_the_same_bytes(
    batches: list[Inputs], partitions: int, seeds: tuple[int, int]
) -> None:
    """Whatever order the shuffle delivers, every sink gets the same bytes and every key group the same state."""
    job = BatchRunner(
        make_job(8), parallelism=partitions, keyed_sinks=["alerts", "thirds"], raw_streams=["readings"]
    )
    for batch in batches:
        again = job.copy()
        first, second = job.run(batch, seed=seeds[0]), again.run(batch, seed=seeds[1])
        assert first.data == second.data
        assert first.reports == second.reports
        assert job.states == again.states
