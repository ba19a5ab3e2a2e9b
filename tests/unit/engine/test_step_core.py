"""The step core: control before data, the same result for any order of blocks, and keys of any kind."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbers_step import KEYS, NUMBERS, Number, Rule, numbers_in
from property_examples import examples
from step_bench import StepBench, Stream, fingerprint
from step_support import group_state, run_group

import penstock as ps
from penstock.errors import StateError
from penstock.operators.functions import output_type


@dataclass
class Said:
    key: int
    text: str


class Teller(ps.ConnectedProcessFunction):
    """Emits for each number the rule it knows so far; raises for some numbers."""

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
    """The model in plain Python: the main output, the side output, and the records to blame."""
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


RULES = st.dictionaries(
    st.sampled_from(["a", "b"]), st.lists(st.builds(Rule, KEYS, st.integers(-1, 3)), max_size=4)
)


@examples(60)
@given(rules=RULES, blocks=RULES, numbers=NUMBERS, seed=st.integers(0, 5))
def test_any_order_of_blocks_gives_the_fold(rules: Any, blocks: Any, numbers: Any, seed: int) -> None:
    """Control comes first, streams in order; a record that raises leaves only its dead letter."""
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
    # The stored state equals the model's, and the next micro-batch finds it.
    for stream in streams:
        stream.partitions = {"a": [Number(key, 2) for key in range(4)]} if stream.name == "numbers" else {}
    assert bench.emitted(bench.run()) == fold(streams, model)[0]


class Summer(ps.ProcessFunction):
    """Sums per key, in columns; raises for 13 after it has changed the sum."""

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
    """When a vectorised function raises, the batch is halved until the culprits stand alone."""
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
    """User code sees the key, whatever it is made of, and state belongs to it, also after a reload."""
    stream = Stream("pairs", Pair, key=key, partitions={"a": [Pair(1, "a"), Pair(1, "bb"), Pair(1, "a")]})
    bench = StepBench(Seen(), [stream], {"": Said})
    assert [said.text for _, said in bench.emitted(bench.run())] == texts
    again = [said.text for _, said in bench.emitted(bench.run())]
    assert [text.rsplit(" ", 1)[1] for text in again] == ["3", "2", "4"]


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
    """State belongs to the pair of fields, over several micro-batches."""
    pairs = [Pair(1, "a"), Pair(1, "b"), Pair(1, "a"), Pair(2, "a")]
    stream = Stream("pairs", Pair, key=("left", "right"), partitions={"a": pairs})
    bench = StepBench(PairCounter(), [stream], {"": Said})
    assert [said.text for _, said in bench.emitted(bench.run())] == ["2", "1", "2", "1"]
    result = bench.run()
    assert [said.text for _, said in bench.emitted(result)] == ["4", "2", "4", "2"]
    assert bench.keys == 3


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
    """Keeps state and emits nothing."""

    total = ps.ValueState(int)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> None:
        self.total.put(ctx.key_indices, records.column("value").to_numpy())


def test_a_vectorised_function_may_emit_nothing() -> None:
    """A vectorised function annotated with `-> None` emits nothing."""
    assert output_type(Silent(), None, "silent") is None
    stream = numbers_in([Number(1, 5)])
    bench = StepBench(Silent(), [stream], {})
    bench.run()
    assert bench.keys == 1
