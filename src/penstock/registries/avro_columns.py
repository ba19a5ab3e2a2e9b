"""Avro columns: flat records of Avro decoded field by field, each field of all messages at once.

This module only finds that a message does not fit its schema, not why: such rows are left to a
decoder of single messages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.registries.framed_messages import offsets_of

__all__ = ["AvroColumns", "columns_of", "fitting"]

_Ints = npt.NDArray[np.int64]
_Reader = Callable[["_Cursor"], pa.Array]
# A reader may look at this many bytes after a place.
_PADDING: Final = 8
_MORE: Final = np.uint64(0x8080_8080_8080_8080)
_ONE: Final = np.uint64(1)


class _Cursor:
    """A place in each of some messages. `odd` marks those that the schema does not describe."""

    def __init__(self, data: npt.NDArray[np.uint8], at: _Ints, end: _Ints) -> None:
        self.data: Final = data
        self.at = at
        self.end: Final = end
        self.odd = np.zeros(len(at), np.bool_)

    def words(self, kind: str) -> npt.NDArray[Any]:
        """Return the bytes at the places as numbers of a type."""
        width = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - width + 1,), kind, self.data, 0, (1,))[self.at]

    def skip(self, sizes: _Ints | int) -> None:
        """Move on by some bytes, none of them negative; to leave the message is odd."""
        after = self.at + sizes
        beyond = after > self.end
        if beyond.any():
            self.odd |= beyond
            after = np.minimum(after, self.end)
        self.at = after

    def where(self, rows: _Ints) -> _Cursor:
        """Return a cursor of some of the messages."""
        return _Cursor(self.data, self.at[rows], self.end[rows])

    def take_over(self, other: _Cursor, rows: _Ints) -> None:
        """Continue where a cursor of some of the messages is."""
        self.at[rows] = other.at
        self.odd[rows] |= other.odd


def _long(cursor: _Cursor) -> _Ints:
    """Read integers of seven bits a byte, the lowest first, signs in the lowest bit."""
    word = cursor.words("<u8")
    ends = ~word & _MORE
    if (ends & np.uint64(0x80)).all():
        found, size = word & np.uint64(0x7F), np.ones(len(word), np.int64)
    else:
        # Those of nine and ten bytes are so rare that they are left to the other decoder.
        cursor.odd |= ends == 0
        below = (ends & (~ends + _ONE)) - _ONE
        size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        found = word & below
        # Seven bits of each byte become fourteen of each two, then twenty-eight of four, then all.
        for low, high, shift in (
            (0x007F_007F_007F_007F, 0x7F00_7F00_7F00_7F00, 1),
            (0x0000_3FFF_0000_3FFF, 0x3FFF_0000_3FFF_0000, 2),
            (0x0000_0000_0FFF_FFFF, 0x0FFF_FFFF_0000_0000, 4),
        ):
            found = (found & np.uint64(low)) | ((found & np.uint64(high)) >> np.uint64(shift))
    cursor.skip(size)
    return (found >> _ONE).astype(np.int64) ^ -(found & _ONE).astype(np.int64)


def _longs(cursor: _Cursor) -> pa.Array:
    return pa.array(_long(cursor))


def _bytes(cursor: _Cursor) -> pa.Array:
    size = _long(cursor)
    if size.min(initial=0) < 0 or size.max(initial=0) > len(cursor.data):
        cursor.odd |= size < 0
        size = np.clip(size, 0, len(cursor.data))
    count = len(size)
    if not count:
        return pa.array([], pa.binary())
    # Values and what is between them are one array in turns, of which only the values are copied.
    turns = np.empty(2 * count, np.int32)
    turns[0::2] = cursor.at
    cursor.skip(size)
    # What is odd is nearly never text, which would be an error of the whole column.
    turns[1::2] = np.where(cursor.odd, turns[0::2], cursor.at)
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(turns), pa.py_buffer(cursor.data)]
    )
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _text(cursor: _Cursor) -> pa.Array:
    return _bytes(cursor).cast(pa.string())


def _boolean(cursor: _Cursor) -> pa.Array:
    found = cursor.words("u1")
    cursor.skip(1)
    cursor.odd |= found > 1
    return pa.array(found == 1)


def _fixed(kind: str) -> _Reader:
    def read(cursor: _Cursor) -> pa.Array:
        found = cursor.words(kind)
        cursor.skip(found.itemsize)
        return pa.array(found)

    return read


def _null(cursor: _Cursor) -> pa.Array:
    return pa.nulls(len(cursor.at))


def _enumeration(symbols: Sequence[str]) -> _Reader:
    names = pa.array(symbols, pa.string())

    def read(cursor: _Cursor) -> pa.Array:
        place = _long(cursor)
        wrong = (place < 0) | (place >= len(names))
        cursor.odd |= wrong
        place[wrong] = 0
        return names.take(pa.array(place))

    return read


def _or_null(inner: _Reader, null_branch: int) -> _Reader:
    def read(cursor: _Cursor) -> pa.Array:
        branch = _long(cursor)
        cursor.odd |= (branch != 0) & (branch != 1)
        is_null = branch == null_branch
        if not is_null.any():
            return inner(cursor)
        rows = np.flatnonzero(~is_null)
        there = cursor.where(rows)
        found = inner(there)
        cursor.take_over(there, rows)
        # Each row has the index of its value among the values that are not null.
        return found.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))

    return read


_PLAIN: Final[dict[str, _Reader]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _longs,
    "long": _longs,
    "float": _fixed("<f4"),
    "double": _fixed("<f8"),
    "bytes": _bytes,
    "string": _text,
}
_UTC: Final = "UTC"
# The days of Python, from the first one of 1970; the other decoder has no values for others, wanted or not.
_FIRST_DAY, _LAST_DAY = (
    day.toordinal() - dt.date(1970, 1, 1).toordinal() for day in (dt.date.min, dt.date.max)
)


def _between(cursor: _Cursor, first: int, last: int) -> _Ints:
    """Read integers; one that is outside of two others is odd."""
    found = _long(cursor)
    wrong = (found < first) | (found > last)
    cursor.odd |= wrong
    found[wrong] = first
    return found


def _timed(unit: str, per_second: int) -> _Reader:
    first, last = _FIRST_DAY * 86400 * per_second, (_LAST_DAY + 1) * 86400 * per_second - 1

    def read(cursor: _Cursor) -> pa.Array:
        found = pa.array(_between(cursor, first, last))
        return found.cast(pa.timestamp(unit, _UTC)).cast(pa.timestamp("us", _UTC))

    return read


def _date(cursor: _Cursor) -> pa.Array:
    return pa.array(_between(cursor, _FIRST_DAY, _LAST_DAY).astype(np.int32)).cast(pa.date32())


_LOGICAL: Final[dict[tuple[str, str], _Reader]] = {
    ("long", "timestamp-micros"): _timed("us", 1_000_000),
    ("long", "timestamp-millis"): _timed("ms", 1000),
    ("int", "date"): _date,
}


def _reader_of(schema: Any) -> _Reader | None:
    """Return what reads values of a schema; None for arrays, maps, records and other logical types."""
    if isinstance(schema, str):
        return _PLAIN.get(schema)
    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            return None
        null_branch = schema.index("null")
        inner = _reader_of(schema[1 - null_branch])
        return None if inner is None else _or_null(inner, null_branch)
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical is not None:
        return _LOGICAL.get((kind, logical))
    if kind == "enum":
        return _enumeration(schema["symbols"])
    return _PLAIN.get(kind) if isinstance(kind, str) else None


class AvroColumns:
    """A decoder of flat records: one reader for each field of the schema, in its order."""

    def __init__(self, readers: Sequence[_Reader], wanted: Sequence[int]) -> None:
        self._readers: Final = readers
        self._wanted: Final = wanted

    def decode(self, raw: pa.Array, header_size: int) -> tuple[list[pa.Array], _Ints]:
        """Return columns of the wanted fields, and the rows whose values there mean nothing.

        Messages are not null, and have their headers. Raises pyarrow's ArrowInvalid when a value cannot be in its
        column, such as text that is not UTF-8.
        """
        offsets = offsets_of(raw).astype(np.int64)
        first, last = offsets[0], offsets[-1]
        data = np.empty(last - first + _PADDING, np.uint8)
        data[:-_PADDING] = np.frombuffer(raw.buffers()[2], np.uint8)[first:last]
        data[-_PADDING:] = 0
        cursor = _Cursor(data, offsets[:-1] - first + header_size, offsets[1:] - first)
        found = [read(cursor) for read in self._readers]
        cursor.odd |= cursor.at != cursor.end
        return [found[place] for place in self._wanted], np.flatnonzero(cursor.odd)


def columns_of(schema: Any, names: Sequence[str]) -> AvroColumns | None:
    """Return a decoder of the named fields of a record's schema; None if it has a field that is not flat."""
    there = [field["name"] for field in schema["fields"]]
    readers = [_reader_of(field["type"]) for field in schema["fields"]]
    known = [reader for reader in readers if reader is not None]
    if not names or len(known) < len(readers):
        return None
    return AvroColumns(known, [there.index(name) for name in names])


def fitting(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return a column as one of another type, if each value means the same there; None for types that differ more."""
    if column.type == kind:
        return column
    wider = pa.types.is_integer(column.type) and (pa.types.is_integer(kind) or pa.types.is_float64(kind))
    if (
        pa.types.is_null(column.type)
        or wider
        or (pa.types.is_float32(column.type) and pa.types.is_float64(kind))
    ):
        return pc.cast(column, kind)
    return None
