"""Message metadata: fields of a record that are filled from the Kafka message around it, not from its body."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.halves import work_by_halves
from penstock.records.types import Field, RecordType

__all__ = [
    "MessagePart",
    "Metadata",
    "body_type",
    "checked_metadata",
    "defaults_of",
    "kafka_header",
    "kafka_key",
    "kafka_offset",
    "kafka_partition",
    "kafka_timestamp",
    "kafka_topic",
    "typed_column",
]

_WHOLE_NUMBER: Final = r"^-?[0-9]+$"
_FIRST_MS: Final = int(dt.datetime.min.replace(tzinfo=dt.UTC).timestamp()) * 1000
_LAST_MS: Final = int(dt.datetime.max.replace(tzinfo=dt.UTC, microsecond=0).timestamp()) * 1000 + 999
# A dead letter shows this much of a key or header.
_SHOWN_BYTES: Final = 100


@dataclass(frozen=True)
class MessagePart:
    """A part of a Kafka message that fills a field. Make one with `kafka_key`, `kafka_header` and the like."""

    kind: Literal["key", "timestamp", "topic", "partition", "offset", "header"]
    header: str = ""

    def __str__(self) -> str:
        return f"kafka_{self.kind}({self.header!r})" if self.header else f"kafka_{self.kind}()"

    @property
    def noun(self) -> str:
        """The part in a sentence about a message."""
        return f"header {self.header!r}" if self.header else self.kind

    @property
    def is_bytes(self) -> bool:
        """Whether the part is bytes, which the field's type says how to read."""
        return self.kind in ("key", "header", "topic")


Metadata: TypeAlias = tuple[tuple[str, MessagePart], ...]
"""The fields that are filled from messages, in the order of the record's fields, each with its part."""


def kafka_key() -> MessagePart:
    """Fill a field with the key of the message: text (UTF-8), bytes, or an integer (in decimal digits).

    >>> kafka_key()
    MessagePart(kind='key', header='')
    """
    return MessagePart("key")


def kafka_timestamp() -> MessagePart:
    """Fill a field with the timestamp of the message: a timestamp, or an integer of milliseconds since 1970.

    It is the time that the producer gave, or with the topic's `message.timestamp.type=LogAppendTime` the broker's.
    """
    return MessagePart("timestamp")


def kafka_topic() -> MessagePart:
    """Fill a text field with the name of the topic from which the message was read.

    It tells records apart where a stream reads all topics of a pattern.
    """
    return MessagePart("topic")


def kafka_partition() -> MessagePart:
    """Fill an integer field with the number of the partition from which the message was read."""
    return MessagePart("partition")


def kafka_offset() -> MessagePart:
    """Fill an integer field with the offset of the message in its partition."""
    return MessagePart("offset")


def kafka_header(name: str) -> MessagePart:
    """Fill a field with a header of the message: text (UTF-8), bytes, or an integer (in decimal digits).

    If the message has several headers of that name, the last one counts.

    Raises:
        SchemaError: the name is empty or not text.

    """
    if not isinstance(name, str) or not name:
        raise SchemaError(f"kafka_header needs the name of a header, such as 'trace-id', not {name!r}.")
    return MessagePart("header", name)


def checked_metadata(stream: str, kind: RecordType, metadata: Mapping[str, MessagePart] | None) -> Metadata:
    """Return the metadata of a stream. Raises SchemaError when a field does not exist, or its type does not fit."""
    given = dict(metadata or {})
    for name, part in given.items():
        if not isinstance(part, MessagePart):
            raise SchemaError(
                f"Stream {stream!r}: metadata={{{name!r}: {part!r}}} does not name a part of a message. Use "
                "ps.kafka_key(), ps.kafka_timestamp(), ps.kafka_topic(), ps.kafka_partition(), "
                "ps.kafka_offset() or ps.kafka_header(NAME)."
            )
        try:
            field = kind.field(name)
        except SchemaError as e:
            raise SchemaError(f"Stream {stream!r}: metadata names {name!r}, but {e}") from None
        if (allowed := _unfit(field, part)) is not None:
            raise SchemaError(
                f"Stream {stream!r}: the field {name!r} is {field.arrow_type}, and cannot be {part}; use {allowed}."
            )
    if given and len(given) == len(kind.fields):
        raise SchemaError(
            f"Stream {stream!r}: metadata fills all fields of {kind.name}, so none is left for the body of a message. "
            "Add a field; with format=bytes it holds the body as it is."
        )
    return tuple((name, given[name]) for name in kind.field_names if name in given)


def _unfit(field: Field, part: MessagePart) -> str | None:
    """Return which types a part can fill, if the type of the field is not one of them."""
    python_type, arrow_type = field.python_type, field.arrow_type
    is_wide = arrow_type in (pa.int64(), pa.uint64())
    if part.kind == "topic":
        return None if python_type is str else "str"
    if part.is_bytes:
        return None if python_type in (str, bytes, int) else "str, bytes or int"
    if part.kind == "timestamp":
        is_time = python_type is dt.datetime or (python_type is int and is_wide)
        return None if is_time else "a timestamp, or a 64-bit integer of milliseconds"
    if part.kind == "offset":
        return None if python_type is int and is_wide else "a 64-bit integer"
    is_partition = python_type is int and arrow_type.bit_width >= 32
    return None if is_partition else "an integer of 32 or 64 bits"


def body_type(kind: RecordType, metadata: Metadata) -> RecordType:
    """Return the type of the bodies of messages: the fields that are not filled from metadata."""
    return _body_type((kind, metadata)) if metadata else kind


# By class, since record types are equal when their names and fields are, whatever their defaults.
_known: Final[dict[tuple[type, Metadata], RecordType]] = {}


def _body_type(whole: tuple[RecordType, Metadata]) -> RecordType:
    kind, metadata = whole
    place = kind.python_class, metadata
    if place not in _known:
        filled = {name for name, _ in metadata}
        fields = [field for field in kind.fields if field.name not in filled]
        _known[place] = RecordType(kind.name, fields, _body_class(kind, fields), (_body_type, whole))
    return _known[place]


def _body_class(kind: RecordType, fields: list[Field]) -> type:
    """Return a Struct with some fields of a record's class, and their defaults and names in JSON."""
    given = kind.python_class
    defaults, names = defaults_of(given), {}
    config: dict[str, Any] = {}
    if issubclass(given, msgspec.Struct):
        names = {one.name: one.encode_name for one in msgspec.structs.fields(given)}
        own = given.__struct_config__
        config = {
            "tag": own.tag,
            "tag_field": own.tag_field,
            "forbid_unknown_fields": own.forbid_unknown_fields,
        }
    specs = []
    for field in fields:
        hint = field.python_type | None if field.nullable else field.python_type
        specs.append((field.name, hint, *defaults.get(field.name, ())))
    return msgspec.defstruct(kind.name, specs, rename=names, kw_only=True, **config)


def defaults_of(given: type) -> dict[str, tuple[Any]]:
    """Return the defaults of the fields of a dataclass or a Struct, in the form that `defstruct` takes."""
    values: list[tuple[str, Any, Any]]
    if dataclasses.is_dataclass(given):
        values = [(one.name, one.default, one.default_factory) for one in dataclasses.fields(given)]
        none: Any = dataclasses.MISSING
    else:
        assert issubclass(given, msgspec.Struct)
        values = [(one.name, one.default, one.default_factory) for one in msgspec.structs.fields(given)]
        none = msgspec.NODEFAULT
    found: dict[str, tuple[Any]] = {}
    for name, value, factory in values:
        if value is not none:
            found[name] = (value,)
        elif factory is not none:
            found[name] = (msgspec.field(default_factory=factory),)
    return found


def typed_column(field: Field, part: MessagePart, raw: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the column of a field, filled with a part of each message, and why some rows have no valid value.

    `raw` is binary for keys and headers, and otherwise int64; a null means that the message does not have the part.
    """
    bad: dict[int, str] = {}
    if part.is_bytes:
        column = _read_bytes(field, part, raw, bad)
    elif pa.types.is_timestamp(field.arrow_type):
        column = _read_times(field, part, raw, bad)
    else:
        column = raw.cast(field.arrow_type, safe=False)
        if pa.types.is_unsigned_integer(field.arrow_type):
            _refuse(field, part, raw, pc.less(raw, 0), "is negative", bad)
    if not field.nullable and raw.null_count:
        for row in np.flatnonzero(raw.is_null().to_numpy(zero_copy_only=False)):
            bad[int(row)] = f"field {field.name!r} is not optional, and the message has no {part.noun}"
    return column, bad


def _read_bytes(field: Field, part: MessagePart, raw: pa.Array, bad: dict[int, str]) -> pa.Array:
    if pa.types.is_binary(field.arrow_type):
        return raw
    pieces: list[pa.Array] = []
    is_text = pa.types.is_string(field.arrow_type)
    what = "UTF-8 text" if is_text else f"a whole number that fits {field.arrow_type}"

    def work(low: int, high: int) -> None:
        one = raw.slice(low, high - low)
        pieces.append(_text(one) if is_text else _numbers(one, field.arrow_type))

    def refuse(row: int, _: Exception) -> None:
        _refuse(field, part, raw, {row}, f"is not {what}", bad)
        pieces.append(pa.nulls(1, field.arrow_type))

    work_by_halves(len(raw), work, refuse, (pa.ArrowException, ValueError))
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _text(raw: pa.Array) -> pa.Array:
    return raw.cast(pa.string())


def _numbers(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    text = _text(raw)
    # Arrow alone would also accept hexadecimal digits.
    if pc.all(pc.match_substring_regex(text, _WHOLE_NUMBER)).as_py() is False:
        raise ValueError("not decimal digits")
    return text.cast(kind)


def _read_times(field: Field, part: MessagePart, raw: pa.Array, bad: dict[int, str]) -> pa.Array:
    beyond = pc.or_(pc.less(raw, _FIRST_MS), pc.greater(raw, _LAST_MS))
    _refuse(field, part, raw, beyond, "lies beyond the years 1 to 9999", bad)
    return pc.if_else(beyond, None, raw).cast(pa.timestamp("ms", "UTC")).cast(field.arrow_type)


def _refuse(field: Field, part: MessagePart, raw: pa.Array, rows: Any, why: str, bad: dict[int, str]) -> None:
    """Note why rows have no valid value; they are given as numbers or as a mask."""
    if isinstance(rows, pa.Array):
        rows = np.flatnonzero(rows.fill_null(False).to_numpy(zero_copy_only=False))
    for row in rows:
        value = raw[int(row)].as_py()
        shown = repr(value[:_SHOWN_BYTES] if isinstance(value, bytes) else value)
        bad[int(row)] = f"field {field.name!r}: the {part.noun} {shown} of the message {why}"
