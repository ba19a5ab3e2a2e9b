"""Combined aggregates: columns and single records give the same bits, equal to plain Python."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.schemas import record_type
from penstock.records.types import Field
from penstock.windows.column_aggregates import NEW
from penstock.windows.record_aggregates import (
    AggregateColumn,
    ColumnRecordAggregates,
    RecordAggregates,
    record_aggregates,
)

KIND = record_type("x DOUBLE, n BIGINT, day DATE, d DECIMAL(10, 2), t STRING")


def aggregates(*wanted: tuple[str, str | None, pa.DataType, Any]) -> RecordAggregates:
    columns = [
        AggregateColumn(kind, field, Field(f"made_{number}", python, arrow, nullable=True))
        for number, (kind, field, arrow, python) in enumerate(wanted)
    ]
    return record_aggregates(columns, KIND)


ALL = (
    ("count", None, pa.int64(), int),
    ("count", "t", pa.int64(), int),
    ("sum", "x", pa.float64(), float),
    ("avg", "x", pa.float64(), float),
    ("min", "x", pa.float64(), float),
    ("max", "x", pa.float64(), float),
    ("sum", "n", pa.int64(), int),
    ("avg", "n", pa.float64(), float),
    ("min", "n", pa.int64(), int),
    ("max", "n", pa.int64(), int),
    ("min", "day", pa.date32(), KIND.field("day").python_type),
)

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.builds(
            KIND.python_class,
            st.none() | st.floats(-1e6, 1e6),
            st.none() | st.integers(-(2**40), 2**40),
            st.none() | st.dates(),
            st.none(),
            st.none() | st.text(max_size=2),
        ),
    ),
    max_size=30,
)


@given(RECORDS, st.integers(0, 30))
def test_columns_give_what_records_give(records: list[tuple[int, Any]], cut: int) -> None:
    """Three windows, two batches, with the accumulators stored in between."""
    function = aggregates(*ALL)
    assert isinstance(function, ColumnRecordAggregates)
    stored = stored_type(function)
    held = function.held.of(pa.nulls(0, stored)).take(np.full(3, NEW, np.int64))
    for part in (records[:cut], records[cut:]):
        found = function.values([KIND.batch([one for _, one in part])])
        assert found is not None
        held = function.add_all(held, np.array([at for at, _ in part], np.int64), found[1])
        assert held is not None
        held = function.held.of(held.to_arrow(stored, np.ones(3, bool))).take(np.arange(3))
    columns = [column.to_pylist() for column in function.results(held)]
    for window in range(3):
        accumulator = function.create_accumulator()
        for at, record in records:
            if at == window:
                accumulator = function.add(record, accumulator)
        result = function.get_result(accumulator)
        assert [column[window] for column in columns] == [
            getattr(result, c.made.name) for c in function.columns
        ]


def stored_type(function: RecordAggregates) -> pa.DataType:
    """Return the storage type of accumulators."""
    from penstock.state.folded_states import AggregatingState
    from penstock.state.state_spec import value_spec

    return value_spec("result", AggregatingState(function).accumulator_type).arrow_type


def test_a_sum_beyond_bigint_is_an_error_of_its_record() -> None:
    """Columns fall back to single records, one of which then raises."""
    function = aggregates(("sum", "n", pa.int64(), int))
    assert isinstance(function, ColumnRecordAggregates)
    records = [KIND.python_class(None, 2**62, None, None, None) for _ in range(2)]
    found = function.values([KIND.batch(records)])
    assert found is not None
    held = function.held.of(pa.nulls(0, stored_type(function))).take(np.full(1, NEW, np.int64))
    assert function.add_all(held, np.zeros(2, np.int64), found[1]) is None
    accumulator = function.add(records[0], function.create_accumulator())
    with pytest.raises(OverflowError, match="beyond BIGINT"):
        function.add(records[1], accumulator)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["-4.77", "0"], "-2.385000"),
        (["0.01", "0", "0"], "0.003333"),
        (["0.02", "0", "0"], "0.006667"),
        ([], None),
    ],
)
def test_the_mean_of_decimals_is_rounded_half_away_from_zero(values: list[str], mean: str | None) -> None:
    function = aggregates(("avg", "d", pa.decimal128(14, 6), decimal.Decimal))
    accumulator = function.create_accumulator()
    for value in values:
        accumulator = function.add(
            KIND.python_class(None, None, None, decimal.Decimal(value), None), accumulator
        )
    found = function.get_result(accumulator).made_0
    assert found == (None if mean is None else decimal.Decimal(mean))
    if found is not None:
        assert str(found) == mean


@given(st.lists(st.decimals(-1000, 1000, places=2), min_size=1, max_size=20))
def test_merged_windows_are_those_of_all_records(values: list[decimal.Decimal]) -> None:
    function = aggregates(
        ("sum", "d", pa.decimal128(20, 2), decimal.Decimal),
        ("min", "d", pa.decimal128(10, 2), decimal.Decimal),
        ("max", "d", pa.decimal128(10, 2), decimal.Decimal),
        ("count", "d", pa.int64(), int),
    )
    parts = []
    for part in (values[::2], values[1::2]):
        accumulator = function.create_accumulator()
        for value in part:
            accumulator = function.add(KIND.python_class(None, None, None, value, None), accumulator)
        parts.append(accumulator)
    found = function.get_result(function.merge(*parts))
    assert (found.made_0, found.made_1, found.made_2, found.made_3) == (
        sum(values),
        min(values),
        max(values),
        len(values),
    )


@pytest.mark.parametrize("values", [[math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [2.0, 1.0, math.nan]])
def test_nan_is_the_largest_number_in_any_order(values: list[float]) -> None:
    """This holds for records of one window, and for windows that are merged."""
    function = aggregates(("min", "x", pa.float64(), float), ("max", "x", pa.float64(), float))
    one = function.create_accumulator()
    merged = function.create_accumulator()
    for value in values:
        record = KIND.python_class(value, None, None, None, None)
        one = function.add(record, one)
        merged = function.merge(merged, function.add(record, function.create_accumulator()))
    for held in (one, merged):
        found = function.get_result(held)
        assert found.made_0 == 1.0
        assert math.isnan(found.made_1)
