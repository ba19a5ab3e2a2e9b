"""Texts: lossless conversion of whole columns to human-readable text and back.

A scalar is the text of a CSV cell. Nested values, and all values in JSON Lines, are JSON. Numbers that JSON lacks (NaN
and the infinities) and types that it lacks (times, decimals, bytes) are JSON strings with the same text as the cell.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.snapshots.row_sizes import element_spans

__all__ = ["TEXT", "cell_texts", "is_plain", "json_texts", "parse_cells", "text_bytes"]

TEXT: Final = pa.large_string()
"""The type of all texts: its offsets are not limited to 2 GB."""

_Mask: TypeAlias = npt.NDArray[np.bool_]
# Not by `pa.scalar`, which imports pandas first; a running job seldom needs these texts.
_NULL: Final = pa.nulls(1, TEXT)[0]
_NEWLINE: Final = 10
# The prefix of the integer of a date or time that has no calendar text.
_RAW: Final = "#"

_ESCAPED: Final = np.zeros(256, bool)
_ESCAPED[[*range(32), ord('"'), ord("\\")]] = True


def _literal(text: str) -> pa.Scalar:
    return pa.scalar(text, TEXT)


def _join(*pieces: Any) -> pa.Array:
    """Join pieces of text row by row; null where one of them is null."""
    return pc.binary_join_element_wise(*pieces, _literal(""))


def _quote(texts: pa.Array) -> pa.Array:
    """Put texts between quotes."""
    return _join(_literal('"'), texts, _literal('"'))


def text_bytes(texts: pa.Array) -> pa.Buffer:
    """Return all texts of a column, concatenated, without a copy."""
    offsets, data = _offsets(texts), texts.buffers()[2]
    if data is None or not len(texts):
        return pa.py_buffer(b"")
    return data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _offsets(texts: pa.Array) -> npt.NDArray[np.int64]:
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _mask(column: pa.Array) -> _Mask:
    mask: _Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _replace(texts: pa.Array, mask: _Mask, by: pa.Array | pa.Scalar) -> pa.Array:
    return pc.if_else(pa.array(mask), by, texts) if mask.any() else texts


# From values to text.


def cell_texts(column: pa.Array) -> pa.Array:
    """Return the cell of each value; null for null."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), TEXT)
    if pa.types.is_floating(kind):
        return _float_texts(column)
    if pa.types.is_duration(kind):
        return column.cast(pa.int64()).cast(TEXT)
    if pa.types.is_temporal(kind):
        return _calendar_texts(column)
    if _is_bytes(kind):
        quoted = _encode_lines(column.to_pylist())
        return pc.if_else(column.is_valid(), pc.utf8_trim(quoted, characters='"'), _NULL)
    if pa.types.is_nested(kind):
        return pc.if_else(column.is_valid(), json_texts(column), _NULL)
    return column.cast(TEXT)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether cells of this type are never empty and never need quotes."""
    return not (pa.types.is_nested(kind) or _is_bytes(kind) or _is_text(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _float_texts(column: pa.Array) -> pa.Array:
    """Return the shortest texts that parse to the same bits; NaN, Infinity and -Infinity."""
    texts = column.cast(TEXT)
    values = _floats(column)
    if column.type == pa.float32():
        # JSON has only 64-bit floats. If the text, read as one, does not round to the same 32 bits, write all digits.
        wide = column.cast(pa.float64())
        back = texts.cast(pa.float64()).cast(pa.float32(), safe=False)
        texts = _replace(texts, (_floats(back) != values) & ~np.isnan(values), wide.cast(TEXT))
    special = ~np.isfinite(values) | ((values == 0) & np.signbit(values))
    if special.any():
        for mask, text in (
            (np.isnan(values), "NaN"),
            (np.isposinf(values), "Infinity"),
            (np.isneginf(values), "-Infinity"),
            # Some JSON decoders read -0 as an integer, which has no sign.
            ((values == 0) & np.signbit(values), "-0.0"),
        ):
            texts = _replace(texts, mask, _literal(text))
        texts = pc.if_else(column.is_valid(), texts, _NULL)
    return texts


def _floats(column: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _integers(column: pa.Array) -> pa.Array:
    """Return dates and times as the integers by which Arrow stores them."""
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _calendar_texts(column: pa.Array) -> pa.Array:
    """Return dates and times in ISO 8601; those with a zone in UTC, with a Z."""
    kind = column.type
    integers = _integers(column)
    plain, zoned = column, pa.types.is_timestamp(kind) and kind.tz is not None
    if zoned:
        plain = integers.cast(pa.timestamp(kind.unit))
    outside = _outside(integers, kind)
    if outside.any():
        plain = pc.if_else(pa.array(outside), pa.scalar(None, plain.type), plain)
    texts = plain.cast(TEXT)
    if pa.types.is_timestamp(kind):
        texts = pc.binary_replace_slice(texts.cast(pa.large_binary()), 10, 11, b"T").cast(TEXT)
    if zoned:
        texts = _join(texts, _literal("Z"))
    return _replace(texts, outside, _join(_literal(_RAW), integers.cast(TEXT)) if outside.any() else _NULL)


_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_DAY, _LAST_DAY = -719528, 2932896  # of the years 0000 to 9999


def _outside(integers: pa.Array, kind: pa.DataType) -> _Mask:
    """Return a mask of the dates without a four-digit year, and of the times that are not within a day."""
    if pa.types.is_date32(kind):
        low, high = _FIRST_DAY, _LAST_DAY
    elif pa.types.is_time(kind):
        low, high = 0, 86400 * _PER_SECOND[kind.unit] - 1
    else:
        day = 86400 * _PER_SECOND[kind.unit]
        # On the first and last day in the range of nanoseconds, parsing would overflow.
        low = max(_FIRST_DAY * day, -(2**63) + day)
        high = min((_LAST_DAY + 1) * day, 2**63 - day) - 1
    values = integers.fill_null(0).to_numpy(zero_copy_only=False)
    outside: _Mask = (values < low) | (values > high)
    return outside


def _encode_lines(values: Sequence[Any]) -> pa.Array:
    """Encode values as JSON, one text each, in one call."""
    lines = np.frombuffer(msgspec.json.Encoder().encode_lines(values), np.uint8)
    ends = np.flatnonzero(lines == _NEWLINE)
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends - np.arange(len(ends))
    return _from_offsets(offsets, lines[lines != _NEWLINE])


def _from_offsets(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(TEXT, len(offsets) - 1, buffers)


def json_texts(column: pa.Array) -> pa.Array:
    """Encode each value as JSON; `null` for null."""
    kind = column.type
    if pa.types.is_struct(kind):
        texts = _struct_texts(column)
    elif pa.types.is_map(kind):
        texts = _map_texts(column)
    elif pa.types.is_nested(kind):
        texts = _list_texts(column)
    elif _is_text(kind):
        texts = _string_texts(column)
    elif _is_bytes(kind):
        texts = _encode_lines(column.to_pylist())
    else:
        texts = cell_texts(column)
        if pa.types.is_floating(kind):
            texts = _replace(texts, ~np.isfinite(_floats(column)), _quote(texts))
        elif pa.types.is_decimal(kind) or (pa.types.is_temporal(kind) and not pa.types.is_duration(kind)):
            texts = _quote(texts)
    if column.null_count:
        texts = pc.if_else(column.is_valid(), texts, _literal("null"))
    return texts


def _string_texts(column: pa.Array) -> pa.Array:
    texts = column.cast(TEXT)
    if _ESCAPED[np.frombuffer(text_bytes(texts), np.uint8)].any():
        return _encode_lines(texts.to_pylist())
    return _quote(texts)


def _struct_texts(column: pa.Array) -> pa.Array:
    pieces: list[Any] = []
    for place, field in enumerate(column.type):
        name = msgspec.json.encode(field.name).decode()
        pieces += [_literal(f"{',' if place else '{'}{name}:"), json_texts(column.field(place))]
    return _join(*pieces, _literal("}"))


def _group(offsets: npt.NDArray[np.int64], texts: pa.Array, brackets: str) -> pa.Array:
    groups = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
    return _join(_literal(brackets[0]), pc.binary_join(groups, _literal(",")), _literal(brackets[1]))


def _list_texts(column: pa.Array) -> pa.Array:
    offsets, low, count = element_spans(column)
    return _group(offsets, json_texts(column.values.slice(low, count)), "[]")


def _map_texts(column: pa.Array) -> pa.Array:
    """Encode maps as objects if keys are texts without duplicates, otherwise as lists of pairs."""
    offsets, low, count = element_spans(column)
    keys, items = column.keys.slice(low, count), column.items.slice(low, count)
    key_texts, item_texts = json_texts(keys), json_texts(items)
    pairs = _join(_literal("["), key_texts, _literal(","), item_texts, _literal("]"))
    if not _is_text(column.type.key_type):
        return _group(offsets, pairs, "[]")
    entries = _join(key_texts, _literal(":"), item_texts)
    texts = _group(offsets, entries, "{}")
    repeated = _mask_repeated_keys(offsets, keys)
    return _replace(texts, repeated, _group(offsets, pairs, "[]")) if repeated.any() else texts


def _mask_repeated_keys(offsets: npt.NDArray[np.int64], keys: pa.Array) -> _Mask:
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, rows))
    rows, codes = rows[order], codes[order]
    again = (rows[1:] == rows[:-1]) & (codes[1:] == codes[:-1])
    mask = np.zeros(len(offsets) - 1, bool)
    mask[rows[1:][again]] = True
    return mask


# From text to values. A value that does not fit raises ArrowInvalid or another ValueError, for the whole column.


def parse_cells(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse cells, which are texts or null, into values of a type that is not nested."""
    if _is_text(kind):
        return texts.cast(kind)
    if _is_bytes(kind):
        return _parse_bytes(texts, kind)
    if pa.types.is_null(kind):
        if texts.null_count < len(texts):
            raise ValueError("only null fits")
        return pa.nulls(len(texts))
    if pa.types.is_floating(kind):
        return _parse_floats(texts, kind)
    if pa.types.is_duration(kind):
        return texts.cast(pa.int64()).view(kind)
    if pa.types.is_temporal(kind):
        return _parse_calendar(texts, kind)
    return texts.cast(kind)


def _parse_bytes(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    decode = partial(binascii.a2b_base64, strict_mode=True)
    return pa.array([None if text is None else decode(text) for text in texts.to_pylist()], kind)


_INFINITE: Final = r"^[+-]?(?i:inf|infinity)$"


def _parse_floats(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    column = texts.cast(kind)
    infinite = np.isinf(_floats(column))
    if infinite.any():
        said = _mask(pc.match_substring_regex(texts, _INFINITE))
        if (infinite & ~said).any():
            raise ValueError(f"too large for {kind}")
    return column


_HAS_ZONE: Final = r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_IS_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def _parse_calendar(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    raw = _mask(pc.starts_with(texts, _RAW))
    if not raw.any():
        return _parse_calendar_texts(texts, kind)
    held = pa.int32() if kind.bit_width == 32 else pa.int64()
    # A view, since a cast of times would check their range.
    integers = pc.if_else(pa.array(raw), pc.utf8_slice_codeunits(texts, 1, 2**31 - 1), _NULL).cast(held)
    others = _integers(_parse_calendar_texts(pc.if_else(pa.array(raw), _NULL, texts), kind))
    return pc.coalesce(integers, others).view(kind)


def _parse_calendar_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # A time without a zone is in UTC.
        date_only = _mask(pc.match_substring_regex(texts, _IS_DATE))
        if date_only.any():
            texts = _replace(texts, date_only, _join(texts, _literal("T00:00:00")))
        bare = ~_mask(pc.match_substring_regex(texts, _HAS_ZONE))
        if bare.any():
            texts = _replace(texts, bare, _join(texts, _literal("Z")))
        return texts.cast(pa.timestamp(kind.unit, "UTC")).view(pa.int64()).view(kind)
    if pa.types.is_time(kind):
        # Arrow parses columns of whole timestamps only.
        since = _join(_literal("1970-01-01T"), texts).cast(pa.timestamp(kind.unit)).view(pa.int64())
        return since.cast(pa.int32()).view(kind) if kind.bit_width == 32 else since.view(kind)
    return texts.cast(kind)
