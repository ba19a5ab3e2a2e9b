"""Formats: records as bytes on the wire, decoded and encoded in bulk.

A format decodes a column of byte strings into a record batch at once. When that fails, it halves the column until it
has found the records that do not decode. It returns these with a reason each, and the others as usual.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.halves import work_by_halves
from penstock.records.json_lines import JsonLines
from penstock.records.nested_values import fold_name, match_names
from penstock.records.protobuf_columns import check_field, fitted, panics_as_errors, with_default
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.small_columns import FEW, cast_column, column_of
from penstock.records.types import RecordType, concat_batches, rows_where

__all__ = [
    "Decoded",
    "Format",
    "FormatName",
    "JsonFormat",
    "ProtobufFormat",
    "decode_non_null",
    "decode_pieces",
    "format_of",
    "join_lines",
    "reject_invalid",
]

_OPEN, _CLOSE, _LINE_END = b"{}\n"

FormatName = Literal["json", "protobuf", "bytes"]


@dataclass(frozen=True)
class Decoded:
    """Decoded records. `rows` holds their positions in the input (None: all of them, in order)."""

    batch: pa.RecordBatch
    rows: npt.NDArray[np.int64] | None
    bad: Sequence[tuple[int, str]]


class Format(Protocol):
    """A converter of byte strings into records of one type and back."""

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary column; each record that does not decode is in `bad` with its position and the reason."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as a binary column."""


def format_of(
    name: FormatName,
    record_type: RecordType,
    *,
    protobuf: ProtobufSource | None = None,
    allow_nan: bool = False,
) -> Format:
    """Return the format of that name for a record type.

    Raises SchemaError when the two do not fit, for example protobuf without a message class.
    """
    if name == "json":
        return JsonFormat(record_type, allow_nan)
    if name == "bytes":
        return BytesFormat(record_type)
    if protobuf is None:
        raise SchemaError(
            f"{record_type.name} has no protobuf message. Give the generated class as the schema, or as protobuf= "
            "in addition to a dataclass."
        )
    return ProtobufFormat(record_type, protobuf, allow_nan)


def decode_pieces(
    raw: pa.Array, decode: Callable[[pa.Array], pa.RecordBatch], schema: pa.Schema
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None, list[tuple[int, str]]]:
    """Decode a column whole, or by halves where that fails, until each record that does not decode is isolated.

    Returns the records, their rows (None: all, in order), and why the others do not decode.
    """
    pieces: list[pa.RecordBatch] = []
    bad: list[tuple[int, str]] = []

    def work(low: int, high: int) -> None:
        pieces.append(decode(raw.slice(low, high - low)))

    # A record's class may check its values, and raise anything.
    def refuse(row: int, error: Exception) -> None:
        bad.append((row, _sentence(error)))

    if len(raw):
        work_by_halves(len(raw), work, refuse)
    rows = None
    if bad:
        rows = np.delete(np.arange(len(raw), dtype=np.int64), [row for row, _ in bad])
    return concat_batches(pieces, schema), rows, bad


def _sentence(error: Exception) -> str:
    text = str(error).strip().encode("utf-8", "backslashreplace").decode()
    if isinstance(error, ValueError | SchemaError | OverflowError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reject_invalid(
    decoded: Decoded, record_type: RecordType, allow_nan: bool, *, unchecked: bool = False
) -> Decoded:
    """Move rows that decode but are not valid records (missing values, NaN) to `bad`.

    Columns are `unchecked` if they were not made of values of Python, so that what is nested in them may not fit.
    """
    reasons = record_type.missing(decoded.batch, allow_nan=allow_nan, unchecked=unchecked)
    if reasons is None:
        return decoded
    good = reasons == ""
    rows = decoded.rows if decoded.rows is not None else np.arange(len(reasons), dtype=np.int64)
    bad = [*decoded.bad, *((int(rows[i]), str(reasons[i])) for i in np.flatnonzero(~good))]
    return Decoded(rows_where(decoded.batch, good), rows[good], sorted(bad))


def decode_non_null(raw: pa.Array, decode: Callable[[pa.Array], Decoded]) -> Decoded:
    """Decode the values that are not null; a null value (a Kafka tombstone) is not a record."""
    if raw.null_count == 0:
        return decode(raw)
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(valid)
    inner = decode(pc.drop_null(raw))
    rows = places if inner.rows is None else places[inner.rows]
    bad = [(int(places[row]), reason) for row, reason in inner.bad]
    bad += [(int(row), "the value is null") for row in np.flatnonzero(~valid)]
    return Decoded(inner.batch, rows, sorted(bad))


class JsonFormat:
    """One JSON object per record, with the names of the record's fields. Unknown fields are ignored.

    msgspec decodes lines in bulk at about 6 million small records per second, and validates the types at the same time.
    pyarrow's JSON reader is slower here and cannot report which line was wrong.
    """

    def __init__(self, record_type: RecordType, allow_nan: bool) -> None:
        self._type = record_type
        self._allow_nan = allow_nan

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._type.python_class)

    @functools.cached_property
    def _lines(self) -> JsonLines:
        return JsonLines(self._type)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode JSON objects."""
        return decode_non_null(raw, self._decode_values)

    def _decode_values(self, raw: pa.Array) -> Decoded:
        decoded = Decoded(*decode_pieces(raw, self.decode_all, self._type.schema))
        return reject_invalid(decoded, self._type, self._allow_nan)

    def decode_all(self, raw: pa.Array) -> pa.RecordBatch:
        """Decode JSON objects. Raises what msgspec and the class of the records raise when one does not fit."""
        if len(raw) == 1:
            objects = [self._decoder.decode(raw[0].as_py())]
        else:
            objects = self._decoder.decode_lines(join_lines(raw))
            if len(objects) != len(raw):
                raise ValueError("lines and records differ")
        return self._type.batch(objects, check=False)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as JSON objects."""
        # JSON text contains no line ends, so lines encoded in bulk can be split again.
        return pa.array(self._lines.encode(batch).split(b"\n")[:-1], pa.binary())


def join_lines(raw: pa.Array) -> Any:
    """Return the values as lines in one buffer, without a copy when each already ends in a line end.

    Raises ValueError unless each value begins and ends with a brace. No JSON value contains `}`, a line end and `{` in
    a row, so the same number of records and values means that each value is one record.
    """
    offsets = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1]
    if (offsets[1:] > offsets[:-1] + 2).all():
        data = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        places = offsets - offsets[0]
        first, last, before = data[places[:-1]], data[places[1:] - 1], data[places[1:] - 2]
        if (first == _OPEN).all():
            if ((last == _LINE_END) & (before == _CLOSE)).all():
                return memoryview(data)  # type: ignore[arg-type]  # an array is a buffer
            if (last == _CLOSE).all():
                return b"\n".join(raw.to_pylist())
    lines = [value.strip() for value in raw.to_pylist()]
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        raise ValueError("a record is not a JSON object")
    return b"\n".join(lines)


class BytesFormat:
    """The value as it is, for record types with a single field of str or bytes."""

    def __init__(self, record_type: RecordType) -> None:
        fields = record_type.fields
        if len(fields) != 1 or fields[0].arrow_type not in (pa.binary(), pa.string()):
            raise SchemaError(
                f"{record_type!r} does not fit format=bytes, which needs a record with one field of bytes or str."
            )
        self._type = record_type
        self._is_text = fields[0].arrow_type == pa.string()

    def decode(self, raw: pa.Array) -> Decoded:
        return decode_non_null(raw, self._decode_values)

    def _decode_values(self, raw: pa.Array) -> Decoded:
        return Decoded(*decode_pieces(raw, self._decode_all, self._type.schema))

    def _decode_all(self, raw: pa.Array) -> pa.RecordBatch:
        column = raw
        if self._is_text:
            column = pc.utf8_rtrim(raw.cast(pa.string()), characters="\r\n")
        return pa.RecordBatch.from_arrays([column], schema=self._type.schema)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        return batch.column(0).cast(pa.binary())


class ProtobufFormat:
    """Protobuf messages, converted by ptars directly between wire bytes and Arrow columns.

    Fields of the record and of the message match by name, ignoring case and underscores; so do the members of
    enumerations (by name or by text value).
    """

    def __init__(self, record_type: RecordType, source: ProtobufSource, allow_nan: bool) -> None:
        self._type = record_type
        self._source = source
        self._allow_nan = allow_nan
        self._wire_names: Final = self._match_fields()

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufFormat, (self._type, self._source, self._allow_nan)

    def _match_fields(self) -> list[str]:
        names = []
        found = match_names(self._type.field_names, self._wire_schema.names)
        for field, name in zip(self._type.fields, found, strict=True):
            if name is None:
                raise SchemaError(
                    f"The protobuf message {self._source.full_name} has no field for {self._type.name}.{field.name}; "
                    f"its fields are {', '.join(self._wire_schema.names)}."
                )
            check_field(self._wire_field(name), self._wire_schema.field(name).type, field)
            names.append(name)
        return names

    def _wire_field(self, name: str) -> Any:
        """Return the descriptor of a field of the message."""
        return self._source.descriptor().fields_by_name[name]

    @functools.cached_property
    def _handler(self) -> Any:
        from ptars import HandlerPool, PtarsConfig

        descriptor = self._source.descriptor()
        config = PtarsConfig(enum_repr="string", timestamp_unit="us")
        try:
            with panics_as_errors():
                return HandlerPool([descriptor.file], config=config).get_for_message(descriptor)
        except ValueError as e:
            raise SchemaError(f"The protobuf message {self._source.full_name} cannot be used: {e}.") from None

    @functools.cached_property
    def _wire_schema(self) -> pa.Schema:
        schema: pa.Schema = self._handler.schema()
        return schema

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode messages."""
        return decode_non_null(raw, self._decode_values)

    def _decode_values(self, raw: pa.Array) -> Decoded:
        decoded = Decoded(*decode_pieces(raw, self._decode_all, self._type.schema))
        return reject_invalid(decoded, self._type, self._allow_nan, unchecked=True)

    def _decode_all(self, raw: pa.Array) -> pa.RecordBatch:
        with panics_as_errors():
            wire = self._handler.array_to_record_batch(raw)
        columns = []
        for field, name in zip(self._type.fields, self._wire_names, strict=True):
            column = with_default(wire.column(name), self._wire_field(name))
            if field.enum is not None:
                column = self._read_table(field.name, name).translate(column, f"enum {name!r}")
            columns.append(fitted(column, field))
        return pa.RecordBatch.from_arrays(columns, schema=self._type.schema)

    @functools.cache  # noqa: B019  # a format lives as long as its worker
    def _read_table(self, field_name: str, wire_name: str) -> _Table:
        """Return the table from names on the wire to values."""
        return _Table(*self._members(field_name, wire_name))

    @functools.cache  # noqa: B019  # as above
    def _write_table(self, field_name: str, wire_name: str) -> _Table:
        """Return the table from values to names on the wire."""
        names, values = self._members(field_name, wire_name)
        return _Table(values, names)

    def _members(self, field_name: str, wire_name: str) -> tuple[pa.Array, pa.Array]:
        """Return the names on the wire and the values they stand for, aligned."""
        members = self._type.field(field_name).enum
        assert members is not None
        by_name = {fold_name(m.name): m.value for m in members} | {
            fold_name(m.value): m.value for m in members if isinstance(m.value, str)
        }
        names = [v.name for v in self._source.descriptor().fields_by_name[wire_name].enum_type.values]
        known = [name for name in names if fold_name(name) in by_name]
        return pa.array(known, pa.string()), pa.array([by_name[fold_name(name)] for name in known])

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode records as messages."""
        columns = []
        for name in self._wire_schema.names:
            wire_field = self._wire_schema.field(name)
            if name not in self._wire_names:
                columns.append(_defaults(wire_field, len(batch)))
                continue
            field = self._type.fields[self._wire_names.index(name)]
            column = batch.column(field.name)
            if field.enum is not None:
                column = self._write_table(field.name, name).translate(column, f"field {field.name!r}")
            columns.append(cast_column(column, wire_field.type))
        wire = pa.RecordBatch.from_arrays(columns, schema=self._wire_schema)
        with panics_as_errors():
            encoded: pa.Array = self._handler.record_batch_to_array(wire)
        return encoded


class _Table:
    """A table from known values to others."""

    def __init__(self, known: pa.Array, values: pa.Array) -> None:
        self._known: Final = known
        self._values: Final = values
        pairs = list(zip(known.to_pylist(), values.to_pylist(), strict=True))
        # The first of equal values counts.
        self._of: Final = {None: None, **dict(reversed(pairs))}

    def translate(self, column: pa.Array, what: str) -> pa.Array:
        """Return the values that those of a column stand for. Raises ValueError for an unknown one."""
        if len(column) <= FEW:
            found = column.to_pylist()
            if all(value in self._of for value in found):
                return column_of([self._of[value] for value in found], self._values.type)
        places = pc.index_in(column, value_set=self._known)
        if places.null_count > column.null_count:
            unknown = pc.filter(column, pc.and_(column.is_valid(), places.is_null()))[0].as_py()
            raise ValueError(
                f"{what} has the unknown member {unknown!r}; known members are "
                f"{', '.join(map(str, self._known.to_pylist()))}"
            )
        return self._values.take(places)


def _defaults(field: pa.Field, count: int) -> pa.Array:
    """Return a column of protobuf defaults, which take no bytes on the wire."""
    if field.nullable:
        return pa.nulls(count, field.type)
    if pa.types.is_list(field.type):
        return pa.array([[]] * count, field.type)
    if pa.types.is_map(field.type):
        return pa.array([{}] * count, field.type)
    if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
        return pa.array([b""] * count, pa.binary()).cast(field.type)
    return pa.array(np.zeros(count), pa.float64()).cast(field.type)
