"""CSV: a header, a column for each value that is not nested, and JSON for nested values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from penstock.snapshots.arrow_schemas import missing_row
from penstock.snapshots.json_values import JsonValues
from penstock.snapshots.text_columns import TEXT, cell_texts, is_plain, parse_cells, text_bytes
from penstock.snapshots.text_rows import (
    NOT_FITTING,
    UnfitRowError,
    first_unfit,
    line_of,
    reason_of,
    row_bounds,
    row_parts,
    row_text,
)

__all__ = ["CsvFormat"]

_ROWS: Final = 1 << 16
_BOM: Final = b"\xef\xbb\xbf"

_SPECIAL: Final = np.zeros(256, bool)
# The first byte of a byte order mark, which readers drop.
_SPECIAL[[*b',"\r\n \t', _BOM[0]]] = True
_TO_QUOTE: Final = r'[,"\r\n\x{feff}]|^[ \t]|[ \t]$|^$'


@dataclass(frozen=True)
class _Leaf:
    """A column of the file: its header, and the path of fields to it."""

    name: str
    path: tuple[int, ...]
    field: pa.Field


def _leaves(fields: Sequence[pa.Field], prefix: str = "", path: tuple[int, ...] = ()) -> Iterator[_Leaf]:
    for place, field in enumerate(fields):
        name, here = f"{prefix}{field.name}", (*path, place)
        if pa.types.is_struct(field.type) and not field.nullable:
            yield from _leaves(list(field.type), f"{name}.", here)
        else:
            yield _Leaf(name, here, field)


def _columns(schema: pa.Schema) -> list[_Leaf]:
    leaves = list(_leaves(list(schema)))
    if len({leaf.name for leaf in leaves}) < len(leaves):
        # Names that contain dots collide with those of structs.
        return [_Leaf(field.name, (place,), field) for place, field in enumerate(schema)]
    return leaves


class CsvFormat:
    """Encoder and decoder of CSV for one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._leaves = _columns(schema)
        self._nested = {
            leaf.name: JsonValues(leaf.field) for leaf in self._leaves if pa.types.is_nested(leaf.field.type)
        }

    def header(self) -> bytes:
        """Return the first line."""
        names = pa.array([leaf.name for leaf in self._leaves], TEXT)
        return ",".join(_quote(names).to_pylist()).encode() + b"\n"

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Encode rows as lines."""
        pieces: list[Any] = []
        for leaf in self._leaves:
            column = batch.column(leaf.path[0])
            for place in leaf.path[1:]:
                column = column.field(place)
            texts = cell_texts(column)
            if not is_plain(column.type):
                texts = _quote(texts)
            pieces += [texts, pa.scalar(",", TEXT)]
        pieces[-1] = pa.scalar("\n", TEXT)
        lines = pc.binary_join_element_wise(
            *pieces, pa.scalar("", TEXT), null_handling="replace", null_replacement=""
        )
        return text_bytes(lines)

    def decode(self, data: npt.NDArray[np.uint8]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file. Raises UnfitRowError for the first row that does not fit."""
        if data[:3].tobytes() == _BOM:
            data = data[3:]
        bounds = row_bounds(data, quoted=True)
        if len(bounds) < 2:
            raise UnfitRowError(0, "", "", "there is no header", line=1)
        names = self._names(data[: bounds[1]].tobytes())
        for first, end in row_parts(bounds, 1, _ROWS):
            yield _Part(self, data, bounds[first : end + 1], first - 1, names).decode()

    def _names(self, header: bytes) -> list[str]:
        names = next(csv.reader(io.StringIO(header.decode("utf-8", "replace"), newline="")), [])
        wanted = [leaf.name for leaf in self._leaves]
        if sorted(names) != sorted(wanted):
            missing, unknown = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
            reason = f"the header lacks {missing}, has unknown {unknown}"
            if not missing and not unknown:
                reason = "the header has a name twice"
            raise UnfitRowError(-1, "", ",".join(names), reason, line=1)
        return names

    def batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Build a batch from the columns of the file."""
        arrays = iter([columns[leaf.name] for leaf in self._leaves])
        if len(self._leaves) == len(self._schema) and all(len(leaf.path) == 1 for leaf in self._leaves):
            return pa.RecordBatch.from_arrays(list(arrays), schema=self._schema)
        return pa.RecordBatch.from_arrays([_assemble(f, arrays) for f in self._schema], schema=self._schema)

    def column(self, name: str, cells: pa.Array) -> pa.Array:
        """Convert the cells of one column to values."""
        if name not in self._nested:
            leaf = next(leaf for leaf in self._leaves if leaf.name == name)
            return parse_cells(cells, leaf.field.type)
        lines = pc.replace_substring_regex(cells.fill_null("null"), r"[\r\n]", " ")
        joined = text_bytes(pc.binary_join_element_wise(lines, pa.scalar("\n", TEXT), pa.scalar("", TEXT)))
        return self._nested[name].decode(joined, len(cells))

    @property
    def leaves(self) -> list[_Leaf]:
        """The columns of the file."""
        return self._leaves


def _assemble(field: pa.Field, leaves: Iterator[pa.Array]) -> pa.Array:
    if pa.types.is_struct(field.type) and not field.nullable:
        inner = [_assemble(child, leaves) for child in field.type]
        return pa.StructArray.from_arrays(inner, fields=list(field.type))
    return next(leaves)


def _quote(texts: pa.Array) -> pa.Array:
    """Quote the texts that need it; most columns have none."""
    data = np.frombuffer(text_bytes(texts), np.uint8)
    lengths = pc.binary_length(texts)
    if not _SPECIAL[data].any() and not pc.any(pc.equal(lengths, 0)).as_py():
        return texts
    needy = pc.match_substring_regex(texts, _TO_QUOTE)
    doubled = pc.replace_substring(texts, '"', '""') if (data == ord('"')).any() else texts
    quote = pa.scalar('"', TEXT)
    return pc.if_else(needy, pc.binary_join_element_wise(quote, doubled, quote, pa.scalar("", TEXT)), texts)


@dataclass(frozen=True)
class _Part:
    """A range of rows of a file that are decoded together."""

    format: CsvFormat
    data: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int64]
    first: int
    names: list[str]

    @property
    def rows(self) -> int:
        return len(self.bounds) - 1

    def decode(self) -> pa.RecordBatch:
        cells = self._cells()
        columns = {}
        for leaf in self.format.leaves:
            try:
                columns[leaf.name] = column = self.format.column(leaf.name, cells[leaf.name])
            except NOT_FITTING:
                raise self._first_unfit_cell(cells) from None
            # The JSON decoder has already checked values inside of JSON.
            if not leaf.field.nullable and column.null_count:
                raise self._first_unfit_cell(cells)
        return self.format.batch(columns)

    def _cells(self) -> dict[str, pa.Array]:
        try:
            return self._read(self.rows, TEXT)
        except NOT_FITTING:
            pass
        try:
            cells = self._read(self.rows, pa.large_binary())
        except NOT_FITTING:
            row, error = first_unfit(lambda count: self._read(count, pa.large_binary()), self.rows)
            line = row_text(self.data, self.bounds, row)
            raise self._unfit(row, "", line, reason_of(error)[0]) from None
        raise self._first_unfit_cell(cells)

    def _read(self, count: int, kind: pa.DataType) -> dict[str, pa.Array]:
        part = self.data[self.bounds[0] : self.bounds[count]]
        if len(self.names) > 1 and self._blank()[:count].any():
            # It would be read as a row of nulls, which is never intended.
            raise ValueError("the line is empty")
        table = pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(part)),
            read_options=pa_csv.ReadOptions(
                column_names=self.names, block_size=len(part) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(self.names, kind),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        if table.num_rows != count:
            raise ValueError("there is a quote inside an unquoted cell")
        return {name: table.column(name).combine_chunks() for name in self.names}

    def _blank(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows with an empty line."""
        firsts = self.data[self.bounds[:-1]]
        blank: npt.NDArray[np.bool_] = (firsts == ord("\n")) | (
            (firsts == ord("\r")) & (np.diff(self.bounds) == len("\r\n"))
        )
        return blank

    def _first_unfit_cell(self, cells: dict[str, pa.Array]) -> UnfitRowError:
        """Return the error of the first cell that does not fit, in the first row that has one."""
        found, count = ("", "", ""), self.rows
        for leaf in self.format.leaves:
            convert = partial(self._convert, cells[leaf.name], leaf)
            if not _fits(convert, count):
                row, error = first_unfit(convert, count)
                value = cells[leaf.name][row].as_py()
                if isinstance(value, bytes):
                    value = value.decode("utf-8", "backslashreplace")
                # A later column counts only if its row is earlier.
                found, count = (leaf.name, value or "", reason_of(error)[0]), row
        return self._unfit(count, *found)

    def _convert(self, cells: pa.Array, leaf: _Leaf, count: int) -> None:
        part = cells.slice(0, count)
        column = self.format.column(leaf.name, part.cast(TEXT) if part.type != TEXT else part)
        if missing_row(column, leaf.field) is not None:
            raise ValueError("it must not be empty")

    def _unfit(self, row: int, column: str, value: str, reason: str) -> UnfitRowError:
        line = line_of(self.data, int(self.bounds[row]))
        return UnfitRowError(self.first + row, column, value, reason, line=line)


def _fits(convert: Callable[[int], Any], count: int) -> bool:
    try:
        convert(count)
    except NOT_FITTING:
        return False
    return True
