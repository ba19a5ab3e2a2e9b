"""Aggregates over the distinct values of a window are exact, whatever the order of arrival."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import itertools
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.types import Field
from penstock.state.folded_states import AggregatingState
from penstock.windows.distinct_values import DistinctValues, distinct_values


class Colour(enum.Enum):
    """An enumeration that is stored as text but is not a Python string."""

    RED = "red"
    BLUE = "blue"


def aggregate(kind: str, python: Any, arrow: pa.DataType, result: pa.DataType) -> DistinctValues:
    made = Field("made", Any, result, nullable=True)
    return distinct_values(kind, Field("x", python, arrow, nullable=True), made)


def held(function: DistinctValues, values: list[Any]) -> Any:
    found = function.create_accumulator()
    for value in values:
        found = function.add(value, found)
    return found


@given(st.lists(st.integers(-20, 20)), st.lists(st.integers(-20, 20)))
def test_counts_and_sums_are_those_of_a_set(left: list[int], right: list[int]) -> None:
    """This holds for one window and for two merged ones; the state has few sorted runs."""
    for kind, wanted in (("count", len({*left, *right})), ("sum", sum({*left, *right}))):
        function = aggregate(kind, int, pa.int64(), pa.int64())
        runs = held(function, left)
        assert all(run == tuple(sorted({*run})) for run in runs)
        assert all(len(one) > len(other) for one, other in itertools.pairwise(runs))
        found = function.merge(runs, held(function, right))
        assert found == ((tuple(sorted({*left, *right})),) if left or right else ())
        assert function.get_result(found) == (wanted if found or kind == "count" else None)


@pytest.mark.parametrize(
    ("values", "kind", "arrow", "count"),
    [
        ([math.nan, 1.0, -math.nan, 0.0, -0.0, math.inf], float, pa.float64(), 4),
        (["b", "", "a", "b"], str, pa.string(), 3),
        ([b"b", b"", b"b"], bytes, pa.binary(), 2),
        ([True, False, True], bool, pa.bool_(), 2),
        ([dt.date(2024, 1, 2), dt.date(2024, 1, 1)], dt.date, pa.date32(), 2),
        ([Colour.RED, Colour.BLUE, Colour.RED], Colour, pa.string(), 2),
        ([decimal.Decimal("1.0"), decimal.Decimal("1.00")], decimal.Decimal, pa.decimal128(10, 2), 1),
    ],
)
def test_values_of_each_type_are_told_apart(values: list[Any], kind: Any, arrow: Any, count: int) -> None:
    """NaN equals NaN, and 0.0 equals -0.0, as in GROUP BY."""
    function = aggregate("count", kind, arrow, pa.int64())
    assert AggregatingState(function).accumulator_type == tuple[tuple[kind, ...], ...]
    for order in (values, values[::-1]):
        assert function.get_result(held(function, order)) == count


def test_means_are_double_or_exact() -> None:
    """Means of decimals are rounded half away from zero; without values the mean is null."""
    doubles = aggregate("avg", float, pa.float64(), pa.float64())
    assert doubles.get_result(held(doubles, [1.0, 2.0, 1.0])) == 1.5
    assert doubles.get_result(()) is None
    decimals = aggregate("avg", decimal.Decimal, pa.decimal128(4, 2), pa.decimal128(8, 6))
    values = [decimal.Decimal(text) for text in ("0.02", "0.00", "0.01", "0.02")]
    assert str(decimals.get_result(held(decimals, values))) == "0.010000"


def test_a_sum_beyond_bigint_is_an_error_of_its_record() -> None:
    """Adding a value that is already included is no error."""
    function = aggregate("sum", int, pa.int64(), pa.int64())
    found = held(function, [2**62, 2**62])
    with pytest.raises(OverflowError, match="beyond BIGINT"):
        function.add(2**62 + 1, found)
