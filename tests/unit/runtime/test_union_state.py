"""Union list state: each part sees its own items, and after a restore also those of all parts at that time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from encoded_commands import command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from replays import run_and_replay

import penstock as ps
from penstock.state.parts import part_of
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import rescale_runner

KEY_GROUPS = 8
SOURCES = ["a", "b", "c", "d", "e"]
METHODS = ["add", "add_all", "set", "set_none", "clear", "set_seen", "nothing", "raise"]


@dataclass
class Change:
    method: str
    number: int


@dataclass
class Seen:
    part: int
    numbers: list[int]


class Sharing(ps.ProcessFunction):
    """Applies the records' actions, and emits what the part then sees."""

    numbers = ps.UnionListState(int)
    plain = ps.OperatorListState(int)

    def process_record(self, change: Change, ctx: ps.Context) -> Iterator[Seen]:
        yield Seen(ctx.key_group, self._changed(change))

    def _changed(self, change: Change) -> list[int]:
        match change.method:
            case "add" | "raise":
                self.numbers.add(change.number)
            case "unstorable":
                self.numbers.add(2**70)
                return []
            case "add_all":
                self.numbers.add_all([change.number, 0])
            case "set":
                self.numbers.set([change.number])
            case "set_none":
                self.numbers.set(None)
            case "clear":
                self.numbers.clear()
            case "set_seen":
                self.numbers.set(self.numbers.get())
        if change.method == "raise":
            self.numbers.set([5])
            raise ValueError("it was to")
        self.plain.add(change.number)
        assert len(self.numbers) == len(self.numbers.get()) == len(list(self.numbers))
        return self.numbers.get()

    @ps.on_command("tell", scope="step")
    def tell(self, payload: None, ctx: ps.CommandContext) -> None:
        for _ in ctx.parts():
            ctx.reply(self.numbers.get())


class SharingInBulk(Sharing):
    """The same for all records of a call at once."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        told = [self._changed(Change(**row)) for row in records.to_pylist()]
        return pa.RecordBatch.from_pydict(
            {"part": [ctx.key_group] * len(told), "numbers": pa.array(told, pa.list_(pa.int64()))}
        )


@dataclass
class Part:
    """A part in plain Python: its own items, and what it sees."""

    own: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def change(self, change: Change) -> None:
        match change.method:
            case "add":
                self._add([change.number])
            case "add_all":
                self._add([change.number, 0])
            case "set":
                self._set([change.number])
            case "set_none" | "clear":
                self._set([])
            case "set_seen":
                self._set(self.seen)

    def _add(self, items: list[int]) -> None:
        self.own, self.seen = self.own + items, self.seen + items

    def _set(self, items: list[int]) -> None:
        self.own, self.seen = items, items


class Plain:
    """All parts, in plain Python."""

    def __init__(self) -> None:
        self.parts = {part: Part() for part in range(KEY_GROUPS)}

    def restore(self) -> None:
        union = [item for part in self.parts.values() for item in part.own]
        for part in self.parts.values():
            part.seen = union

    def run(self, changes: dict[str, list[Change]]) -> list[Seen]:
        told = []
        for source in sorted(changes):
            number = part_of("changes", source, KEY_GROUPS)
            for change in changes[source]:
                if change.method != "raise":
                    self.parts[number].change(change)
                    told.append(Seen(number, self.parts[number].seen))
        return sorted(told, key=lambda seen: seen.part)


def sharing(function: Sharing) -> ps.Job:
    job = ps.Job("sharing", key_groups=KEY_GROUPS)
    job.data_stream("changes", schema=Change).process("share", function, output=Seen).sink_to("seen")
    return job


CHANGES = st.dictionaries(
    st.sampled_from(SOURCES),
    st.lists(st.builds(Change, st.sampled_from(METHODS), st.integers(1, 99)), min_size=1, max_size=5),
)


@pytest.mark.parametrize("function", [Sharing, SharingInBulk])
@examples(20)
@given(
    batches=st.lists(st.tuples(CHANGES, st.integers(0, 4)), min_size=1, max_size=6), tasks=st.integers(1, 4)
)
def test_parts_see_what_plain_python_says(
    function: type[Sharing], batches: list[tuple[dict[str, list[Change]], int]], tasks: int
) -> None:
    """This holds for any actions, over restores with any number of tasks; a replay gives the same bytes."""
    job = sharing(function())
    running = BatchRunner(job, parallelism=tasks)
    plain = Plain()
    for changes, new_tasks in batches:
        if new_tasks:
            running = rescale_runner(running, new_tasks)
            plain.restore()
        result = run_and_replay(running, {"changes": list(changes.items())}, seed=1)
        assert sorted(result.output("seen"), key=lambda seen: seen.part) == plain.run(changes)
        bad = [c for found in changes.values() for c in found if c.method == "raise"]
        assert len(result.dead_letters) == len(bad)


@pytest.mark.parametrize("function", [Sharing, SharingInBulk])
def test_what_cannot_be_stored_costs_its_record(function: type[Sharing]) -> None:
    """The other items stay."""
    running = BatchRunner(sharing(function()), parallelism=2)
    changes = [Change("add", 1), Change("unstorable", 2), Change("add", 3)]
    result = running.run({"changes": [("a", changes)]})
    assert [seen.numbers for seen in result.output("seen")] == [[1], [1, 3]]
    (letter,) = result.dead_letters
    assert "the state 'numbers' cannot hold" in letter.reason


def test_the_union_grows_by_no_duplicates() -> None:
    """This holds for repeated restores; a part sees other parts' new items only after one."""
    job = sharing(Sharing())
    running = BatchRunner(job, parallelism=2)
    adding = {"changes": [(source, [Change("add", number)]) for number, source in enumerate(SOURCES)]}
    assert [len(seen.numbers) for seen in running.run(adding).output("seen")].count(1) >= 3
    looking = {"changes": [(source, [Change("nothing", 0)]) for source in SOURCES]}
    for tasks in (1, 4, 3):
        running = rescale_runner(running, tasks)
        told = running.run(looking).output("seen")
        assert len(told) == len(SOURCES)
        assert [sorted(seen.numbers) for seen in told] == [[0, 1, 2, 3, 4]] * len(SOURCES)


def test_handlers_see_the_union_of_each_part() -> None:
    """This holds also before the first record after a restore."""
    job = sharing(Sharing())
    running = BatchRunner(job, parallelism=2)
    running.run({"changes": [("a", [Change("add", 1)]), ("b", [Change("add", 2)])]})
    running = rescale_runner(running, 3)
    receipt = running.run(commands(command_to("share", "tell"))).receipts[-1]
    parts = {part_of("changes", "a", KEY_GROUPS): 1, part_of("changes", "b", KEY_GROUPS): 2}
    union = [parts[part] for part in sorted(parts)]
    assert msgspec.json.decode(receipt.details) == [[part, union] for part in sorted(parts)]
