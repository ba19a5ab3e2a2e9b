"""Value types: the types that expressions have, their names in SQL, and the common type of two values."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any, Final

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.schemas import record_type
from penstock.records.types import SCALARS, Field, type_of_fields

__all__ = [
    "BIGINT",
    "BOOLEAN",
    "DATE",
    "DOUBLE",
    "INT",
    "MAX_DIGITS",
    "NOTHING",
    "STRING",
    "TIMESTAMP",
    "common_type",
    "decimal_of_integer",
    "is_number",
    "is_text",
    "python_type_of",
    "sql_name",
    "type_of_sql",
]

BOOLEAN: Final = pa.bool_()
INT: Final = pa.int32()
BIGINT: Final = pa.int64()
DOUBLE: Final = pa.float64()
STRING: Final = pa.string()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
# The type of NULL, which fits every other.
NOTHING: Final = pa.null()

MAX_DIGITS: Final = 38
_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    pa.null(): "NULL",
    pa.duration("us"): "INTERVAL",
}
_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def sql_name(kind: pa.DataType) -> str:
    """Return the name of a type in SQL, for people."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {sql_name(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, str(kind))


def type_of_sql(text: str) -> pa.DataType:
    """Return the type with a name as in DDL. Raises SchemaError if there is none."""
    names = {
        "TEXT": "STRING",
        "VARCHAR": "STRING",
        "VARBINARY": "BINARY",
        "REAL": "FLOAT",
        "TIMESTAMPTZ": "TIMESTAMP",
    }
    return record_type(f"value {names.get(text.upper(), text)}").schema.field("value").type


@functools.cache
def python_type_of(kind: pa.DataType) -> Any:
    """Return the type of the values in Python, as for a field declared with DDL. Raises SchemaError for NULL."""
    if pa.types.is_null(kind):
        raise SchemaError("NULL has no type of its own; give it one with CAST(NULL AS STRING), for example.")
    if pa.types.is_list(kind):
        return list[python_type_of(kind.value_type)]  # type: ignore[misc]  # the type is made at run time
    if pa.types.is_map(kind):
        return dict[python_type_of(kind.key_type), python_type_of(kind.item_type)]  # type: ignore[misc]  # the type is made at run time
    if pa.types.is_struct(kind):
        fields = [Field(one.name, python_type_of(one.type), one.type, nullable=one.nullable) for one in kind]
        return type_of_fields(fields).python_class
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        return next(python for python, arrow in SCALARS.items() if pa.types.is_decimal(arrow))
    if pa.types.is_duration(kind):
        raise SchemaError("A field cannot be an INTERVAL; add it to a TIMESTAMP.")
    for python, arrow in SCALARS.items():
        if arrow.equals(kind):
            return python
    if pa.types.is_timestamp(kind):
        return dt.datetime
    raise SchemaError(f"{kind} cannot be a field of a record.")


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is an integer, a floating-point number or a decimal."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is STRING."""
    return bool(pa.types.is_string(kind))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the smallest type that values of both can have without losing digits, or None if there is none."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        return _common_number(one, other)
    times = (DATE, TIMESTAMP)
    if one in times and other in times:
        return TIMESTAMP
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        # An INT has more digits than a FLOAT.
        return DOUBLE
    if pa.types.is_decimal(one) or pa.types.is_decimal(other):
        first, second = decimal_of_integer(one), decimal_of_integer(other)
        scale = max(first.scale, second.scale)
        whole = max(first.precision - first.scale, second.precision - second.scale)
        return pa.decimal128(min(whole + scale, MAX_DIGITS), min(scale, MAX_DIGITS - min(whole, MAX_DIGITS)))
    return max(_signed(one), _signed(other), key=_SIGNED.index)


def _signed(kind: pa.DataType) -> pa.DataType:
    """Return the signed integer for an integer, one size larger for an unsigned one, if there is one."""
    if pa.types.is_signed_integer(kind):
        return kind
    return _SIGNED[min({8: 1, 16: 2, 32: 3, 64: 3}[kind.bit_width], 3)]


def decimal_of_integer(kind: pa.DataType) -> pa.Decimal128Type:
    """Return the decimal type that holds all values of an integer type; a decimal type stays."""
    if pa.types.is_decimal(kind):
        return kind
    return pa.decimal128({8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0)
