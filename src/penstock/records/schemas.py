"""Schemas: how users describe a record, and the record type of each schema.

A schema is a dataclass, a `msgspec.Struct`, a protobuf message class or a DDL string. Each becomes a `RecordType`,
which turns lists of objects into Arrow record batches and back, in bulk.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.ddl import DdlParser
from penstock.records.nested_values import without_none
from penstock.records.protobuf_types import ProtobufSource, of_protobuf
from penstock.records.types import SCALARS, Field, RecordType, struct_class

__all__ = [
    "VERSION_FIELD",
    "arrow_type_of",
    "record_type",
    "versioned",
]


@functools.singledispatch
def record_type(schema: Any) -> RecordType:
    """Return the record type of a schema: a dataclass, a msgspec Struct, a protobuf message class or a DDL string.

    >>> record_type("sensor_id INT, temperature DOUBLE").field_names
    ('sensor_id', 'temperature')
    """
    raise SchemaError(
        f"{schema!r} is not a schema. Give a dataclass, a protobuf message class or a DDL string."
    )


@record_type.register
def _(schema: RecordType) -> RecordType:
    return schema


@record_type.register
def _(schema: type) -> RecordType:
    if dataclasses.is_dataclass(schema) or issubclass(schema, msgspec.Struct):
        return _of_class(schema)
    if hasattr(schema, "DESCRIPTOR") and hasattr(schema, "SerializeToString"):
        return of_protobuf(ProtobufSource.of(schema))
    raise SchemaError(
        f"{schema.__name__} is not a schema. Give a dataclass, a protobuf message class or a DDL string."
    )


@record_type.register
def _(schema: str) -> RecordType:
    return _of_ddl(schema)


@functools.cache
def _of_class(schema: type, inside: tuple[type, ...] = ()) -> RecordType:
    if schema in inside:
        raise SchemaError(f"{schema.__name__} contains itself, which cannot be stored.")
    try:
        hints = typing.get_type_hints(schema)
    except NameError as e:
        raise SchemaError(f"{schema.__name__}: a field's type cannot be resolved: {e}.") from e
    names: Sequence[str]
    if dataclasses.is_dataclass(schema):
        names = [f.name for f in dataclasses.fields(schema) if f.init]
    else:
        names = schema.__struct_fields__  # type: ignore[attr-defined]  # a msgspec Struct
    if not names:
        raise SchemaError(f"{schema.__name__} has no fields. Declare at least one.")
    fields = []
    for name in names:
        python_type, nullable = without_none(hints[name])
        try:
            arrow_type = arrow_type_of(python_type, (*inside, schema))
        except SchemaError as e:
            raise SchemaError(f"{schema.__name__}.{name}: {e}") from None
        fields.append(Field(name, python_type, arrow_type, nullable))
    return RecordType(schema.__name__, fields, schema, (record_type, schema))


def arrow_type_of(python_type: Any, inside: tuple[type, ...] = ()) -> pa.DataType:
    """Return the Arrow type in which values of a Python type are stored; `inside` are the classes that contain it.

    Raises SchemaError for types that cannot be stored.
    """
    if python_type in SCALARS:
        return SCALARS[python_type]
    if isinstance(python_type, type) and issubclass(python_type, enum.Enum):
        kinds = {type(member.value) for member in python_type}
        if kinds == {str}:
            return pa.string()
        if kinds == {int}:
            return pa.int64()
        raise SchemaError(f"the enumeration {python_type.__name__} must have only str or only int values.")
    origin, args = typing.get_origin(python_type), typing.get_args(python_type)
    if origin is typing.Literal:
        kinds = {type(value) for value in args}
        if len(kinds) == 1 and kinds <= {str, int, bool}:
            return SCALARS[kinds.pop()]
    if origin is tuple and len({arg for arg in args if arg is not Ellipsis}) > 1:
        raise SchemaError(
            f"the type {python_type!r} cannot be stored: the items of a tuple must have the same type."
        )
    if origin in (list, tuple, set, frozenset) and args:
        return pa.list_(arrow_type_of(without_none(args[0])[0], inside))
    if origin is dict:
        return pa.map_(arrow_type_of(args[0], inside), arrow_type_of(without_none(args[1])[0], inside))
    if isinstance(python_type, type) and (
        dataclasses.is_dataclass(python_type) or issubclass(python_type, msgspec.Struct)
    ):
        _check_plain(python_type)
        return pa.struct(list(_of_class(python_type, inside).schema))
    raise SchemaError(
        f"the type {python_type!r} cannot be stored. Use bool, int, float, str, bytes, datetime, date, Decimal, Enum, "
        "list, dict or a dataclass of these."
    )


def _check_plain(kind: type) -> None:
    """Raise SchemaError for a Struct within records that is not stored by the names of its fields."""
    if not issubclass(kind, msgspec.Struct):
        return
    is_renamed = any(field.encode_name != field.name for field in msgspec.structs.fields(kind))
    if is_renamed or kind.__struct_config__.array_like:
        option = "rename" if is_renamed else "array_like"
        raise SchemaError(
            f"the Struct {kind.__name__} within records has {option}=, and cannot be stored. Leave the option out."
        )


VERSION_FIELD: Final = pa.field("control_version", pa.int64())


def versioned(kind: RecordType) -> RecordType:
    """Return the record type with one more field: the control version under which a record was made."""
    if VERSION_FIELD.name in kind.field_names:
        raise SchemaError(f"{kind!r} already has a field {VERSION_FIELD.name!r}. Rename it.")
    fields = [*kind.fields, Field(VERSION_FIELD.name, int, VERSION_FIELD.type, nullable=False)]
    return RecordType(kind.name, fields, struct_class(kind.name, fields), (versioned, kind))


# --- DDL strings ---------------------------------------------------------------------------------------------


@functools.cache
def _of_ddl(ddl: str) -> RecordType:
    fields = DdlParser(ddl).parse()
    python_class = struct_class("Record", fields)
    return RecordType("Record", fields, python_class, (record_type, ddl))
