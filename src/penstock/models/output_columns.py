"""Outputs: the results of a model as the columns that a step declares, and the records without a usable score."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import Columns, ModelSpec

__all__ = ["conform_outputs"]


def conform_outputs(
    found: Columns, spec: ModelSpec, rows: int
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.bool_]]:
    """Return the declared columns, and a mask of the records with a score that is not finite.

    Raises ModelRefusedError for another number of records, and for values of another kind.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    bad = np.zeros(rows, np.bool_)
    for field in spec.outputs:
        column = np.asarray(found[field.name])
        if column.shape != (rows,):
            shape = "x".join(map(str, column.shape)) or "no dimension"
            raise ModelRefusedError(
                f"the model returned {field.name!r} with the shape {shape} for {rows} records"
            )
        columns[field.name] = column = _cast(column, field)
        if column.dtype.kind == "f" and not spec.allow_nan:
            finite = np.isfinite(column)
            if not finite.all():
                bad |= ~finite
    return columns, bad


def _cast(column: npt.NDArray[Any], field: pa.Field) -> npt.NDArray[Any]:
    kind = field.type
    if pa.types.is_floating(kind):
        fits = column.dtype.kind in "fiub"
    elif pa.types.is_integer(kind):
        fits = column.dtype.kind in "iub"
    elif pa.types.is_boolean(kind):
        fits = column.dtype.kind == "b" or (column.dtype.kind in "iu" and bool(np.isin(column, (0, 1)).all()))
    else:
        fits = column.dtype.kind in "OU"
    if not fits:
        raise ModelRefusedError(
            f"the model returned {field.name!r} as {column.dtype}, which cannot become {kind}"
        )
    return column.astype(object if pa.types.is_string(kind) else kind.to_pandas_dtype(), copy=False)
