"""Schemas: how users describe a record, and the record type of each schema.

A schema is a dataclass, a `msgspec.Struct`, a protobuf message class or a DDL string. Each becomes a `RecordType`,
which turns lists of objects into Arrow record batches and back, in bulk.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.ddl import DdlParser
from penstock.records.protobuf_types import ProtobufSource, of_protobuf
from penstock.records.types import SCALARS, Field, RecordType, struct_class

__all__ = [
    "VERSION_FIELD",
    "arrow_type_of",
    "record_type",
    "versioned",
    "without_none",
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
        return pa.struct(list(_of_class(python_type, inside).schema))
    raise SchemaError(
        f"the type {python_type!r} cannot be stored. Use bool, int, float, str, bytes, datetime, date, Decimal, Enum, "
        "list, dict or a dataclass of these."
    )


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type hint without its `| None`, and whether it had one."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(args) == 1 and len(args) < len(typing.get_args(hint)):
            return args[0], True
    return hint, False


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
