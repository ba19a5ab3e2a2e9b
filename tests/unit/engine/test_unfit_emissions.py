"""Emissions that do not fit the output, and records that reject their values, become dead letters; nothing
else fails.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from numbers_step import Number, numbers_in
from step_bench import StepBench, Stream
from step_support import run_group

import penstock as ps
from penstock.operators.record_blocks import RAW


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
    """An emitted record of a wrong type costs only itself; an undeclared side output costs the whole input
    record.
    """
    values = [0, 1, 2, 3, 4, 0]
    stream = numbers_in([Number(5, value) for value in values])
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
class Strict:
    """A record class that validates its values."""

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
    """Its class raises, so the dead letter's bytes come from the columns; its reason is valid text."""
    stream = numbers_in([Number(1, 1), Number(2, 13), Number(3, 3)])
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


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Told:
    key: int
    size: Size


class Careless(ps.ProcessFunction):
    """Emits columns that are wrong in the way that the input value names, with the source row of each."""

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
    """Emitted columns are checked as strictly as emitted objects."""
    stream = numbers_in([Number(1, 0), Number(2, value), Number(3, 0)])
    bench = StepBench(Careless(), [stream], {"": Told})
    result = bench.run()
    assert bench.emitted(result) == [(1, Told(1, Size.SMALL)), (3, Told(3, Size.SMALL))]
    (letter,) = result.dead_letters
    assert letter.offset == 1
    assert message in letter.reason


@dataclass
class Listed:
    key: int
    items: list[int]


class Distracted(ps.ProcessFunction):
    """Emits nested values of a wrong type."""

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Any]:
        items: dict[int, Any] = {0: [1], 1: [None], 2: [object()], 3: "one"}
        yield Listed(number.key, items[number.value])


def test_nested_values_that_do_not_fit_are_dead_letters() -> None:
    """Only what the next step can read is emitted."""
    stream = numbers_in([Number(1, value) for value in (0, 1, 2, 3, 0)])
    bench = StepBench(Distracted(), [stream], {"": Listed})
    result = bench.run()
    assert bench.emitted(result) == [(1, Listed(1, [1]))] * 2
    assert [letter.offset for letter in result.dead_letters] == [1, 2, 3]
    assert all("field 'items'" in letter.reason for letter in result.dead_letters)
