"""Iceberg merge: the changes of a micro-batch as files that replace those of a table with rows of the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lakes.upsert_rows import GONE

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["merge_files", "replaced_rows"]

# Up to this many values are compared with the bounds of a file; of more, only the least and the greatest.
_MAX_VALUES: Final = 200


def merge_files(table: Table, changes: pa.Table, key: Sequence[str]) -> tuple[list[DataFile], list[DataFile]]:
    """Write the rows of a table that changes leave unchanged, and those that they add.

    Returns the files to remove from the table, and the new ones. Nothing of them is in the table yet.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow

    metadata, files = table.metadata, table.io
    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    old: list[DataFile] = []
    kept: list[pa.Table] = []
    if table.current_snapshot() is not None:
        scan = ArrowScan(metadata, files, metadata.schema(), AlwaysTrue())
        for task in table.scan(row_filter=_near(changes, key)).plan_files():
            rows = scan.to_table([task])
            is_replaced = replaced_rows(rows, changes, key)
            if is_replaced.any():
                old.append(task.file)
                kept.append(rows.filter(pa.array(~is_replaced)).cast(schema))
    stays = pc.invert(changes.column(GONE))
    new = changes.filter(stays).drop_columns([GONE])
    columns = [new.column(field.name).cast(field.type) for field in schema]
    rows = pa.concat_tables([*kept, pa.Table.from_arrays(columns, schema=schema)])
    written = list(_dataframe_to_data_files(metadata, rows, files)) if len(rows) else []
    return old, written


def _near(changes: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """Return a condition that is true for all rows of the keys, by which most files can be left out."""
    from pyiceberg import expressions

    # Its constructors take names, which their type hints do not allow.
    made: Any = expressions
    found: BooleanExpression = made.AlwaysTrue()
    for name in key:
        column = changes.column(name)
        values = pc.unique(column.drop_null())
        if len(values) <= _MAX_VALUES:
            near = made.In(name, [_literal(value) for value in values.to_pylist()])
        else:
            bounds = pc.min_max(values)
            least, greatest = _literal(bounds["min"].as_py()), _literal(bounds["max"].as_py())
            near = made.And(made.GreaterThanOrEqual(name, least), made.LessThanOrEqual(name, greatest))
        found = made.And(found, made.Or(near, made.IsNull(name)) if column.null_count else near)
    return found


def _literal(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def replaced_rows(rows: pa.Table, changes: pa.Table, key: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have the key of a change, where null is equal to null.

    >>> rows, changes = pa.table({"a": [1, 1, 2], "b": ["x", None, "x"]}), pa.table({"a": [1], "b": [None]})
    >>> replaced_rows(rows, changes, ["a", "b"]).tolist()
    [False, True, False]
    """
    numbers = np.zeros(len(rows) + len(changes), np.int64)
    for name in key:
        kind = rows.schema.field(name).type
        column = pa.chunked_array([*rows.column(name).chunks, *changes.column(name).cast(kind).chunks], kind)
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
    return np.isin(numbers[: len(rows)], numbers[len(rows) :])
