"""Values of all types as attributes of items."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.stores.dynamo_values import attributes

TIME = dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC)


PAIR = pa.struct({"a": pa.int64(), "b": pa.float64()})


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (2**63 - 1, pa.int64(), {"N": "9223372036854775807"}),
        (Decimal("1.50"), pa.decimal128(5, 2), {"N": "1.50"}),
        (True, pa.bool_(), {"BOOL": True}),
        (b"\xff", pa.binary(), {"B": b"\xff"}),
        (TIME, pa.timestamp("us", "UTC"), {"S": "2026-01-31T08:00:00Z"}),
        (dt.date(2026, 1, 31), pa.date32(), {"S": "2026-01-31"}),
        ([TIME, None], pa.list_(pa.timestamp("us", "UTC")), {"L": [{"S": "2026-01-31T08:00:00Z"}, {"NULL": True}]}),
        ([True, False], pa.list_(pa.bool_()), {"L": [{"BOOL": True}, {"BOOL": False}]}),
        ({"a": 1, "b": 2.0}, PAIR, {"M": {"a": {"N": "1"}, "b": {"N": "2.0"}}}),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), {"M": {"k": {"N": "1"}}}),
        (None, pa.string(), None),
    ],
)  # fmt: skip
def test_each_type_has_its_attribute(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert attributes(pa.array([value], kind)) == [expected]
