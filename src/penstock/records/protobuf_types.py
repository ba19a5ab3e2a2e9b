"""Protobuf messages: their record types, and their descriptors as bytes that can be sent to workers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import Field, RecordType

__all__ = ["ProtobufSource", "of_protobuf"]


@dataclasses.dataclass(frozen=True)
class ProtobufSource:
    """A protobuf message type as plain bytes, so that it can be sent to workers that lack the generated module."""

    full_name: str
    files: tuple[bytes, ...]

    @classmethod
    def of(cls, message: Any) -> ProtobufSource:
        """Return the source of a generated message class."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        files: list[bytes] = []
        seen: set[str] = set()

        def add(file: Any) -> None:
            if file.name in seen:
                return
            seen.add(file.name)
            for dependency in file.dependencies:
                add(dependency)
            proto = FileDescriptorProto()
            file.CopyToProto(proto)
            files.append(proto.SerializeToString(deterministic=True))

        add(message.DESCRIPTOR.file)
        return cls(message.DESCRIPTOR.full_name, tuple(files))

    def descriptor(self) -> Any:
        """Return the message's descriptor, in its own pool."""
        return _descriptor(self)


@functools.cache
def _descriptor(source: ProtobufSource) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for data in source.files:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    return pool.FindMessageTypeByName(source.full_name)


@functools.cache
def of_protobuf(source: ProtobufSource) -> RecordType:
    """Return the record type of a message type. Raises SchemaError when a field has no Arrow type."""
    from ptars import PtarsConfig, get_schema

    descriptor = source.descriptor()
    schema = get_schema(descriptor, PtarsConfig(enum_repr="string", timestamp_unit="us"))
    fields = []
    for f in schema:
        wire = descriptor.fields_by_name[f.name]
        python_type = _python_type_of(f.type)
        if wire.enum_type is not None and python_type is str:
            python_type = typing.Literal[tuple(value.name for value in wire.enum_type.values)]
        fields.append(Field(f.name, python_type, f.type, wire.has_presence))
    name = source.full_name.rsplit(".", 1)[-1]
    return RecordType(name, fields, _message_class(name, fields), (of_protobuf, source))


def _message_class(name: str, fields: Sequence[Field]) -> type:
    """Return a Struct with a message's fields and, as in protobuf, a default for each."""
    defaults: dict[Any, Any] = {int: 0, float: 0.0, str: "", bytes: b"", bool: False}
    specs: list[Any] = []
    for f in fields:
        if f.nullable:
            specs.append((f.name, f.python_type | None, None))
        elif f.members is not None:
            specs.append((f.name, f.python_type, typing.get_args(f.python_type)[0]))
        elif f.python_type in defaults:
            specs.append((f.name, f.python_type, defaults[f.python_type]))
        else:
            factory = dict if pa.types.is_map(f.arrow_type) else list
            specs.append((f.name, f.python_type, msgspec.field(default_factory=factory)))
    return msgspec.defstruct(name, specs)


def _python_type_of(arrow_type: pa.DataType) -> Any:
    if pa.types.is_boolean(arrow_type):
        return bool
    if pa.types.is_integer(arrow_type):
        return int
    if pa.types.is_floating(arrow_type):
        return float
    if pa.types.is_string(arrow_type):
        return str
    if pa.types.is_binary(arrow_type):
        return bytes
    if pa.types.is_timestamp(arrow_type):
        return dt.datetime
    if pa.types.is_map(arrow_type):
        return dict[_python_type_of(arrow_type.key_type), _python_type_of(arrow_type.item_type)]  # type: ignore[misc]  # the type is made at run time
    if pa.types.is_list(arrow_type):
        return list[_python_type_of(arrow_type.value_type)]  # type: ignore[misc]  # the type is made at run time
    if pa.types.is_struct(arrow_type):
        return dict[str, Any]
    raise SchemaError(f"protobuf fields of the type {arrow_type} are not supported.")
