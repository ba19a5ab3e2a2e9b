"""Field texts: what a store keeps for the values of fields."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.stores.field_texts import field_texts

NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([2**63 - 1, -1], pa.int64(), ["9223372036854775807", "-1"]),
        ([21.0, 0.1, float("inf")], pa.float64(), ["21", "0.1", "inf"]),
        ([Decimal("1.50")], pa.decimal128(5, 2), ["1.50"]),
        ([True, False], pa.bool_(), ["true", "false"]),
        (["é", ""], pa.string(), ["é", ""]),
        ([b"\x00\xff"], pa.binary(), [b"\x00\xff"]),
        ([NOON], pa.timestamp("us", tz="UTC"), ["2026-01-02T12:00:00.250000Z"]),
        ([dt.date(2026, 1, 2)], pa.date32(), ["2026-01-02"]),
        ([{"a": [1, None]}], pa.struct({"a": pa.list_(pa.int64())}), ['{"a":[1,null]}']),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int64()), ['{"a":1}']),
    ],
)
def test_each_kind_of_value_has_its_text(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    """A null has none."""
    assert list(field_texts(pa.array([*values, None], kind))) == [*expected, None]
