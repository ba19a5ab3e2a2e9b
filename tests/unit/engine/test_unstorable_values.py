"""A value that cannot be stored costs the record that set it; the earlier value stays."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbers_step import KEYS, Number, Rule, numbers_in
from step_bench import StepBench, Stream, fingerprint
from step_support import group_state

import penstock as ps
from penstock.errors import StateError


@dataclass
class Limits:
    low: int
    high: float


class Keeper(ps.ProcessFunction):
    """Sets values, some of which cannot be stored."""

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
    """Python values may exceed the range of a column; the record that set one becomes a dead letter."""
    numbers = [Number(key, value) for value in (1, 3, 5) for key in (1, 2)] + [Number(9, 3)]
    bench = StepBench(Keeper(state), [numbers_in(numbers)], {"": Number})
    result = bench.run()
    assert [letter.offset for letter in result.dead_letters] == [2, 3, 6]
    assert all(f"the state {state!r} cannot hold" in letter.reason for letter in result.dead_letters)
    assert [record.value for _, record in bench.emitted(result)] == [1, 1, 5, 5]
    assert bench.keys == 2
    group = group_state(bench.core, 7, bench.stored)
    assert [group.columns[state].load(key) for key in (1, 2, 9)] == [Keeper.good[state]] * 2 + [None]


class ColumnKeeper(ps.ProcessFunction):
    """The vectorised form: sets names, some of which cannot be stored."""

    name = ps.ValueState(str)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        values = records.column("value").to_numpy()
        names = np.array(["\ud800" if value == 3 else f"n{value}" for value in values], object)
        self.name.put(ctx.key_indices, names)
        return records


def test_columns_that_cannot_be_stored_cost_their_records() -> None:
    """The vectorised form also finds exactly the culprits."""
    numbers = [Number(key, value) for value in (1, 3, 5) for key in (1, 2)] + [Number(9, 3)]
    stream = numbers_in(numbers)
    bench = StepBench(ColumnKeeper(), [stream], {"": Number})
    result = bench.run()
    assert [letter.offset for letter in result.dead_letters] == [2, 3, 6]
    assert [record.value for _, record in bench.emitted(result)] == [1, 1, 5, 5]
    group = group_state(bench.core, 7, bench.stored)
    assert [group.columns["name"].load(key) for key in (1, 2, 9)] == ["n5", "n5", None]


class Cautious(Keeper):
    """Catches the error for a value that cannot be stored."""

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        try:
            self.count.set(2**63 if number.value == 3 else number.value)
        except StateError:
            yield number


class CautiousColumns(ps.ProcessFunction):
    """The vectorised form of `Cautious`."""

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
    stream = numbers_in([Number(1, 1)])
    bench = StepBench(function, [stream], {"": Number})
    bench.run()
    before = bench.stored
    stream.partitions = {"a": [Number(1, 3)]}
    result = bench.run()
    assert bench.emitted(result) == [(1, Number(1, 3))]
    assert (result.dead_letters, result.changes) == ([], None)
    assert bench.stored == before


class Controlled(ps.ConnectedProcessFunction):
    """Stores what control records set, including values that cannot be stored; vectorised for data."""

    level = ps.ValueState(int)

    def process_control(self, rule: Rule, ctx: ps.Context) -> Iterator[Number]:
        yield Number(rule.key, rule.factor)
        self.level.set(2**62 * rule.factor)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> pa.RecordBatch:
        levels = self.level.columns().values[ctx.key_indices] // 2**62
        return pa.RecordBatch.from_arrays([records.column("key"), pa.array(levels)], names=["key", "value"])


def test_control_that_cannot_be_stored_costs_the_control_record() -> None:
    """This holds before a vectorised function too; data sees the earlier setting."""
    bench = StepBench(
        Controlled(),
        [
            Stream("rules", Rule, is_control=True, partitions={"a": [Rule(1, 1), Rule(1, 2), Rule(2, 5)]}),
            numbers_in([Number(1, 0), Number(2, 0)]),
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
    values=st.lists(st.tuples(KEYS, st.sampled_from([0, 1, 2, 2**62])), max_size=15), seed=st.integers(0, 3)
)
def test_sums_beyond_int64_cost_exactly_the_records_that_made_them(values: Any, seed: int) -> None:
    """The state continues from the last sum that could be stored, wherever blocks were cut."""
    stream = numbers_in([Number(key, value) for key, value in values])
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
