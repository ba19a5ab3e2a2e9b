"""Evaluation: the rows that an expression is evaluated on, and those of them for which it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Rows", "Value"]

Value: TypeAlias = "pa.Array | pa.Scalar"


class Rows:
    """Rows of a record batch, the values of parameters, and the reasons for rows that fail, by their number.

    A failing row has null as its value and is not evaluated again; its number is that in the whole batch.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        parameters: Mapping[str, pa.Scalar],
        failures: dict[int, str],
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.batch: Final = batch
        self._numbers: Final = numbers
        self.parameters: Final = parameters
        self.failures: Final = failures

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> pa.Array:
        """Return a column."""
        return self.batch.column(name)

    def array(self, value: Value) -> pa.Array:
        """Return a value as a column: a constant is repeated."""
        return pa.repeat(value, len(self)) if isinstance(value, pa.Scalar) else value

    def fail(self, row: int, reason: str) -> None:
        """Note why a row fails; the first reason counts."""
        self.failures.setdefault(row if self._numbers is None else int(self._numbers[row]), reason)

    def part(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Return some of the rows, for a part that must not be evaluated on the others."""
        if len(rows) == len(self):
            return self
        numbers = rows if self._numbers is None else self._numbers[rows]
        return Rows(self.batch.take(pa.array(rows)), self.parameters, self.failures, numbers)

    def spread(self, value: Value, rows: npt.NDArray[np.int64]) -> Value:
        """Return the value of `part(rows)` for all rows: null for the others."""
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, len(rows))
        places = np.full(len(self), -1, np.int64)
        places[rows] = np.arange(len(rows))
        return value.take(pa.array(places, mask=places < 0))

    def call(self, function: Callable[..., Any], arguments: list[Value], kind: pa.DataType) -> Value:
        """Call a function that may fail for single rows. Those get the reason that it gives for them, and are null."""
        try:
            found: Value = function(*arguments)
        except pa.ArrowException as e:
            if all(isinstance(argument, pa.Scalar) for argument in arguments):
                for row in range(len(self)):
                    self.fail(row, _sentence(e))
                return pa.scalar(None, kind)
            return self._isolate(function, arguments, kind)
        return found

    def _isolate(self, function: Callable[..., Any], arguments: list[Value], kind: pa.DataType) -> pa.Array:
        """Return the values of a function that fails for some rows, by halving the rows until each is found."""
        pieces: list[pa.Array] = []
        waiting = [(0, len(self))]
        while waiting:
            low, high = waiting.pop()
            part = [one if isinstance(one, pa.Scalar) else one.slice(low, high - low) for one in arguments]
            try:
                pieces.append(function(*part))
            except pa.ArrowException as e:
                if high - low == 1:
                    self.fail(low, _sentence(e))
                    pieces.append(pa.nulls(1, kind))
                else:
                    middle = (low + high) // 2
                    waiting += [(middle, high), (low, middle)]
        return pa.concat_arrays(pieces)

    def as_mask(self, value: Value) -> npt.NDArray[np.bool_]:
        """Return which rows are true; null is not."""
        if isinstance(value, pa.Scalar):
            return np.full(len(self), value.as_py() is True)
        filled = value.fill_null(False) if value.null_count else value
        found: npt.NDArray[np.bool_] = filled.to_numpy(zero_copy_only=False)
        return found

    def choose(self, condition: Value, value: Value, otherwise: Value) -> Value:
        """Return `value` where a condition is true, else `otherwise`."""
        if isinstance(condition, pa.Scalar):
            return value if condition.as_py() is True else otherwise
        return pc.if_else(condition.fill_null(False), value, otherwise)


def _sentence(error: pa.ArrowException) -> str:
    return str(error).split("\n", 1)[0].strip()
