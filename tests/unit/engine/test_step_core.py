"""The step core: control before data, the same result for any order of blocks, and errors that cost one record."""

from __future__ import annotations

import dataclasses
import decimal
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from step_bench import StepBench, Stream, fingerprint
from step_support import group_state, run_group

import penstock as ps
from penstock.errors import StateError
from penstock.operators.functions import output_type
from penstock.operators.record_blocks import RAW


@dataclass
class Number:
    key: int
    value: int


@dataclass
class Rule:
    key: int
    factor: int


@dataclass
class Said:
    key: int
    text: str


class Teller(ps.ConnectedProcessFunction):
    """Tells for each number what it knows by then; raises for some."""

    side_outputs: ClassVar = {"odd": Number}
    factor = ps.ValueState(int)
    blocked = ps.ValueState(bool)
    total = ps.ValueState(int)

    def process_control(self, rule: Rule, ctx: ps.Context) -> Iterator[Said]:
        if ctx.stream == "blocks":
            self.blocked.set(True)
        else:
            self.factor.set(rule.factor)
        if rule.factor == -1:
            raise ValueError(f"no factor for {rule.key}")
        yield Said(rule.key, f"{ctx.stream} {rule.factor}")

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Said]:
        self.total.set((self.total.get() or 0) + number.value)
        if self.blocked.get():
            return
        if number.value % 2:
            ctx.side_output("odd", number)
        yield Said(number.key, f"{self.factor.get()} {self.total.get()}")
        if number.value == 13:
            raise ValueError("thirteen")
        if number.value == 14:
            self.total.clear()


def fold(
    bench: list[Stream], model: dict[str, dict[int, Any]]
) -> tuple[list[Any], list[Any], list[tuple[str, str, int]]]:
    """The same in plain Python: what is said, what is odd, and who is to blame."""
    said: list[Any] = []
    odd: list[Any] = []
    blamed: list[tuple[str, str, int]] = []
    for stream in bench:
        for partition in sorted(stream.partitions):
            for offset, record in enumerate(stream.partitions[partition]):
                if isinstance(record, Rule):
                    if record.factor == -1:
                        blamed.append((stream.name, partition, offset))
                        continue
                    kind = "blocked" if stream.name == "blocks" else "factor"
                    model[kind][record.key] = True if kind == "blocked" else record.factor
                    said.append((record.key, Said(record.key, f"{stream.name} {record.factor}")))
                    continue
                total = (model["total"].get(record.key) or 0) + record.value
                if record.value == 13 and not model["blocked"].get(record.key):
                    blamed.append((stream.name, partition, offset))
                    continue
                model["total"][record.key] = total
                if model["blocked"].get(record.key):
                    continue
                if record.value % 2:
                    odd.append((record.key, record))
                said.append((record.key, Said(record.key, f"{model['factor'].get(record.key)} {total}")))
                if record.value == 14:
                    del model["total"][record.key]
    return said, odd, blamed


KEYS = st.integers(0, 3)
PARTITIONS = st.sampled_from(["a", "b"])
NUMBERS = st.dictionaries(PARTITIONS, st.lists(st.builds(Number, KEYS, st.integers(0, 15)), max_size=12))
RULES = st.dictionaries(PARTITIONS, st.lists(st.builds(Rule, KEYS, st.integers(-1, 3)), max_size=4))


@examples(60)
@given(rules=RULES, blocks=RULES, numbers=NUMBERS, seed=st.integers(0, 5))
def test_any_order_of_blocks_gives_the_fold(rules: Any, blocks: Any, numbers: Any, seed: int) -> None:
    """Controls come first, streams in order, and what raises leaves no trace but its dead letter."""
    streams = [
        Stream("rules", Rule, is_control=True, partitions=rules),
        Stream("blocks", Rule, is_control=True, partitions=blocks),
        Stream("numbers", Number, partitions=numbers),
    ]
    outputs = {"": Said, "odd": Number}
    bench, straight = StepBench(Teller(), streams, outputs), StepBench(Teller(), streams, outputs)
    model: dict[str, dict[int, Any]] = {"factor": {}, "blocked": {}, "total": {}}
    result = bench.run(seed, cut=True)
    assert fingerprint(result) == fingerprint(straight.run())
    said, odd, blamed = fold(streams, model)
    assert bench.emitted(result) == said
    assert bench.emitted(result, "odd") == odd
    assert [(letter.stream, letter.partition, letter.offset) for letter in result.dead_letters] == blamed
    for letter in result.dead_letters:
        assert letter.raw == f"{letter.stream}/{letter.partition}/{letter.offset}".encode()
        assert letter.step == "step"
        assert "ValueError: no factor" in letter.reason or "ValueError: thirteen" in letter.reason
        assert "step.py" not in letter.reason.replace("test_step_core.py", ""), (
            "penstock's own frames help nobody"
        )
    held = {key for values in model.values() for key in values}
    assert bench.keys == len(held)
    # The state is what the model holds, as the next micro-batch finds it.
    for stream in streams:
        stream.partitions = {"a": [Number(key, 2) for key in range(4)]} if stream.name == "numbers" else {}
    assert bench.emitted(bench.run()) == fold(streams, model)[0]


class Emitter(ps.ProcessFunction):
    """Emits whatever its record asks for."""

    side_outputs: ClassVar = {"odd": Number}
    seen = ps.ValueState(int)

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Any]:
        self.seen.set((self.seen.get() or 0) + 1)
        if number.value == 1:
            ctx.side_output("even", number)
        if number.value == 2:
            yield Number(number.key, "two")  # type: ignore[arg-type]
        if number.value == 3:
            ctx.side_output("odd", Number(2**70, 3))
        if number.value == 4:
            yield "a word"
        yield Number(number.key, self.seen.get() or 0)


def test_what_does_not_fit_the_output_is_a_dead_letter() -> None:
    """An emitted record of a wrong type costs itself; an undeclared side output the whole record."""
    values = [0, 1, 2, 3, 4, 0]
    stream = Stream("numbers", Number, partitions={"a": [Number(5, value) for value in values]})
    bench = StepBench(Emitter(), [stream], {"": Number, "odd": Number})
    result = bench.run()
    # The record with the undeclared side output is undone, so the count goes on without it.
    assert [record.value for _, record in bench.emitted(result)] == [1, 2, 3, 4, 5]
    reasons = {letter.offset: letter.reason for letter in result.dead_letters}
    assert sorted(reasons) == [1, 2, 3, 4]
    assert "the side output 'even' is not declared; declared are: odd" in reasons[1]
    assert "'two'" in reasons[2]
    assert "key" in reasons[3]
    assert "does not fit Number" in reasons[4]


@dataclass
class Limits:
    low: int
    high: float


class Keeper(ps.ProcessFunction):
    """Keeps what cannot always be kept."""

    count = ps.ValueState(int)
    name = ps.ValueState(str)
    price = ps.ValueState(decimal.Decimal)
    limits = ps.ValueState(Limits)
    tags = ps.ValueState(list[int])

    bad: ClassVar[dict[str, Any]] = {
        "count": 2**63,
        "name": "\ud800",
        "price": decimal.Decimal("1e40"),
        "limits": Limits("low", 1.0),  # type: ignore[arg-type]
        "tags": [1, 2**64],
    }
    good: ClassVar[dict[str, Any]] = {
        "count": 2**63 - 1,
        "name": "n",
        "price": decimal.Decimal(1),
        "limits": Limits(1, 1.0),
        "tags": [1],
    }

    def __init__(self, state: str) -> None:
        self.state = state

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        state = getattr(self, self.state)
        yield number
        state.set(self.bad[self.state] if number.value == 3 else self.good[self.state])


@pytest.mark.parametrize("state", sorted(Keeper.bad))
def test_a_value_that_cannot_be_stored_costs_its_record(state: str) -> None:
    """Python's values may lie outside what a column can hold; the record that set one becomes a dead letter."""
    numbers = [Number(key, value) for value in (1, 3, 5) for key in (1, 2)] + [Number(9, 3)]
    bench = StepBench(Keeper(state), [Stream("numbers", Number, partitions={"a": numbers})], {"": Number})
    result = bench.run()
    assert [letter.offset for letter in result.dead_letters] == [2, 3, 6]
    assert all(f"the state {state!r} cannot hold" in letter.reason for letter in result.dead_letters)
    assert [record.value for _, record in bench.emitted(result)] == [1, 1, 5, 5]
    assert bench.keys == 2
    group = group_state(bench.core, 7, bench.stored)
    assert [group.columns[state].load(key) for key in (1, 2, 9)] == [Keeper.good[state]] * 2 + [None]


class ColumnKeeper(ps.ProcessFunction):
    """The same for columns: keeps names, of which some cannot be kept."""

    name = ps.ValueState(str)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        values = records.column("value").to_numpy()
        names = np.array(["\ud800" if value == 3 else f"n{value}" for value in values], object)
        self.name.put(ctx.key_indices, names)
        return records


def test_columns_that_cannot_be_stored_cost_their_records() -> None:
    """Also in the vectorised form exactly the culprits are found."""
    numbers = [Number(key, value) for value in (1, 3, 5) for key in (1, 2)] + [Number(9, 3)]
    stream = Stream("numbers", Number, partitions={"a": numbers})
    bench = StepBench(ColumnKeeper(), [stream], {"": Number})
    result = bench.run()
    assert [letter.offset for letter in result.dead_letters] == [2, 3, 6]
    assert [record.value for _, record in bench.emitted(result)] == [1, 1, 5, 5]
    group = group_state(bench.core, 7, bench.stored)
    assert [group.columns["name"].load(key) for key in (1, 2, 9)] == ["n5", "n5", None]


class Summer(ps.ProcessFunction):
    """Sums per key, in columns; refuses thirteen when it has summed already."""

    total = ps.ValueState(int)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> tuple[pa.RecordBatch, Any]:
        values = records.column("value").to_numpy()
        totals = self.total.columns().values.copy()
        np.add.at(totals, ctx.key_indices, values)
        used = np.unique(ctx.key_indices)
        self.total.put(used, totals[used])
        if (values == 13).any():
            raise ValueError("thirteen")
        even = np.flatnonzero(values % 2 == 0)
        return records.take(pa.array(even)), even


@given(numbers=NUMBERS, seed=st.integers(0, 3))
def test_columns_isolate_the_culprits_too(numbers: Any, seed: int) -> None:
    """A vectorised function that raises is given halves until the records to blame stand alone."""
    stream = Stream("numbers", Number, partitions=numbers)
    bench = StepBench(Summer(), [stream], {"": Number})
    result = bench.run(seed, cut=True)
    everything = [(p, i, n) for p in sorted(numbers) for i, n in enumerate(numbers[p])]
    assert [(x.partition, x.offset) for x in result.dead_letters] == [
        (p, i) for p, i, n in everything if n.value == 13
    ]
    good = [n for _, _, n in everything if n.value != 13]
    assert bench.emitted(result) == [(n.key, n) for n in good if n.value % 2 == 0]
    group = group_state(bench.core, 7, bench.stored)
    for key in {n.key for n in good}:
        assert group.columns["total"].load(key) == sum(n.value for n in good if n.key == key)


@dataclass
class Pair:
    left: int
    right: str


class Seen(ps.ProcessFunction):
    times = ps.ValueState(int)

    def process_record(self, pair: Pair, ctx: ps.Context) -> Iterator[Said]:
        self.times.set((self.times.get() or 0) + 1)
        yield Said(pair.left, f"{ctx.key} {ctx.key_group} {self.times.get()}")


def length_of(pair: Pair) -> int:
    """A computed key."""
    return len(pair.right)


def both(pair: Pair) -> tuple[str, int]:
    """A key of two parts."""
    return pair.right, pair.left


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


def size(pair: Pair) -> Size | None:
    """An enumeration, kept as its value."""
    return Size.SMALL if len(pair.right) == 1 else Size.LARGE


def is_short(pair: Pair) -> bool:
    """A truth value, kept as an integer."""
    return len(pair.right) == 1


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        (("left", "right"), ["(1, 'a') 7 1", "(1, 'bb') 7 1", "(1, 'a') 7 2"]),
        (("right",), ["a 7 1", "bb 7 1", "a 7 2"]),
        ((length_of,), ["1 7 1", "2 7 1", "1 7 2"]),
        ((both,), ["('a', 1) 7 1", "('bb', 1) 7 1", "('a', 1) 7 2"]),
        ((size,), ["small 7 1", "large 7 1", "small 7 2"]),
        ((is_short,), ["1 7 1", "0 7 1", "1 7 2"]),
    ],
)
def test_keys_of_several_fields_text_and_functions(key: Any, texts: list[str]) -> None:
    """Whatever makes the key, user code sees it, and state belongs to it, also after a reload."""
    stream = Stream("pairs", Pair, key=key, partitions={"a": [Pair(1, "a"), Pair(1, "bb"), Pair(1, "a")]})
    bench = StepBench(Seen(), [stream], {"": Said})
    assert [said.text for _, said in bench.emitted(bench.run())] == texts
    again = [said.text for _, said in bench.emitted(bench.run())]
    assert [text.rsplit(" ", 1)[1] for text in again] == ["3", "2", "4"]


def test_state_of_another_shape_is_refused() -> None:
    """The error names the step, the state, and what is declared and found."""

    class Renamed(ps.ProcessFunction):
        times = ps.ValueState(str)

        def process_record(self, pair: Pair, ctx: ps.Context) -> None: ...

    stream = Stream("pairs", Pair, key=("left",), partitions={"a": [Pair(1, "a")]})
    bench = StepBench(Seen(), [stream], {"": Said})
    bench.run()
    other = StepBench(Renamed(), [stream], {})
    with pytest.raises(StateError, match="'times' is declared as string, and int64 is stored"):
        run_group(other.core, 7, other.blocks(), bench.stored)


class Silent(ps.ProcessFunction):
    """Only keeps."""

    total = ps.ValueState(int)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> None:
        self.total.put(ctx.key_indices, records.column("value").to_numpy())


def test_a_vectorised_function_may_emit_nothing() -> None:
    """`-> None` says so."""
    assert output_type(Silent(), None, "silent") is None
    stream = Stream("numbers", Number, partitions={"a": [Number(1, 5)]})
    bench = StepBench(Silent(), [stream], {})
    bench.run()
    assert bench.keys == 1


class Cautious(Keeper):
    """Catches what it is told about values that cannot be kept."""

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        try:
            self.count.set(2**63 if number.value == 3 else number.value)
        except StateError:
            yield number


class CautiousColumns(ps.ProcessFunction):
    """The same for columns."""

    name = ps.ValueState(str)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch | None:
        names = np.array(
            ["\ud800" if value == 3 else "n" for value in records.column("value").to_numpy()], object
        )
        try:
            self.name.put(ctx.key_indices, names)
        except StateError:
            return records
        return None


@pytest.mark.parametrize("function", [Cautious("count"), CautiousColumns()])
def test_a_function_may_go_on_without_the_value(function: ps.ProcessFunction) -> None:
    """User code that catches the error leaves the state as it was."""
    stream = Stream("numbers", Number, partitions={"a": [Number(1, 1)]})
    bench = StepBench(function, [stream], {"": Number})
    bench.run()
    before = bench.stored
    stream.partitions = {"a": [Number(1, 3)]}
    result = bench.run()
    assert bench.emitted(result) == [(1, Number(1, 3))]
    assert (result.dead_letters, result.changes) == ([], None)
    assert bench.stored == before


class Controlled(ps.ConnectedProcessFunction):
    """Keeps what it is told by control records, also what cannot be kept; vectorised for data."""

    level = ps.ValueState(int)

    def process_control(self, rule: Rule, ctx: ps.Context) -> Iterator[Number]:
        yield Number(rule.key, rule.factor)
        self.level.set(2**62 * rule.factor)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        levels = self.level.columns().values[ctx.key_indices] // 2**62
        return pa.RecordBatch.from_arrays([records.column("key"), pa.array(levels)], names=["key", "value"])


def test_control_that_cannot_be_stored_costs_the_control_record() -> None:
    """In front of a vectorised function too; data sees what was told before."""
    bench = StepBench(
        Controlled(),
        [
            Stream("rules", Rule, is_control=True, partitions={"a": [Rule(1, 1), Rule(1, 2), Rule(2, 5)]}),
            Stream("numbers", Number, partitions={"a": [Number(1, 0), Number(2, 0)]}),
        ],
        {"": Number},
    )
    result = bench.run()
    assert [(letter.stream, letter.offset) for letter in result.dead_letters] == [("rules", 1), ("rules", 2)]
    assert "the state 'level' cannot hold 9223372036854775808" in result.dead_letters[0].reason
    assert [number.value for _, number in bench.emitted(result)] == [1, 1, 0]


class Adder(ps.ProcessFunction):
    total = ps.ValueState(int)

    def process_record(self, number: Number, ctx: ps.Context) -> list[Number]:
        total = (self.total.get() or 0) + number.value
        self.total.set(total)
        return [Number(number.key, total)]


@given(
    values=st.lists(st.tuples(KEYS, st.sampled_from([0, 1, 2, 2**62])), max_size=15),
    seed=st.integers(0, 3),
)
def test_sums_beyond_int64_cost_exactly_the_records_that_made_them(values: Any, seed: int) -> None:
    """The state goes on from the last sum that could be stored, wherever blocks were cut."""
    stream = Stream("numbers", Number, partitions={"a": [Number(key, value) for key, value in values]})
    bench = StepBench(Adder(), [stream], {"": Number})
    result = bench.run(seed, cut=True)
    sums: dict[int, int] = {}
    blamed, emitted = [], []
    for offset, (key, value) in enumerate(values):
        total = sums.get(key, 0) + value
        if total < 2**63:
            sums[key] = total
            emitted.append((key, Number(key, total)))
        else:
            blamed.append(offset)
    assert [letter.offset for letter in result.dead_letters] == blamed
    assert bench.emitted(result) == emitted
    group = group_state(bench.core, 7, bench.stored)
    assert {key: group.columns["total"].load(key) for key in sums} == sums
    assert fingerprint(result) == fingerprint(StepBench(Adder(), [stream], {"": Number}).run())


@dataclass
class Strict:
    """A record that checks its values."""

    key: int
    value: int

    def __post_init__(self) -> None:
        if self.value == 13:
            raise RuntimeError("\ud800 thirteen")


class Echo(ps.ProcessFunction):
    def process_record(self, record: Strict, ctx: ps.Context) -> Iterator[Number]:
        yield Number(record.key, record.value)


@pytest.mark.parametrize("raw", [True, False])
def test_a_record_that_refuses_its_values_is_a_dead_letter(raw: bool) -> None:
    """Its own class raises, so its bytes come from the columns; the reason is text that can be written."""
    stream = Stream("numbers", Number, partitions={"a": [Number(1, 1), Number(2, 13), Number(3, 3)]})
    blocks = StepBench(Echo(), [stream], {}).blocks()
    if not raw:
        blocks = [dataclasses.replace(b, batch=b.batch.drop_columns([RAW])) for b in blocks]
    strict = StepBench(Echo(), [Stream("numbers", Strict)], {"": Number})
    result, _ = run_group(strict.core, 7, blocks, None)
    assert [number.value for _, number in strict.emitted(result)] == [1, 3]
    (letter,) = result.dead_letters
    assert letter.raw == (b"numbers/a/1" if raw else b'{"key":2,"value":13}')
    assert letter.offset == 1
    assert letter.reason.endswith(r"RuntimeError: \ud800 thirteen")


@dataclass
class Told:
    key: int
    size: Size


class Careless(ps.ProcessFunction):
    """Emits columns that are wrong in the way that the value says, each with the rows that it came from."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> tuple[pa.RecordBatch, Any]:
        values = records.column("value").to_pylist()
        sizes = pa.array([{1: "huge", 2: None}.get(value, "small") for value in values], pa.string())
        rows = np.arange(len(values) + (3 in values))
        if 4 in values:
            rows = rows + 1
        names = ["key", "length" if 5 in values else "size"]
        return pa.RecordBatch.from_arrays([records.column("key"), sizes], names=names), rows


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1, "field 'size' cannot hold a value: 'huge' is not a valid Size"),
        (2, "field 'size' has no value and is not optional"),
        (3, "returned 1 records but the rows of 2"),
        (4, "out of bounds"),
        (5, "returned no column 'size'"),
    ],
)
def test_columns_that_do_not_fit_the_output_cost_their_records(value: int, message: str) -> None:
    """What is emitted in columns is looked at as closely as objects are."""
    stream = Stream("numbers", Number, partitions={"a": [Number(1, 0), Number(2, value), Number(3, 0)]})
    bench = StepBench(Careless(), [stream], {"": Told})
    result = bench.run()
    assert bench.emitted(result) == [(1, Told(1, Size.SMALL)), (3, Told(3, Size.SMALL))]
    (letter,) = result.dead_letters
    assert letter.offset == 1
    assert message in letter.reason


class PairCounter(ps.ProcessFunction):
    """Counts per key of two fields, in columns."""

    times = ps.ValueState(int)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        times = self.times.columns().values.copy()
        np.add.at(times, ctx.key_indices, 1)
        used = np.unique(ctx.key_indices)
        self.times.put(used, times[used])
        return pa.RecordBatch.from_arrays(
            [records.column("left"), pa.array(times[ctx.key_indices]).cast(pa.string())],
            names=["key", "text"],
        )


def test_columns_under_keys_of_two_fields() -> None:
    """State belongs to the pair, over micro-batches."""
    pairs = [Pair(1, "a"), Pair(1, "b"), Pair(1, "a"), Pair(2, "a")]
    stream = Stream("pairs", Pair, key=("left", "right"), partitions={"a": pairs})
    bench = StepBench(PairCounter(), [stream], {"": Said})
    assert [said.text for _, said in bench.emitted(bench.run())] == ["2", "1", "2", "1"]
    result = bench.run()
    assert [said.text for _, said in bench.emitted(result)] == ["4", "2", "4", "2"]
    assert bench.keys == 3


class Distracted(ps.ProcessFunction):
    """Emits values of nested types that are wrong inside."""

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Any]:
        items: dict[int, Any] = {0: [1], 1: [None], 2: [object()], 3: "one"}
        yield Listed(number.key, items[number.value])


@dataclass
class Listed:
    key: int
    items: list[int]


def test_nested_values_that_do_not_fit_are_dead_letters() -> None:
    """Nothing is emitted that the next step could not read."""
    stream = Stream("numbers", Number, partitions={"a": [Number(1, value) for value in (0, 1, 2, 3, 0)]})
    bench = StepBench(Distracted(), [stream], {"": Listed})
    result = bench.run()
    assert bench.emitted(result) == [(1, Listed(1, [1]))] * 2
    assert [letter.offset for letter in result.dead_letters] == [1, 2, 3]
    assert all("field 'items'" in letter.reason for letter in result.dead_letters)
