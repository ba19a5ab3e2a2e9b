"""Iceberg types: the columns of a table that has records of a schema."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

__all__ = ["format_type", "iceberg_schema", "without_ids"]

_PLAIN: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the columns for records. Raises ValueError for a field that Iceberg has no type for."""
    from pyiceberg.schema import Schema

    return Schema(*_fields(schema, itertools.count(1)))


def _fields(fields: Any, ids: itertools.count[int]) -> list[NestedField]:
    from pyiceberg.types import NestedField

    return [
        NestedField(next(ids), field.name, _type(field, ids), required=not field.nullable) for field in fields
    ]


def _type(field: pa.Field, ids: itertools.count[int]) -> IcebergType:
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    kind = field.type
    if kind in _PLAIN:
        return _plain_type(_PLAIN[kind])
    if pa.types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ListType(
            next(ids), _type(kind.value_field, ids), element_required=not kind.value_field.nullable
        )
    if pa.types.is_map(kind):
        key = (next(ids), _type(kind.key_field, ids))
        return MapType(
            *key, next(ids), _type(kind.item_field, ids), value_required=not kind.item_field.nullable
        )
    if pa.types.is_struct(kind):
        return StructType(*_fields(kind, ids))
    raise ValueError(f"{field.name} is {kind}")


def _plain_type(name: str) -> IcebergType:
    from pyiceberg import types

    found: IcebergType = {
        "boolean": types.BooleanType,
        "int": types.IntegerType,
        "long": types.LongType,
        "float": types.FloatType,
        "double": types.DoubleType,
        "string": types.StringType,
        "binary": types.BinaryType,
        "date": types.DateType,
        "timestamp": types.TimestampType,
        "timestamptz": types.TimestamptzType,
    }[name]()
    return found


def without_ids(kind: IcebergType) -> Any:
    """Return a type as plain data that is equal for equal types, whatever the ids of their fields."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return [(field.name, field.required, without_ids(field.field_type)) for field in kind.fields]
    if isinstance(kind, ListType):
        return ("list", kind.element_required, without_ids(kind.element_type))
    if isinstance(kind, MapType):
        return ("map", without_ids(kind.key_type), kind.value_required, without_ids(kind.value_type))
    return str(kind)


def format_type(kind: IcebergType) -> str:
    """Return a type for messages, without ids."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return (
            f"struct<{', '.join(f'{field.name}: {format_type(field.field_type)}' for field in kind.fields)}>"
        )
    if isinstance(kind, ListType):
        return f"list<{format_type(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{format_type(kind.key_type)}, {format_type(kind.value_type)}>"
    return str(kind)
