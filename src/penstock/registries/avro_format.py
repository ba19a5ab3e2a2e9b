"""Avro: records as Avro with the id of their schema before them, as Confluent's serializers write them."""

from __future__ import annotations

import functools
import io
import json
import uuid
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BindingError, SchemaError
from penstock.records.types import CustomColumnCodec, RecordType, concat_batches, python_values
from penstock.records.wire_formats import Decoded, decode_pieces
from penstock.registries.avro_columns import columns_of, fitting
from penstock.registries.avro_depth import DepthCheck, make_depth_check
from penstock.registries.avro_schemas import schema_text, wire_names
from penstock.registries.field_defaults import NO_DEFAULT, default_of
from penstock.registries.framed_messages import HEADER, MAGIC, FramedMessages, merged, schema_of
from penstock.registries.registry_client import RegistryClient

__all__ = ["AvroFormat", "check_installed"]

# Records of schemas that are not flat become dictionaries, then columns; few at a time stay in the processor's cache.
_BLOCK_ROWS: Final = 2048
_PIECE_ROWS: Final = 2 * _BLOCK_ROWS
_COLUMN_ROWS: Final = 32_768


def check_installed(stream: str) -> None:
    """Raise BindingError when the library for Avro is missing."""
    try:
        import fastavro  # noqa: F401  # whether it is installed
    except ImportError as e:
        raise BindingError(
            f"Stream {stream!r}: format=avro needs fastavro. Install it with: pip install 'penstock[avro]'"
        ) from e


class _Reader:
    """A decoder of what one registered schema describes."""

    def __init__(self, schema: Any, record_type: RecordType, check_depth: DepthCheck | None) -> None:
        self._schema: Final = schema
        self._check_depth: Final = check_depth
        self._type: Final = record_type
        self._names: Final = wire_names(record_type, schema)
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        self._has_uuid: Final = [
            name is not None and '"uuid"' in json.dumps(kinds[name]) for name in self._names
        ]

        self._columns: Final = columns_of(schema, [name for name in self._names if name is not None])

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages of the schema."""
        found = self._in_bulk(raw)
        if found is None:
            return self._one_by_one(raw)
        batch, odd = found
        if not len(odd):
            return Decoded(batch, None, [])
        rows = np.delete(np.arange(len(raw)), odd)
        single = self._one_by_one(raw.take(pa.array(odd)))
        return merged([(rows, Decoded(batch.take(pa.array(rows)), None, [])), (odd, single)], self._type, [])

    def _in_bulk(self, raw: pa.Array) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]] | None:
        """Return records, and the rows that have to be decoded one by one instead; None if all have to be."""
        if self._columns is None:
            return None
        try:
            found, odd = self._columns.decode(raw, HEADER.size)
            values = iter(found)
            columns = [
                self._default(place, len(raw)) if name is None else self._fitting(next(values), place)
                for place, name in enumerate(self._names)
            ]
        except (pa.ArrowException, SchemaError, ValueError):
            # One of the messages does not fit; the other way finds out which, and why.
            return None
        if any(column is None for column in columns):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._type.schema), odd

    def _fitting(self, column: pa.Array, place: int) -> pa.Array | None:
        """Return the column of a field; None if it takes Python objects to make it. Raises ValueError."""
        field = self._type.fields[place]
        if isinstance(field.python_type, CustomColumnCodec):
            return None
        found = fitting(column, field.arrow_type)
        if found is not None:
            field.check(found.drop_null())
        return found

    def _one_by_one(self, raw: pa.Array) -> Decoded:
        found = []
        for first in range(0, len(raw), _PIECE_ROWS):
            piece = raw.slice(first, _PIECE_ROWS)
            rows = np.arange(first, first + len(piece), dtype=np.int64)
            found.append((rows, Decoded(*decode_pieces(piece, self._decode_all, self._type.schema))))
        return merged(found, self._type, [])

    def _decode_all(self, raw: pa.Array) -> pa.RecordBatch:
        """Decode messages. Raises ValueError or what fastavro raises when one of them does not fit."""
        found = [
            self._decode_block(raw.slice(first, _BLOCK_ROWS)) for first in range(0, len(raw), _BLOCK_ROWS)
        ]
        return concat_batches(found, self._type.schema)

    def _decode_block(self, raw: pa.Array) -> pa.RecordBatch:
        from fastavro import schemaless_reader

        # All messages are one buffer for the reader; each must end where the next begins.
        messages = raw.to_pylist()
        body = io.BytesIO(b"".join(messages))
        seek, tell, schema = body.seek, body.tell, self._schema
        records: list[Any] = []
        end = 0
        for message in messages:
            begin, end = end + HEADER.size, end + len(message)
            if self._check_depth is not None:
                self._check_depth(message, HEADER.size)
            seek(begin)
            try:
                records.append(schemaless_reader(body, schema, None))
            except EOFError:
                # The error itself has an address of memory in it.
                raise ValueError("the message ends within what its schema describes") from None
            if tell() != end:
                raise ValueError(
                    f"the message has {end - begin} bytes of Avro, and its schema describes {tell() - begin}"
                )
        columns = [self._column(records, place) for place in range(len(self._names))]
        return pa.RecordBatch.from_arrays(columns, schema=self._type.schema)

    def _column(self, records: list[Any], place: int) -> pa.Array:
        field, name = self._type.fields[place], self._names[place]
        if name is None:
            return self._default(place, len(records))
        values = [record[name] for record in records]
        if self._has_uuid[place]:
            values = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
        field.complete(values)
        return field.to_arrow(values, check=False)

    def _default(self, place: int, count: int) -> pa.Array:
        """Return the column of a field that the schema does not have. Raises ValueError if it must have a value."""
        field = self._type.fields[place]
        default = default_of(self._type, field.name)
        if default is NO_DEFAULT:
            raise ValueError(f"the schema has no field {field.name!r}, which must have a value")
        return field.to_arrow([default] * count, check=False)


class AvroFormat:
    """Messages of Avro: a zero, the id of the schema in the registry (four bytes), and the record.

    Messages are decoded by the schema that each of them names. Fields become those of the record type: one that the
    schema does not have gets its default, one that the record type does not have is left out, and numbers may be
    wider than they were. For a sink, `registered` registers the schema of the record type.
    """

    def __init__(
        self,
        record_type: RecordType,
        registry: RegistryClient,
        *,
        allow_nan: bool = False,
        schema_id: int = 0,
    ) -> None:
        self._type = record_type
        self._registry = registry
        self._allow_nan = allow_nan
        self._schema_id = schema_id
        self._messages: Final = FramedMessages(
            record_type, self._reader, allow_nan=allow_nan, block_rows=_COLUMN_ROWS
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(AvroFormat, allow_nan=self._allow_nan, schema_id=self._schema_id), (
            self._type,
            self._registry,
        )

    def registered(self, subject: str) -> AvroFormat:
        """Return the same format, after registration of the schema with which it encodes."""
        schema_id = self._registry.register(subject, schema_text(self._type))
        return AvroFormat(self._type, self._registry, allow_nan=self._allow_nan, schema_id=schema_id)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages, of each schema all at once. Raises ExternalSystemError when the registry is away."""
        return self._messages.decode(raw)

    def _reader(self, schema_id: int) -> _Reader:
        schema, named = self._parsed(schema_id)
        return _Reader(schema, self._type, make_depth_check(schema, named))

    def _parsed(self, schema_id: int) -> tuple[Any, dict[str, Any]]:
        """Return a schema, and all types that have names in it and in those that it refers to."""
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException

        found = schema_of(self._registry, schema_id, "AVRO")
        try:
            named: dict[str, Any] = {}
            for _, text in found.references:
                parse_schema(json.loads(text), named_schemas=named)
            return parse_schema(json.loads(found.text), named_schemas=named), named
        except (SchemaParseException, ValueError, TypeError, KeyError) as e:
            raise SchemaError(f"{type(e).__name__}: {e}") from e

    @functools.cached_property
    def _writer_schema(self) -> Any:
        from fastavro import parse_schema

        return parse_schema(json.loads(schema_text(self._type)))

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records by the schema of their type, with the id that the registry has given it."""
        from fastavro import schemaless_writer

        header, schema, names = (
            HEADER.pack(MAGIC, self._schema_id),
            self._writer_schema,
            self._type.field_names,
        )
        columns = [python_values(batch.column(name)) for name in names]
        out = io.BytesIO()
        ends = [0]
        for values in zip(*columns, strict=True):
            out.write(header)
            schemaless_writer(out, schema, dict(zip(names, values, strict=True)))
            ends.append(out.tell())
        offsets = pa.array(ends, pa.int32()).buffers()[1]
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(batch), [None, offsets, pa.py_buffer(out.getvalue())]
        )
