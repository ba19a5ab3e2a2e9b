"""Wide sums: exact sums of integers and decimals, as 128-bit numbers in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["TOTAL_TYPE", "WideSums"]

TOTAL_TYPE: Final = pa.decimal128(38, 0)
"""The stored type of a sum of integers. That of a sum of decimals has their scale."""

Ints = npt.NDArray[np.int64]

_LIMBS: Final = 4
_BITS: Final = 32
_LOW: Final = np.int64(2**_BITS - 1)
_LIMIT: Final = 10**38


@dataclass
class WideSums:
    """Sums as four numbers of 32 bits, lowest first; the highest one has the sign."""

    limbs: Ints

    @classmethod
    def of(cls, stored: pa.Array) -> WideSums:
        """Read stored sums; null is zero."""
        return cls(_limbs_of(stored))

    def add(self, places: Ints, values: pa.Array, signs: Ints | None) -> None:
        """Add values without nulls, each to the sum in `places`, or take them away where its sign is -1."""
        given = _limbs_of(values)
        for limb in range(_LIMBS):
            column = given[limb] if signs is None else given[limb] * signs
            np.add.at(self.limbs[limb], places, column)
        self._carry()

    def _carry(self) -> None:
        for limb in range(_LIMBS - 1):
            self.limbs[limb + 1] += self.limbs[limb] >> _BITS
            self.limbs[limb] &= _LOW

    def clear(self, places: npt.NDArray[np.bool_]) -> None:
        """Set sums to zero."""
        self.limbs[:, places] = 0

    def to_arrow(self, kind: pa.DataType = TOTAL_TYPE) -> pa.Array:
        """Return the sums as decimals."""
        words = np.empty((self.limbs.shape[1], 2), np.int64)
        words[:, 0] = self.limbs[0] | (self.limbs[1] << _BITS)
        words[:, 1] = self.limbs[2] | (self.limbs[3] << _BITS)
        return pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(words.tobytes())])

    def to_python(self) -> list[int]:
        """Return the sums as integers of Python."""
        low = (self.limbs[0] | (self.limbs[1] << _BITS)).view(np.uint64).tolist()
        high = (self.limbs[2] | (self.limbs[3] << _BITS)).tolist()
        return [(upper << 64) + lower for upper, lower in zip(high, low, strict=True)]

    def integers(self) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the sums as 64-bit integers, and which of them do not fit."""
        values: Ints = self.limbs[0] | (self.limbs[1] << _BITS)
        upper = self.limbs[2] | (self.limbs[3] << _BITS)
        return values, upper != (values >> 63)

    def beyond_decimals(self, precision: int) -> npt.NDArray[np.bool_]:
        """Return which sums have more digits than a decimal of a precision."""
        limit = min(10**precision, _LIMIT)
        return np.array([abs(value) >= limit for value in self.to_python()], bool)


def _limbs_of(column: pa.Array) -> Ints:
    limbs = np.zeros((_LIMBS, len(column)), np.int64)
    if pa.types.is_decimal(column.type):
        low, high = _words_of(column)
        limbs[2], limbs[3] = high & _LOW, high >> _BITS
    else:
        low = column.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        limbs[2], limbs[3] = (low >> 63) & _LOW, low >> 63
    limbs[0], limbs[1] = low & _LOW, (low >> _BITS) & _LOW
    return limbs


def _words_of(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the lower and the upper 64 bits of decimals, zero for null."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    words = np.frombuffer(column.buffers()[1], np.int64)
    words = words[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, words[:, 0], 0), np.where(valid, words[:, 1], 0)
