"""Cells: convert the columns of tables to field types, and find the cells that do not fit."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.exact_values import infinities
from penstock.records.halves import work_by_halves
from penstock.records.nested_values import mixes_times
from penstock.records.shown_values import show_values
from penstock.records.types import Field
from penstock.sources.floored_times import floor_nanoseconds

__all__ = ["Cells", "cast_cells", "missing_cells", "parse_cells"]

_CAST_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError)


@dataclass(frozen=True)
class Cells:
    """A column in its field's type, and a mask of the rows where the value did not fit; those are null."""

    column: pa.Array
    bad: npt.NDArray[np.bool_] | None
    source: pa.Array
    field: Field

    def reasons(self, rows: npt.NDArray[np.int64], places: pa.Array) -> list[str]:
        """Return why the values in the given rows (in both forms) do not fit; "" for a value that does."""
        assert self.bad is not None
        kind = self.field.enum.__name__ if self.field.enum is not None else str(self.field.arrow_type)
        return [
            f"field {self.field.name!r}: {_format_value(value)} is not of type {kind}" if bad else ""
            for value, bad in zip(show_values(self.source.take(places)), self.bad[rows].tolist(), strict=True)
        ]


def _format_value(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def missing_cells(field: Field, rows: int) -> Cells:
    """Return the column of a field that the table does not have."""
    nulls = pa.nulls(rows, field.arrow_type)
    return Cells(nulls, None, nulls, field)


def cast_cells(source: pa.Array, field: Field) -> Cells:
    """Convert a column of a Parquet file to its field's type."""
    target = field.arrow_type
    column, bad = _fit(source, target, lambda part: _cast_all(part, target))
    return _members_only(Cells(column, bad, source, field))


def _cast_all(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_nested(column.type):
        # Files may have text that is not UTF-8, which Arrow finds only on request.
        column.validate(full=True)
    if column.type == target:
        return column
    if mixes_times(column.type, target):
        raise pa.ArrowNotImplementedError("numbers are no times")
    # A time may become its microsecond or its day; no other conversion may lose anything.
    found = floor_nanoseconds(column).cast(
        options=pc.CastOptions(target_type=target, allow_time_truncate=True)
    )
    if pa.types.is_float32(target) and infinities(found) > infinities(column):
        raise ValueError("a number is too large for 32 bits")
    return found


def parse_cells(source: pa.Array, field: Field) -> Cells:
    """Convert a column of CSV cells (binary) to its field's type."""
    target = field.arrow_type
    if pa.types.is_nested(target):
        decoder = msgspec.json.Decoder(field.python_type)
        column, bad = _fit(source, target, lambda part: _nested(part, field, decoder))
        return Cells(column, bad, source, field)
    convert = _text_all if pa.types.is_string(target) else lambda part: _parse_all(part, target)
    column, bad = _fit(source, target, convert)
    return _members_only(Cells(column, bad, source, field))


def _members_only(cells: Cells) -> Cells:
    """For enumerations, mark values that no member has as bad as well."""
    if cells.field.enum is None:
        return cells
    members = pa.array([member.value for member in cells.field.enum], cells.column.type)
    unknown = pc.and_(cells.column.is_valid(), pc.invert(pc.is_in(cells.column, value_set=members)))
    mask = unknown.to_numpy(zero_copy_only=False)
    if not mask.any():
        return cells
    bad = mask if cells.bad is None else cells.bad | mask
    return Cells(cells.column, bad, cells.source, cells.field)


def _text_all(cells: pa.Array) -> pa.Array:
    return cells.cast(pa.string())


_INFINITE: Final = r"^\s*[+-]?(?i:inf|infinity)\s*$"
_HAS_ZONE: Final = r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)$"


def _parse_all(cells: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert CSV cells to a type other than str. Raises one of _CAST_ERRORS when one does not fit."""
    if pa.types.is_binary(target):
        return _each(cells, target, lambda cell: base64.b64decode(cell, validate=True))
    text = cells.cast(pa.string())
    found = _as_it_is(text, target)
    found = _tidied(text, target).cast(target) if found is None else found
    if infinities(found) > pc.match_substring_regex(text, _INFINITE).true_count:
        raise ValueError("a number is too large")
    return found


def _as_it_is(text: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Return cells in a type, or None if Arrow cannot read all of them unchanged."""
    try:
        return text.cast(target)
    except _CAST_ERRORS:
        return None


def _tidied(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Return cells in the form that Arrow reads: trimmed, null if empty, without a plus, times with a zone."""
    text = pc.ascii_trim_whitespace(text)
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    if pa.types.is_integer(target) or pa.types.is_decimal(target):
        text = pc.replace_substring_regex(text, r"^\+", "")
    if pa.types.is_timestamp(target) and target.tz is not None:
        # A time without a zone is in UTC.
        date_only = pc.match_substring_regex(text, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
        text = pc.if_else(date_only, pc.binary_join_element_wise(text, "T00:00:00Z", ""), text)
        zoned = pc.or_(date_only, pc.match_substring_regex(text, _HAS_ZONE))
        text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text


def _nested(cells: pa.Array, field: Field, decoder: Any) -> pa.Array:
    """Return JSON in cells as the nested values of a field. Raises ValueError when one does not fit."""
    try:
        values = [None if cell is None else decoder.decode(cell) for cell in cells.to_pylist()]
        return field.to_arrow(values, check=False)
    except (SchemaError, RecursionError) as e:
        raise ValueError(str(e)) from None


def _each(cells: pa.Array, target: pa.DataType, parse: Any) -> pa.Array:
    return pa.array([None if cell is None else parse(cell) for cell in cells.to_pylist()], target)


_Convert: TypeAlias = Callable[[pa.Array], pa.Array]


def _fit(
    source: pa.Array, target: pa.DataType, convert: _Convert
) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Convert a column whole, or by halves where that fails, until each cell that does not fit is isolated."""
    try:
        return convert(source), None
    except _CAST_ERRORS:
        source, bad = _without_hopeless(source, target)
    pieces: list[pa.Array] = []

    def work(low: int, high: int) -> None:
        part = source.slice(low, high - low)
        try:
            pieces.append(convert(part))
        except pa.ArrowNotImplementedError:
            # No value of this type fits, so none is checked.
            bad[low:high] |= part.is_valid().to_numpy(zero_copy_only=False)
            pieces.append(pa.nulls(high - low, target))

    def refuse(row: int, _: Exception) -> None:
        bad[row] = True
        pieces.append(pa.nulls(1, target))

    work_by_halves(len(source), work, refuse, _CAST_ERRORS)
    return pa.concat_arrays(pieces), bad


_LOOKS_LIKE: Final = (
    (pa.types.is_integer, r"^\s*[+-]?(?:[0-9]+|0[xX][0-9a-fA-F]+)\s*$"),
    (pa.types.is_floating, r"^\s*[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))\s*$"),
    (pa.types.is_decimal, r"^\s*[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?\s*$"),
    (pa.types.is_boolean, r"^\s*(?i:true|false|0|1)\s*$"),
    (pa.types.is_temporal, r"^\s*[0-9]{4}-"),
)


def _without_hopeless(source: pa.Array, target: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Set cells that clearly do not fit to null, in bulk, so that only few are tried one by one."""
    hopeful: pa.Array | None = None
    if pa.types.is_binary(source.type) or pa.types.is_string(source.type):
        pattern = next((pattern for is_kind, pattern in _LOOKS_LIKE if is_kind(target)), None)
        if pattern is not None:
            blank = pc.match_substring_regex(source, r"^\s*$")
            hopeful = pc.or_(pc.match_substring_regex(source, pattern), blank)
    elif pa.types.is_floating(source.type) and pa.types.is_floating(target):
        fits = pc.is_finite(source.cast(target, safe=False))
        hopeful = pc.or_(fits, pc.invert(pc.is_finite(source)))
    elif _is_number(source.type) and _is_number(target):
        # A number fits when it survives conversion there and back.
        back = source.cast(target, safe=False).cast(source.type, safe=False)
        hopeful = pc.equal(back, source)
    if hopeful is None:
        return source, np.zeros(len(source), bool)
    bad = ~hopeful.fill_null(True).to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(bad), pa.scalar(None, source.type), source), bad


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
