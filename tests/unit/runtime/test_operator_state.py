"""Operator state: lists of steps without a key equal plain Python, over tasks, rescaling and both forms of
code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

import penstock as ps
from penstock.errors import StateError
from penstock.state.key_groups import key_groups
from penstock.state.parts import part_of
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import rescale_runner

KEY_GROUPS = 8
SOURCES = ["a", "b", "c", "d", "e"]


@dataclass
class Reading:
    number: int


@dataclass
class Limit:
    size: int


@dataclass
class Gathered:
    part: int
    numbers: list[int]


class Gather(ps.ConnectedProcessFunction):
    """Emits the numbers of a part once there are enough; raises at multiples of 7 after adding them."""

    side_outputs: ClassVar[dict[str, Any]] = {"single": Gathered}
    waiting = ps.OperatorListState(int)
    size = ps.Setting(int, 3)
    limits = ps.BroadcastState(str, int)

    def process_control(self, limit: Limit, ctx: ps.Context) -> None:
        self.limits.put("size", limit.size)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Gathered]:
        assert ctx.key is None
        if reading.number == 99:
            ctx.side_output("single", Gathered(ctx.key_group, [99]))
        found = self._added(reading.number)
        if found is not None:
            yield Gathered(ctx.key_group, found)

    def _added(self, number: int) -> list[int] | None:
        """Add a number; return the numbers of the part if there are enough."""
        self.waiting.add(number)
        if number % 7 == 0:
            raise ValueError("it was to")
        if len(self.waiting) < (self.limits.get("size") or self.size.get()):
            return None
        found = self.waiting.get()
        self.waiting.clear()
        return found

    @ps.on_command("flush", scope="step")
    def flush(self, payload: bool, ctx: ps.CommandContext) -> Iterator[Gathered]:
        for part in ctx.parts():
            assert ctx.key is None
            assert part == ctx.key_group
            yield Gathered(part, self.waiting.get())
            ctx.reply(len(self.waiting))
            self.waiting.set([])
            if payload:
                raise ValueError("after all")


class GatherInBulk(Gather):
    """The same for all records of a call at once."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        assert ctx.key_indices.tolist() == [0] * records.num_rows
        assert ctx.keys.to_pylist() == [None]
        found, rows = [], []
        for row, number in enumerate(records.column("number").to_pylist()):
            if number == 99:
                single = Gathered(ctx.key_group, [99])
                batch = pa.RecordBatch.from_pylist([dataclasses.asdict(single)])
                ctx.side_output("single", batch, np.array([row]))
            enough = self._added(number)
            if enough is not None:
                found.append(Gathered(ctx.key_group, enough))
                rows.append(row)
        if not found:
            return None
        emitted = pa.RecordBatch.from_pylist([dataclasses.asdict(one) for one in found])
        return emitted, np.array(rows)


def gathering(function: Gather) -> ps.Job:
    job = ps.Job("gathering", key_groups=KEY_GROUPS)
    limits = job.control_stream("limits", schema=Limit).broadcast()
    readings = job.data_stream("readings", schema=Reading)
    step = readings.connect(limits).process("gather", function, output=Gathered)
    step.sink_to("gathered")
    step.side_output("single").sink_to("single")
    return job


def command(number: int, kind: str, payload: Any, key: Any = None) -> bytes:
    return command_to("gather", kind, payload, key=key, id=str(number))


@dataclass
class Batch:
    """A micro-batch, and the number of tasks with which the job is restarted before it (0: no restart)."""

    readings: dict[str, list[int]]
    limit: int | None
    size: int | None
    flush: bool
    tasks: int

    def inputs(self, number: int) -> dict[str, Any]:
        sent = [command(3 * number, "set", {"size": self.size})] if self.size else []
        sent += [command(3 * number + 1, "flush", payload=False)] if self.flush else []
        return {
            **commands(*sent),
            "limits": [("l", [Limit(self.limit)])] if self.limit else [],
            "readings": [(s, list(map(Reading, numbers))) for s, numbers in self.readings.items()],
        }


class Plain:
    """The step in plain Python."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[int]] = {}
        self.size = 3
        self.limit: int | None = None

    def run(self, batch: Batch) -> list[Gathered]:
        emitted = []
        self.size = batch.size or self.size
        if batch.flush:
            emitted += [Gathered(part, found) for part, found in sorted(self.waiting.items()) if found]
            self.waiting.clear()
        self.limit = batch.limit or self.limit
        for source in sorted(batch.readings):
            part = part_of("readings", source, KEY_GROUPS)
            for number in batch.readings[source]:
                held = self.waiting.setdefault(part, [])
                if number % 7:
                    held.append(number)
                    if len(held) >= (self.limit or self.size):
                        emitted.append(Gathered(part, self.waiting.pop(part)))
        return emitted


def by_part(records: list[Gathered]) -> dict[int, list[list[int]]]:
    found: dict[int, list[list[int]]] = {}
    for record in records:
        found.setdefault(record.part, []).append(record.numbers)
    return found


BATCHES = st.lists(
    st.builds(
        Batch,
        st.dictionaries(st.sampled_from(SOURCES), st.lists(st.integers(1, 20), min_size=1, max_size=6)),
        st.sampled_from([None, None, None, 2, 4]),
        st.sampled_from([None, None, None, 1, 5]),
        st.sampled_from([False, False, True]),
        st.sampled_from([0, 0, 1, 2, 3, 4]),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("function", [Gather, GatherInBulk])
@examples(15)
@given(batches=BATCHES, seed=st.integers(0, 3), tasks=st.integers(1, 4))
def test_parts_hold_what_plain_python_holds(
    function: type[Gather], batches: list[Batch], seed: int, tasks: int
) -> None:
    """Commands, settings, broadcast control and failing records are included, over restarts with any number
    of tasks.
    """
    job = gathering(function())
    running = BatchRunner(job, parallelism=tasks)
    plain = Plain()
    for number, batch in enumerate(batches):
        if batch.tasks:
            running = rescale_runner(running, batch.tasks)
        result = run_and_replay(running, batch.inputs(number), seed=seed)
        assert by_part(result.output("gathered")) == by_part(plain.run(batch))
        bad = [n for numbers in batch.readings.values() for n in numbers if n % 7 == 0]
        assert len(result.dead_letters) == len(bad)


@pytest.mark.parametrize("function", [Gather, GatherInBulk])
@pytest.mark.parametrize("tasks", [1, 3])
def test_commands_to_the_step_reach_every_part(function: type[Gather], tasks: int) -> None:
    """A handler visits all parts; when it raises, that task's parts are rolled back."""
    job = BatchRunner(gathering(function()), parallelism=tasks)
    first = job.run({"readings": [(source, [Reading(1), Reading(99)]) for source in SOURCES]})
    parts = sorted({part_of("readings", source, KEY_GROUPS) for source in SOURCES})
    assert sorted(r.part for r in first.output("single")) == sorted(
        part_of("readings", source, KEY_GROUPS) for source in SOURCES
    )
    failed = job.run(commands(command(1, "flush", payload=True)))
    assert failed.receipts[-1].status == "DEGRADED"
    assert not failed.output("gathered")
    result = job.run(commands(command(2, "flush", payload=False)))
    assert [r.part for r in result.output("gathered")] == parts
    replies = msgspec.json.decode(result.receipts[-1].details)
    assert [part for part, _ in replies] == parts
    again = job.run(commands(command(3, "flush", payload=False)))
    assert not again.output("gathered")


@pytest.mark.parametrize(
    ("kind", "payload", "key", "reason"),
    [
        ("flush", False, 1, "'flush' is for step"),
        ("set", {"waiting": [1]}, 1, "'set' is for step"),
        ("set", {"waiting": [1]}, "*", "'set' is for step"),
        ("set", {"waiting": [1]}, None, "no setting 'waiting'; it has size, limits"),
    ],
)
def test_no_command_is_for_keys_that_are_none(kind: str, payload: Any, key: Any, reason: str) -> None:
    """The refusal names the valid targets."""
    job = BatchRunner(gathering(Gather()))
    receipt = job.run(commands(command(1, kind, payload, key))).receipts[-1]
    assert receipt.status == "REJECTED"
    assert reason.removesuffix(", limits") in receipt.reason


class Misused(ps.ProcessFunction):
    """Uses features that a step without a key lacks."""

    waiting = ps.OperatorListState(int)

    def __init__(self, use: str) -> None:
        self.use = use

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> None:
        if self.use == "columns":
            self.waiting.columns()
        self.waiting.put(ctx.key_indices, [[1]])

    @ps.on_command("misuse", scope="step")
    def misuse(self, payload: None, ctx: ps.CommandContext) -> None:
        if self.use == "state":
            self.waiting.add(1)
        list(ctx.keys())


def misused(use: str) -> BatchOutcome:
    job = ps.Job("misusing")
    job.data_stream("readings", schema=Reading).process("gather", Misused(use))
    running = BatchRunner(job)
    records = {} if use in ("state", "keys") else {"readings": [("a", [Reading(1)])]}
    return running.run({**records, **commands(command(1, "misuse", None))})


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("columns", "'waiting' is a single list, not a column. Use get, add"),
        ("put", "'waiting' is a single list, not a column. Use get, add"),
        (
            "state",
            "'waiting' belongs to single parts, but this code runs for the whole step. Use it inside a loop",
        ),
        ("keys", "ctx.keys() is for steps with a key; this one has parts, see ctx.parts()"),
    ],
)
def test_misuse_is_told_with_the_remedy(use: str, reason: str) -> None:
    """It is a dead letter."""
    letters = misused(use).dead_letters
    assert any(StateError.__name__ in letter.reason and reason in letter.reason for letter in letters)


class PartsOfKeys(ps.ProcessFunction):
    def process_record(self, reading: Reading, ctx: ps.Context) -> None:
        ctx.parts()


def test_a_step_with_a_key_has_no_parts() -> None:
    """The message names the alternative."""
    job = ps.Job("misusing")
    job.data_stream("readings", schema=Reading).key_by("number").process("step", PartsOfKeys())
    (letter,) = BatchRunner(job).run({"readings": [("a", [Reading(1)])]}).dead_letters
    assert "this one has keys, see ctx.keys()" in letter.reason


class Passing(ps.ProcessFunction):
    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Reading]:
        yield reading

    @ps.on_command("emit", scope="step")
    def emit(self, payload: int, ctx: ps.CommandContext) -> Iterator[Reading]:
        yield Reading(payload)


class Keeping(ps.ProcessFunction):
    """Emits all numbers of the part so far."""

    numbers = ps.OperatorListState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Gathered]:
        self.numbers.add(reading.number)
        yield Gathered(ctx.key_group, self.numbers.get())


def kept(count: int) -> dict[str, list[Gathered]]:
    """Return the last output of each part, for steps chained after a keyed step, with this many tasks."""
    job = ps.Job("chain", key_groups=KEY_GROUPS)
    passed = job.data_stream("readings", schema=Reading).key_by("number").process("pass", Passing())
    first = passed.map(lambda r: r, output=Reading).process("first", Keeping())
    first.sink_to("first")
    first.map(lambda g: Reading(g.numbers[-1]), output=Reading).process("second", Keeping()).sink_to("second")
    running = BatchRunner(job, parallelism=count)
    found: dict[str, list[Gathered]] = {"first": [], "second": []}
    for number in range(3):
        readings = [Reading(n) for n in range(10 * number, 10 * number + 10)]
        emit = commands(command_to("pass", "emit", 1000 + number))
        result = running.run({"readings": [("a", readings)], **emit}, seed=number)
        for sink, so_far in found.items():
            so_far += result.output(sink)
    return found


def test_behind_a_step_the_key_group_is_the_place() -> None:
    """This holds for any number of tasks, and for the output of commands."""
    alone = kept(1)
    expected: dict[int, list[int]] = {}
    for number in range(3):
        numbers = np.arange(10 * number, 10 * number + 10)
        places = [0, *key_groups(pa.array(numbers), KEY_GROUPS).tolist()]
        for place, value in sorted(
            zip(places, [1000 + number, *numbers.tolist()], strict=True), key=lambda pair: pair[0]
        ):
            expected.setdefault(part_of("pass", f"{place:05d}", KEY_GROUPS), []).append(value)
    last = {told.part: told.numbers for told in alone["first"]}
    assert {part: sorted(numbers) for part, numbers in last.items()} == {
        part: sorted(numbers) for part, numbers in expected.items()
    }
    for count in (2, 3, 4):
        told = kept(count)
        for sink, records in alone.items():
            assert by_part(told[sink]) == by_part(records)


def test_sinks_see_no_keys_of_parts() -> None:
    """A sink that wants keys gets none from a step without a key."""
    job = gathering(Gather())
    running = BatchRunner(job, keyed_sinks=["gathered"], parallelism=2)
    result = running.run({"readings": [("a", [Reading(1), Reading(2), Reading(3)])]})
    assert result.output("gathered") == [Gathered(part_of("readings", "a", KEY_GROUPS), [1, 2, 3])]
    assert result.sinks["gathered"].keys == [None]
