"""Scores: the outputs of a model for records, each with the version that made it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Score", "Scores"]


@dataclass(frozen=True)
class Score:
    """The score of one record.

    Attributes:
        values: the value of each output column, by name.
        model: the name of the model.
        version: the version that made the score; empty for the default while no version serves.

    """

    values: Mapping[str, Any]
    model: str
    version: str

    @property
    def value(self) -> Any:
        """The value of the first output column."""
        return next(iter(self.values.values()))


@dataclass(frozen=True)
class Scores:
    """The scores of a batch of records, in their order.

    Attributes:
        columns: the output columns by name, as NumPy arrays.
        model: the name of the model.

    """

    columns: Mapping[str, npt.NDArray[Any]]
    model: str
    _texts: Callable[[], pa.StringArray] = field(repr=False)

    @functools.cached_property
    def versions(self) -> pa.StringArray:
        """The version that made each score, as an Arrow array of text; empty for the default while none serves."""
        return self._texts()

    @property
    def values(self) -> npt.NDArray[Any]:
        """The values of the first output column."""
        return next(iter(self.columns.values()))

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:  # as NumPy
        return np.array(self.values, dtype=dtype, copy=bool(copy)) if copy or dtype else self.values
