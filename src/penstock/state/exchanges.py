"""Exchanges: the value of a state before each of many records, and its value after them, as columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Exchange"]

Ints = npt.NDArray[np.int64]

_MAX_SMALL: Final = (1 << 16) - 1


class Exchange:
    """Records in order. Each sets the value of its key and sees the previous one.

    Attributes:
        last: the number of the last record of each key; keys in ascending order.

    """

    def __init__(self, key_indices: Ints) -> None:
        # NumPy sorts 16-bit integers by radix, six times as fast. A key group seldom has more keys.
        is_small = len(key_indices) > 0 and int(key_indices.max()) <= _MAX_SMALL
        order = np.argsort(key_indices.astype(np.uint16) if is_small else key_indices, kind="stable")
        by_key = key_indices[order]
        begins = np.ones(len(order), bool)
        begins[1:] = by_key[1:] != by_key[:-1]
        # The first record of a key has no predecessor. Its own number is a placeholder until `before` fills it in.
        self._previous: Final = np.empty(len(order), np.int64)
        self._previous[order[1:]] = order[:-1]
        self._first: Final[Ints] = order[begins]
        self._previous[self._first] = self._first
        self._first_keys: Final = by_key[begins]
        self.last: Final[Ints] = order[np.append(begins[1:], True)[: len(order)]]

    def before(self, held: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return each key's value before each record, from the values `held` by keys and those that records set."""
        found = values[self._previous]
        found[self._first] = held[self._first_keys]
        return found
