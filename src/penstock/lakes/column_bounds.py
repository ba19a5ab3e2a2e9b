"""Column bounds: the statistics of a file in the log, by which readers skip files without a wanted record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["file_statistics"]

# Like other writers of Delta Lake.
_MAX_COLUMNS: Final = 32
_MAX_CHARS: Final = 32


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str]) -> str:
    """Return the number of records, and the least and greatest value and the nulls of the first 32 columns, as JSON.

    A column that has NaN has no bounds, since readers differ in where it stands among the others.
    """
    bounds: dict[str, tuple[Any, Any]] = {}
    nulls: dict[str, int] = {}
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        if name not in schema.names[:_MAX_COLUMNS] or pa.types.is_nested(schema.field(name).type):
            continue
        groups = [
            metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)
        ]
        if any(found is None or not found.has_null_count for found in groups):
            continue
        nulls[name] = sum(found.null_count for found in groups)
        with_values = [found for found in groups if found.num_values]
        is_bounded = _has_bounds(schema.field(name).type) and name not in with_nan
        if is_bounded and with_values and all(found.has_min_max for found in with_values):
            least = min(found.min for found in with_values)
            bounds[name] = (least, max(found.max for found in with_values))
    return msgspec.json.encode(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: _shown(least) for name, (least, _) in bounds.items()},
            # The beginning of a long text is less than the text, so it is not an upper bound.
            "maxValues": {
                name: _shown(greatest)
                for name, (_, greatest) in bounds.items()
                if not isinstance(greatest, str) or len(greatest) <= _MAX_CHARS
            },
            "nullCount": nulls,
        }
    ).decode()


def _has_bounds(kind: pa.DataType) -> bool:
    known = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(is_type(kind) for is_type in known)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MAX_CHARS]
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value
