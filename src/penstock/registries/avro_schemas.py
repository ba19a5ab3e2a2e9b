"""Avro schemas: of a record type, and how the fields of a registered one become those of a record type."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.nested_values import match_names
from penstock.records.types import Field, RecordType

__all__ = ["schema_text", "wire_names"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def schema_text(record_type: RecordType) -> str:
    """Return the Avro schema of a record type as JSON. Raises SchemaError when Avro cannot have one of its fields."""
    fields = [
        {"name": _name(field.name), **_with_default(field, _type_of(field.arrow_type, field.name))}
        for field in record_type.fields
    ]
    schema = {"type": "record", "name": _name(record_type.name), "fields": fields}
    return msgspec.json.encode(schema).decode()


def _with_default(field: Field, kind: Any) -> dict[str, Any]:
    return {"type": ["null", kind], "default": None} if field.nullable else {"type": kind}


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"{name!r} is not a valid name in Avro: use letters of ASCII, digits and underscores."
        )
    return name


_SIMPLE: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (lambda kind: pa.types.is_integer(kind) and kind.bit_width < 32, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_float32, "float"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_timestamp, {"type": "long", "logicalType": "timestamp-micros"}),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
)


def _type_of(kind: pa.DataType, path: str) -> Any:
    """Return the Avro type of an Arrow type; `path` leads to it from the record, and names what is nested."""
    for is_kind, found in _SIMPLE:
        if is_kind(kind):
            return found
    if pa.types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type_of(kind.value_type, f"{path}_item")]}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _type_of(kind.item_type, f"{path}_value")]}
    if pa.types.is_struct(kind):
        fields = [
            {
                "name": _name(field.name),
                "type": ["null", _type_of(field.type, f"{path}_{field.name}")],
                "default": None,
            }
            for field in kind
        ]
        return {"type": "record", "name": _name(f"{path}_record"), "fields": fields}
    raise SchemaError(f"The field {path!r} is of type {kind}, which Avro does not have.")


def wire_names(record_type: RecordType, schema: Any) -> list[str | None]:
    """Return for each field the name of the field in a schema that has its value; None if the schema has none.

    Names match as they are, or else without case and underscores. Raises SchemaError unless the schema is a record, and
    when several of its fields match one.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError("the schema is not that of a record")
    return match_names(record_type.field_names, [field["name"] for field in schema["fields"]])
