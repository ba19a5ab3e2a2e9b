"""Row sizes: the bytes that each row of a batch takes, so that batches can be split before they become too large.

Arrow counts the bytes of texts in one array with 32 bits, so code that combines rows must know when to stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Bound", "element_spans", "row_sizes", "runs_within"]

_Sizes = npt.NDArray[np.int64]
_VARIABLE_LENGTH = (
    *(pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_string, pa.types.is_large_string),
)


@dataclass(frozen=True)
class Bound:
    """The limit of a run: at most this many rows and bytes, but at least one row."""

    rows: int
    bytes: int


def row_sizes(batch: pa.RecordBatch) -> _Sizes:
    """Return the approximate bytes of each row. They depend only on its values, not on the rest of the batch."""
    return sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def runs_within(batches: Iterable[pa.RecordBatch], bound: Bound) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows in runs, each filled up to the bound. The runs depend on the rows, not on how they are batched."""
    run: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        ends = np.cumsum(row_sizes(batch))
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + bound.bytes - size, side="right")) - start
            count = min(max(fitting, 0 if run else 1), bound.rows - rows, batch.num_rows - start)
            if count:
                run.append(batch.slice(start, count))
                rows, size = rows + count, size + int(ends[start + count - 1]) - before
                start += count
            if rows >= bound.rows or start < batch.num_rows:
                yield run
                run, rows, size = [], 0, 0
    if run:
        yield run


def _sizes(column: pa.Array) -> _Sizes:
    kind: Any = column.type
    count = len(column)
    if pa.types.is_struct(kind):
        fields = [_sizes(column.field(place)) for place in range(kind.num_fields)]
        return sum(fields, np.zeros(count, np.int64))
    if pa.types.is_fixed_size_list(kind):
        length = kind.list_size
        values = _sizes(column.values.slice(column.offset * length, count * length))
        together: _Sizes = values.reshape(count, length).sum(axis=1, dtype=np.int64)
        return together
    if pa.types.is_nested(kind):
        return _list_sizes(column)
    if any(has_type(kind) for has_type in _VARIABLE_LENGTH):
        lengths: _Sizes = (
            pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return lengths + 4
    if pa.types.is_null(kind):
        return np.zeros(count, np.int64)
    return np.full(count, -(-kind.bit_width // 8), np.int64)


def element_spans(column: pa.Array) -> tuple[_Sizes, int, int]:
    """Return the offsets of the elements of lists or maps, counted from 0, and the start and length of their range."""
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    low, high = int(offsets[0]), int(offsets[-1])
    return offsets - low, low, high - low


def _list_sizes(column: pa.Array) -> _Sizes:
    offsets, low, count = element_spans(column)
    inner = [column.keys, column.items] if pa.types.is_map(column.type) else [column.values]
    ends = np.zeros(count + 1, np.int64)
    for values in inner:
        ends[1:] += np.cumsum(_sizes(values.slice(low, count)))
    sizes: _Sizes = np.diff(ends[offsets]) + 4
    return sizes
