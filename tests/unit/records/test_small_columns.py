"""Small columns: the same columns and errors as Arrow's own, for any number of values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.records.small_columns import FEW, are_all_rows, cast_column, column_of, decimal_texts

VALUES: dict[pa.DataType, list[list[Any]]] = {
    pa.int32(): [[1], [-(2**31), 2**31 - 1], [None, 3], [2.0]],
    pa.int64(): [[1], [-(2**63), 2**63 - 1], [None]],
    pa.float64(): [[1.5, float("nan")], [1], [None, 0.0]],
    pa.binary(): [[b"a", b"", b"abc"], [None, b""], ["text"], [bytearray(b"x")]],
    pa.string(): [["a", "", "äö\0"], [None, "x"], [b"bytes"]],
    pa.bool_(): [[True, None]],
}
CASES = [(kind, values) for kind, found in VALUES.items() for values in [*found, found[0] * (FEW + 1), []]]


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_a_column_is_the_one_that_arrow_makes(kind: pa.DataType, values: list[Any]) -> None:
    """To the byte, since bodies of rows are compared in a replay."""
    wanted, found = (
        pa.RecordBatch.from_arrays([column], names=["c"])
        for column in (pa.array(values, kind), column_of(values, kind))
    )
    found.validate(full=True)
    assert found.schema == wanted.schema
    assert found.serialize().to_pybytes() == wanted.serialize().to_pybytes()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [2**31]),
        (pa.int64(), [2**63]),
        (pa.int64(), ["1"]),
        (pa.int32(), [True]),
        (pa.string(), ["\ud800"]),
        (pa.string(), [1]),
        (pa.binary(), [1]),
    ],
)
def test_what_does_not_fit_raises_what_arrow_raises(kind: pa.DataType, values: list[Any]) -> None:
    with pytest.raises(Exception) as wanted:  # whatever it is
        pa.array(values, kind)
    with pytest.raises(type(wanted.value)) as found:
        column_of(values, kind)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1])
def test_casts_and_texts_are_those_of_arrow(count: int) -> None:
    column = pa.array([None, *(number % 129 - 1 for number in range(count))][:count], pa.int64())
    for kind in (pa.int32(), pa.int8(), pa.uint64() if count < 2 else pa.int16(), pa.string(), pa.int64()):
        assert cast_column(column, kind).equals(column.cast(kind))
    assert decimal_texts(column).equals(column.cast(pa.string()).cast(pa.binary()))


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_a_number_beyond_a_type_has_the_same_error_in_any_column(count: int) -> None:
    column = pa.array([2**40] * count)
    with pytest.raises(pa.ArrowInvalid, match="Integer value 1099511627776 not in range"):
        cast_column(column, pa.int32())


def test_all_rows_are_those_in_order() -> None:
    assert are_all_rows([0, 1, 2], 3)
    assert not are_all_rows([0, 2, 1], 3)
    assert not are_all_rows([0, 0, 1], 3)
    assert not are_all_rows([0, 1], 3)
