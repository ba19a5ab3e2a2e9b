"""Protobuf: records as messages with the id of their schema and their place there before them, as Confluent's."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.nested_values import match_names
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType, type_of_fields
from penstock.records.wire_formats import Decoded, Format, ProtobufFormat, format_of
from penstock.registries.field_defaults import NO_DEFAULT, default_of
from penstock.registries.framed_messages import (
    HEADER,
    MAGIC,
    FramedMessages,
    framed,
    merged,
    offsets_of,
    schema_of,
    without_header,
)
from penstock.registries.proto_compiler import compiled, is_text
from penstock.registries.protobuf_files import (
    SERIALIZED,
    MessageFiles,
    check_finite,
    file_text,
    index_bytes,
    indexes_of,
    is_well_known,
    read_indexes,
)
from penstock.registries.registry_client import RegistryClient

__all__ = ["RegisteredProtobufFormat"]

_KIND: Final = "PROTOBUF"
# No Python object is made of a message, so decoding many at once does not strain the processor's cache.
_BLOCK_ROWS: Final = 65_536


class _MessageReader:
    """A decoder of one message type: fields that the record type does not find there get their defaults."""

    def __init__(self, source: ProtobufSource, record_type: RecordType, *, allow_nan: bool) -> None:
        self._type: Final = record_type
        message = source.descriptor()
        names = match_names(record_type.field_names, message.fields_by_name)
        present = [field for field, name in zip(record_type.fields, names, strict=True) if name is not None]
        for name in filter(None, names):
            # ptars has no end of columns for a message within itself, and leaves out the others where nobody asks.
            if (inner := message.fields_by_name[name].message_type) is not None:
                check_finite(inner, (message.full_name,))
        if not present:
            raise SchemaError(f"the message {source.full_name} has no field of {record_type.name}")
        self._defaults: Final = {
            field.name: default_of(record_type, field.name)
            for field in record_type.fields
            if field not in present
        }
        for name, default in self._defaults.items():
            if default is NO_DEFAULT:
                raise SchemaError(
                    f"the message {source.full_name} has no field {name!r}, which must have a value"
                )
        self._format: Final = ProtobufFormat(type_of_fields(present), source, allow_nan)

    def decode(self, bodies: pa.Array) -> Decoded:
        """Decode messages without what stands before them."""
        found = self._format.decode(bodies)
        columns = [
            field.to_arrow([self._defaults[field.name]] * len(found.batch))
            if field.name in self._defaults
            else found.batch.column(field.name)
            for field in self._type.fields
        ]
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self._type.schema), found.rows, found.bad)


class _Reader:
    """A decoder of messages of one registered schema, each of the type at the place that it names."""

    def __init__(self, files: MessageFiles, record_type: RecordType, *, allow_nan: bool) -> None:
        self._files: Final = files
        self._type: Final = record_type
        self._allow_nan: Final = allow_nan
        self._readers: dict[tuple[int, ...], _MessageReader | str] = {}

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages of the schema."""
        places, bad = _by_place(raw)
        pieces: list[tuple[npt.NDArray[np.int64], Decoded]] = []
        for (indexes, size), rows in places.items():
            reader = self._reader(indexes)
            if isinstance(reader, str):
                bad += [(row, reader) for row in rows.tolist()]
                continue
            wanted = raw if len(rows) == len(raw) else pc.take(raw, pa.array(rows))
            pieces.append((rows, reader.decode(without_header(wanted, size))))
        return merged(pieces, self._type, bad)

    def _reader(self, indexes: tuple[int, ...]) -> _MessageReader | str:
        if indexes not in self._readers:
            try:
                source = self._files.message(indexes)
                self._readers[indexes] = _MessageReader(source, self._type, allow_nan=self._allow_nan)
            except SchemaError as e:
                self._readers[indexes] = str(e)
        return self._readers[indexes]


def _by_place(
    raw: pa.Array,
) -> tuple[dict[tuple[tuple[int, ...], int], npt.NDArray[np.int64]], list[tuple[int, str]]]:
    """Return the rows of messages by their place in the schema and what stands before them, and the bad rows."""
    offsets = offsets_of(raw)
    data = np.frombuffer(raw.buffers()[2], np.uint8)
    found: dict[tuple[tuple[int, ...], int], npt.NDArray[np.int64]] = {}
    bad: list[tuple[int, str]] = []
    # Nearly all messages are of the first type of their file, which is one zero.
    longer = np.flatnonzero(offsets[1:] - offsets[:-1] > HEADER.size)
    is_first = np.zeros(len(raw), np.bool_)
    is_first[longer] = data[offsets[:-1][longer] + HEADER.size] == 0
    others = defaultdict(list)
    for row in np.flatnonzero(~is_first).tolist():
        try:
            others[read_indexes(raw[row].as_py(), HEADER.size)].append(row)
        except ValueError as e:
            bad.append((row, str(e)))
    if is_first.any():
        found[(0,), HEADER.size + 1] = np.flatnonzero(is_first)
    for place, rows in others.items():
        found[place] = np.array(rows, np.int64)
    return found, bad


class RegisteredProtobufFormat:
    """Messages of protobuf: a zero, the id of the schema in the registry, the place of the message, and the message.

    Each is decoded by the schema that it names. A field of the record type that the message does not have gets its
    default, and one that the record type does not have is left out. For a sink, `registered` registers the file of
    its message class, after the files that it imports.
    """

    def __init__(
        self,
        record_type: RecordType,
        registry: RegistryClient,
        *,
        allow_nan: bool = False,
        written: tuple[ProtobufSource, bytes] | None = None,
    ) -> None:
        self._type = record_type
        self._registry = registry
        self._allow_nan = allow_nan
        self._written = written
        self._writer: Format | None = None
        self._messages: Final = FramedMessages(
            record_type, self._reader, allow_nan=allow_nan, block_rows=_BLOCK_ROWS
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._type, self._registry, self._allow_nan, self._written)

    def registered(self, subject: str, source: ProtobufSource | None) -> RegisteredProtobufFormat:
        """Return the same format, after registration of the file of a message with which it encodes.

        Raises SchemaError when there is no message, or it does not have the fields of the records.
        """
        format_of("protobuf", self._type, protobuf=source)
        assert source is not None
        schema_id = self._register(subject, source)
        header = HEADER.pack(MAGIC, schema_id) + index_bytes(indexes_of(source))
        return _made(self._type, self._registry, self._allow_nan, (source, header))

    def _register(self, subject: str, source: ProtobufSource) -> int:
        """Register the files of a message, each after those that it imports, under their names."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        known: dict[str, dict[str, Any]] = {}
        *imported, main = source.files
        for data in imported:
            file = FileDescriptorProto.FromString(data)
            if is_well_known(file.name):
                continue
            references = [known[name] for name in file.dependency if name in known]
            version = self._registry.register_version(file.name, file_text(data), _KIND, references)
            known[file.name] = {"name": file.name, "subject": file.name, "version": version}
        file = FileDescriptorProto.FromString(main)
        references = [known[name] for name in file.dependency if name in known]
        return self._registry.register(subject, file_text(main), _KIND, references)

    def _reader(self, schema_id: int) -> _Reader:
        found = schema_of(self._registry, schema_id, _KIND, SERIALIZED)
        if is_text(found.text):
            found = compiled(found)
        return _Reader(MessageFiles(found), self._type, allow_nan=self._allow_nan)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages, of each schema all at once. Raises ExternalSystemError when the registry is away."""
        return self._messages.decode(raw)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as messages of the class that was registered."""
        assert self._written is not None, "a source does not encode"
        source, header = self._written
        if self._writer is None:
            self._writer = format_of("protobuf", self._type, protobuf=source, allow_nan=self._allow_nan)
        return framed(self._writer.encode(batch), header)


def _made(
    record_type: RecordType,
    registry: RegistryClient,
    allow_nan: bool,
    written: tuple[ProtobufSource, bytes] | None,
) -> RegisteredProtobufFormat:
    return RegisteredProtobufFormat(record_type, registry, allow_nan=allow_nan, written=written)
