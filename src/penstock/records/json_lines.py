"""JSON lines: records of one type as JSON, in bulk."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.records.types import RecordType, python_values

__all__ = ["JsonLines"]


class JsonLines:
    """An encoder of record batches as lines of JSON.

    Enumerations are written as their values, bytes in base64, times in ISO 8601, and NaN and None as null.
    """

    def __init__(self, record_type: RecordType) -> None:
        self._names = record_type.field_names
        # Rows are built straight from the columns: the user's class may be slow to construct, or validate values.
        places = {f"f{i}": name for i, name in enumerate(self._names)}
        # Rows live for one call; keeping a million of them out of garbage collection doubles the speed.
        fields = [(place, Any) for place in places]
        self._row = msgspec.defstruct("Row", fields, rename=places, gc=False)
        self._encoder: Final = msgspec.json.Encoder()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        r"""Return all records as lines, each ending in `\n`."""
        columns = [python_values(batch.column(name)) for name in self._names]
        return self._encoder.encode_lines(list(map(self._row, *columns)))
