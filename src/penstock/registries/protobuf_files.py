"""Protobuf files of a registry: their descriptors, and the place of a message in its file."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import SchemaError
from penstock.records.protobuf_types import ProtobufSource
from penstock.registries.registry_client import RegisteredSchema

__all__ = [
    "SERIALIZED",
    "MessageFiles",
    "check_finite",
    "file_text",
    "index_bytes",
    "indexes_of",
    "is_well_known",
    "read_indexes",
]

SERIALIZED: Final = "serialized"
"""The form in which a registry gives files as their descriptors, so that nobody else has to parse their text.

A registry that does not know it gives the text.
"""

_WELL_KNOWN: Final = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)
_MAX_INDEXES: Final = 32
_MAX_VARINT_BYTES: Final = 5


def is_well_known(name: str) -> bool:
    """Return whether a file comes with protobuf itself, so that no registry has it."""
    return name in _WELL_KNOWN


class MessageFiles:
    """The files of a registered schema, from which its messages are taken by their place."""

    def __init__(self, found: RegisteredSchema) -> None:
        """Raise SchemaError when the schema, or what it refers to, is not there as descriptors."""
        named = dict(found.references)
        files: dict[str, bytes] = {}
        self._main: Final = _parsed(found.text)
        while self._main.name in named or is_well_known(self._main.name):
            self._main.name += "_"
        self._add(self._main, named, files, ())
        self._files: Final = tuple(files.values())

    def _add(
        self, file: Any, named: dict[str, str], files: dict[str, bytes], inside: tuple[str, ...]
    ) -> None:
        """Add a file behind those that it imports."""
        for name in file.dependency:
            if name in files:
                continue
            if name in inside:
                raise SchemaError(f"{name!r} imports itself")
            if name in named:
                imported = _parsed(named[name])
                imported.name = name
            elif is_well_known(name):
                imported = _well_known(name)
            else:
                raise SchemaError(f"it imports {name!r}, which is not among its references in the registry")
            self._add(imported, named, files, (*inside, name))
        files[file.name] = file.SerializeToString(deterministic=True)

    def message(self, indexes: Sequence[int]) -> ProtobufSource:
        """Return a message by its place: its number in the file, then in each message around it.

        Raises SchemaError when the file has no such message.
        """
        messages, names = self._main.message_type, []
        for index in indexes:
            if index >= len(messages):
                raise SchemaError(f"the schema has no message at {list(indexes)}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        package = [self._main.package] if self._main.package else []
        source = ProtobufSource(".".join([*package, *names]), self._files)
        try:
            source.descriptor()
        except (TypeError, KeyError) as e:
            raise SchemaError(f"its descriptors do not fit together ({e})") from e
        return source


def check_finite(message: Any, around: tuple[str, ...]) -> None:
    """Raise SchemaError when a message contains itself, since it would have no end as columns."""
    if message.full_name in around:
        raise SchemaError(f"the message {message.full_name} contains itself, which cannot be columns")
    for field in message.fields:
        if field.message_type is not None:
            check_finite(field.message_type, (*around, message.full_name))


def _parsed(text: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError) as e:
        raise SchemaError("what the registry has is neither a .proto file nor its descriptor") from e


def _well_known(name: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    # One of the modules listed above, whatever the schema says.
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def file_text(file: bytes) -> str:
    """Return a file in the form in which a registry takes it."""
    return base64.b64encode(file).decode()


def indexes_of(source: ProtobufSource) -> tuple[int, ...]:
    """Return the place of a message in its file, as `MessageFiles.message` takes it."""
    found: list[int] = []
    message = source.descriptor()
    while message is not None:
        around = message.containing_type
        beside = message.file.message_types_by_name if around is None else around.nested_types_by_name
        found.append(list(beside).index(message.name))
        message = around
    return tuple(reversed(found))


def index_bytes(indexes: Sequence[int]) -> bytes:
    """Return the place of a message as it stands before each: zigzag numbers behind their count; one zero for (0,)."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_indexes(message: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return the place of a message that is written at a position, and where its bytes end.

    Raises ValueError when there is none.
    """
    count, end = _read_zigzag(message, start)
    if count == 0:
        return (0,), end
    if count > _MAX_INDEXES:
        raise ValueError(f"its place in the schema has {count} numbers")
    found = []
    for _ in range(count):
        index, end = _read_zigzag(message, end)
        found.append(index)
    return tuple(found), end


def _read_zigzag(message: bytes, start: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[start : start + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value & 1:
                raise ValueError("its place in the schema has a negative number")
            return value >> 1, start + place + 1
    raise ValueError("the id of its schema is not followed by a place there")
