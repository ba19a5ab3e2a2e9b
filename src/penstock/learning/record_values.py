"""Record values: the fields of records that a model needs, one record or columns, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["column_numbers", "column_values", "record_numbers", "record_values"]

Columns = dict[str, npt.NDArray[np.float64]]


def record_numbers(record: Any, names: Sequence[str]) -> dict[str, np.float64]:
    """Return the numbers of a record by name. Raises ValueError where a field has no finite number."""
    found = {}
    for name, value in zip(names, _fields(record, names), strict=True):
        number = np.float64(np.nan if value is None else value)
        if not np.isfinite(number):
            raise ValueError(f"the model needs a finite number in the field {name!r}, and got {value!r}")
        found[name] = number
    return found


def column_numbers(records: Any, names: Sequence[str], count: int) -> Columns:
    """Return the numbers of records as columns by name. Raises ValueError where one is not finite."""
    found = {}
    for name in names:
        column = _column(records, name)
        if isinstance(column, pa.Array):
            column = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        values = np.asarray(column, np.float64)
        if values.shape != (count,):
            raise ValueError(
                f"the column {name!r} has the shape {values.shape}, and there are {count} key indices"
            )
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise ValueError(f"the model needs finite numbers in the column {name!r}; row {row} has none")
        found[name] = values
    return found


def record_values(record: Any, names: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of a record by name, as Python's own types.

    Raises ValueError for a missing value, or one of another type: a text in `texts`, a finite number elsewhere.
    """
    return {
        name: _check(name, value, is_text=name in texts)
        for name, value in zip(names, _fields(record, names), strict=True)
    }


def column_values(
    records: Any, names: Sequence[str], texts: Sequence[str], count: int
) -> dict[str, list[Any]]:
    """Return the values of records as lists by name; raises as `record_values`."""
    found = {}
    for name in names:
        column = _column(records, name)
        values = column.to_pylist() if isinstance(column, pa.Array) else np.asarray(column).tolist()
        if len(values) != count:
            raise ValueError(
                f"the column {name!r} has {len(values)} values, and there are {count} key indices"
            )
        found[name] = [_check(name, value, is_text=name in texts) for value in values]
    return found


def _fields(record: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(record, Mapping):
        return [record.get(name) for name in names]
    return [getattr(record, name) for name in names]


def _column(records: Any, name: str) -> Any:
    return records.column(name) if isinstance(records, pa.RecordBatch) else records[name]


def _check(name: str, value: Any, *, is_text: bool) -> Any:
    if is_text:
        if type(value) is str:
            return value
        raise ValueError(f"the model needs a text in the field {name!r}, and got {value!r}")
    if type(value) in (bool, int):
        return value
    try:
        number = float(np.nan if value is None or isinstance(value, str) else value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"the model needs a finite number in the field {name!r}, and got {value!r}")
    return number
