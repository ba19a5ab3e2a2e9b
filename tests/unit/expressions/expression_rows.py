"""Records with every type that expressions support, and the values of an expression on them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.expressions.compiler import compile_selection
from penstock.records.schemas import record_type

SCHEMA = record_type(
    "room STRING, temperature DOUBLE, n INT, big BIGINT, d DECIMAL(10, 2), e DECIMAL(38, 18), at TIMESTAMP, day DATE, "
    "tags ARRAY<STRING>, m MAP<STRING, INT>, s STRUCT<a: INT, b: STRUCT<c: STRING>>, ok BOOLEAN, f FLOAT, raw BINARY, "
    "small TINYINT, sure INT NOT NULL"
)
_UTC = dt.UTC
_FULL: list[dict[str, Any]] = [
    {
        "room": "a", "temperature": 31.0, "n": 1, "big": 2**62, "d": Decimal("1.50"), "e": Decimal(2),
        "at": dt.datetime(2024, 1, 2, 3, 4, 5, 6, _UTC), "day": dt.date(2024, 1, 2), "tags": ["x", "y"],
        "m": {"k": 1}, "s": {"a": 1, "b": {"c": "z"}}, "ok": True, "f": 0.1, "raw": b"q", "small": 100, "sure": 7,
    },
    {
        "room": "12", "temperature": -7.5, "n": 2**31 - 1, "big": 0, "d": Decimal("-2.25"), "e": Decimal(3),
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=_UTC), "day": dt.date(2024, 2, 29), "tags": [], "m": {},
        "s": None, "ok": False, "f": 2.5, "raw": b"", "small": -3, "sure": 8,
    },
    {"sure": 9},
]  # fmt: skip


@dataclass
class Outcome:
    """The values of an expression on the three rows, its type, and the failed rows with the reasons."""

    values: list[Any]
    kind: pa.DataType
    failures: dict[int, str]


def rows() -> pa.RecordBatch:
    """Two rows with values everywhere, and one with nulls."""
    columns = [pa.array([row.get(f.name) for row in _FULL], f.arrow_type) for f in SCHEMA.fields]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.schema)


def outcome(text: str, **parameters: float) -> Outcome:
    """Evaluate an expression on the three rows; its parameters are doubles."""
    types = {name: pa.float64() for name in parameters}
    selection = compile_selection([f"{text} AS v"], SCHEMA, types)
    given = {name: pa.scalar(value, pa.float64()) for name, value in parameters.items()}
    batch, failures = selection.columns(rows(), given)
    values = [None if row in failures else value.as_py() for row, value in enumerate(batch.column(0))]
    return Outcome(values, batch.schema.field(0).type, failures)
