"""JSON Lines: one object per row, with all its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.snapshots.json_values import JsonValues
from penstock.snapshots.text_columns import TEXT, json_texts, text_bytes
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

__all__ = ["JsonLinesFormat"]

_ROWS: Final = 1 << 14


class JsonLinesFormat:
    """Encoder and decoder of JSON Lines for one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._values = JsonValues(pa.field("row", pa.struct(list(schema)), nullable=False))

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Encode rows as lines."""
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(self._schema))
        lines = pc.binary_join_element_wise(json_texts(rows), pa.scalar("\n", TEXT), pa.scalar("", TEXT))
        return text_bytes(lines)

    def decode(self, data: npt.NDArray[np.uint8]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file. Raises UnfitRowError for the first row that does not fit."""
        bounds = row_bounds(data, quoted=False)
        for first, end in row_parts(bounds, 0, _ROWS):
            part = bounds[first : end + 1]
            try:
                yield self._decode(data, part, len(part) - 1)
            except NOT_FITTING:
                raise self._unfit(data, part, first) from None

    def _decode(
        self, data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], count: int
    ) -> pa.RecordBatch:
        rows = self._values.decode(memoryview(data[bounds[0] : bounds[count]]), count)  # type: ignore[arg-type]  # an array is a buffer
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self._schema)

    def _unfit(self, data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], first: int) -> UnfitRowError:
        row, error = first_unfit(lambda count: self._decode(data, bounds, count), len(bounds) - 1)
        reason, place = reason_of(error)
        text, line = row_text(data, bounds, row), line_of(data, int(bounds[row]))
        return UnfitRowError(first + row, place, text, reason, line=line)
