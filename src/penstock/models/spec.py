"""Specs: the declaration of a model in a step, and the conversion of columns to its inputs and from its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.refusals import ModelRefusedError

__all__ = ["Columns", "ModelSpec", "Predictor", "matrix_of", "numpy_column", "numpy_value", "output_column"]

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Columns of one length by name."""


@dataclass(frozen=True)
class ModelSpec:
    """The declaration of a model in a step: its columns, and what is needed to load it.

    `weights` is the user's class for weights, `trusted` the types beyond those of scikit-learn that a file of skops may
    contain. `budget_ms` is the time for 1,000 records, None if it does not matter. Unless `allow_nan`, a score that is
    not finite counts as none.
    """

    inputs: pa.Schema
    outputs: pa.Schema
    weights: type | None = None
    trusted: tuple[str, ...] = ()
    budget_ms: int | None = None
    allow_nan: bool = False


class Predictor(Protocol):
    """A loaded model."""

    def predict(self, columns: Columns) -> Columns:
        """Return the output columns for input columns, which all have the same length. May raise anything."""


def numpy_column(column: Any, kind: pa.DataType) -> npt.NDArray[Any]:
    """Return a column for NumPy: a null in a column of floats is NaN. Raises ValueError for other nulls."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column if column.dtype == _numpy_type(kind) else column.astype(_numpy_type(kind))
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        column = pa.array(column, kind)
    if column.type != kind:
        column = column.cast(kind)
    if column.null_count and not pa.types.is_floating(kind):
        raise ValueError(f"a value of type {kind} is missing, and only floating-point numbers may be")
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def numpy_value(value: Any, kind: pa.DataType) -> npt.NDArray[Any]:
    """Return a column of a single value, as `numpy_column` does."""
    if value is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return numpy_column([value], kind)
    return np.array([value], kind.to_pandas_dtype())


def _numpy_type(kind: pa.DataType) -> Any:
    return np.dtype(object) if pa.types.is_string(kind) else kind.to_pandas_dtype()


def matrix_of(columns: Columns, dtype: Any) -> npt.NDArray[Any]:
    """Return numeric columns side by side."""
    rows = len(next(iter(columns.values())))
    matrix = np.empty((rows, len(columns)), dtype)
    for place, column in enumerate(columns.values()):
        matrix[:, place] = column
    return matrix


def output_column(found: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return one value for each record: of two columns with the probabilities of classes the second one."""
    if found.ndim == 2 and found.shape[1] in (1, 2):
        return found[:, -1]
    if found.ndim != 1:
        shape = "x".join(map(str, found.shape))
        raise ModelRefusedError(
            f"the output {name!r} has the shape {shape}; it must be one value for each record"
        )
    return found
