"""Random tables for the tests of snapshots, and their values in a form that compares to the bit."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

NAMES = st.text(
    st.characters(exclude_characters='"\\', exclude_categories=("Cs", "Cc")), min_size=1, max_size=4
)
UNITS = ("s", "ms", "us", "ns")
ZONES = ("UTC", "Europe/Berlin", "+02:00")
DAY = 86400


def _held(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


SCALARS = [
    *(pa.bool_(), pa.float32(), pa.float64(), pa.date32(), pa.null()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.timestamp(unit) for unit in UNITS),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES),
    *(pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 30), pa.decimal128(3, 3)),
]
KEYS = [pa.string(), pa.int64(), pa.date32(), pa.bool_(), pa.large_string()]


@st.composite
def fields(draw: st.DrawFn, depth: int = 2) -> pa.Field:
    kind = draw(kinds(depth))
    return pa.field(draw(NAMES), kind, nullable=pa.types.is_null(kind) or draw(st.booleans()))


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> pa.DataType:
    shape = draw(st.sampled_from(["scalar"] * 3 + ["struct", "list", "map"])) if depth else "scalar"
    if shape == "scalar":
        return draw(st.sampled_from(SCALARS))
    if shape == "struct":
        return pa.struct(
            draw(st.lists(fields(depth - 1), min_size=1, max_size=3, unique_by=lambda f: f.name))
        )
    inner = draw(fields(depth - 1))
    if shape == "map":
        return pa.map_(draw(st.sampled_from(KEYS)), inner.with_name("value"))
    make = pa.large_list if draw(st.booleans()) else pa.list_
    return make(inner.with_name("item"))


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> pa.Schema:
    return pa.schema(draw(st.lists(fields(depth), min_size=1, max_size=4, unique_by=lambda f: f.name)))


TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["", " ", '"', '""', ",", "\n", "\r\n", "\\", "\ufeff", "null", "NaN", "\x00", " x ", "#1"]
    ),
)


def values(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a field, dates and times as integers."""
    present = _present(field.type)
    return st.one_of(st.none(), present) if field.nullable else present


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    is_a = pa.types
    if is_a.is_null(kind):
        return st.none()
    if is_a.is_boolean(kind):
        return st.booleans()
    if is_a.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=True).map(lambda v: float("nan") if v != v else v)
    if is_a.is_integer(kind):
        low = 0 if is_a.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.integers(low, low + 2**kind.bit_width - 1)
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return TEXTS
    if is_a.is_fixed_size_binary(kind) and not is_a.is_decimal(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if is_a.is_binary(kind) or is_a.is_large_binary(kind):
        return st.binary(max_size=6)
    if is_a.is_decimal(kind):
        most = 10**kind.precision - 1
        with decimal.localcontext(prec=80):
            return st.integers(-most, most).map(lambda n: _scaled(n, kind.scale))
    if is_a.is_time(kind):
        return st.integers(0, DAY * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit] - 1)
    if is_a.is_temporal(kind):
        # Parquet keeps seconds as milliseconds.
        bits = 52 if is_a.is_timestamp(kind) and kind.unit == "s" else kind.bit_width - 1
        return st.one_of(st.integers(-(2**bits), 2**bits - 1), st.integers(-(10**9), 10**9))
    if is_a.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field) for field in kind})
    if is_a.is_map(kind):
        return st.lists(st.tuples(_present(kind.key_type), values(kind.item_field)), max_size=3)
    return st.lists(values(kind.value_field), max_size=3)


def _scaled(number: int, scale: int) -> decimal.Decimal:
    with decimal.localcontext(prec=80):
        return decimal.Decimal(number).scaleb(-scale)


def raw_kind(kind: pa.DataType) -> pa.DataType:
    """The type with integers for dates and times."""
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(raw_kind(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(raw_kind(kind.key_type), kind.item_field.with_type(raw_kind(kind.item_type)))
    if pa.types.is_nested(kind):
        item = kind.value_field.with_type(raw_kind(kind.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return _held(kind) if pa.types.is_temporal(kind) else kind


def as_kind(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with another type of the same layout."""
    if pa.types.is_struct(kind):
        inner = [as_kind(column.field(i), field.type) for i, field in enumerate(kind)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    mask = column.is_null() if column.null_count else None
    if pa.types.is_map(kind):
        keys, items = as_kind(column.keys, kind.key_type), as_kind(column.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(column), keys, items, type=kind, mask=mask)
    if pa.types.is_nested(kind):
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return make.from_arrays(
            _offsets(column), as_kind(column.values, kind.value_type), type=kind, mask=mask
        )
    return column.view(kind) if pa.types.is_temporal(kind) or pa.types.is_temporal(column.type) else column


def _offsets(column: pa.Array) -> pa.Array:
    return pa.array(column.offsets.to_numpy(zero_copy_only=False))


def batch_of(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = []
    for field in schema:
        raw = pa.array([row[field.name] for row in rows], raw_kind(field.type))
        columns.append(as_kind(raw, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema | None = None, most: int = 6) -> pa.RecordBatch:
    """Rows of a random schema, or of a given one."""
    schema = schema or draw(schemas())
    row = st.fixed_dictionaries({field.name: values(field) for field in schema})
    return batch_of(schema, draw(st.lists(row, max_size=most)))


def plain(batch: pa.RecordBatch) -> list[str]:
    """Each row as text, in which NaN equals NaN, and -0.0 is not 0.0."""
    columns = [_plain(column) for column in batch.columns]
    return [repr(row) for row in zip(*columns, strict=True)]


def _plain(column: pa.Array) -> list[Any]:
    whole = (
        pa.concat_arrays([column]) if column.offset == 0 else column.take(pa.array(np.arange(len(column))))
    )
    return as_kind(whole, raw_kind(column.type)).to_pylist()


def all_plain(found: Iterator[pa.RecordBatch]) -> list[str]:
    return [row for batch in found for row in plain(batch)]
