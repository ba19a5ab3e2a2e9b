"""Key indexes: the place of each key's row, for whole columns of keys, in few bytes per key.

Each key has a 64-bit code: an integral key is its own code; the code of any other key is the hash that also determines
its key group. Codes are kept sorted and found by binary search. Two keys with the same code are very unlikely but
possible; an index that meets such keys becomes a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.key_groups import key_codes

__all__ = ["ABSENT", "MANY", "KeyIndex", "distinct_keys", "key_values"]

ABSENT: Final = -1
"""The place of a key that is not in the index."""

MANY: Final = 1000
"""For fewer keys, the calls of Arrow take longer than what they save."""

# New codes go into a small index next to the large one, up to this many, or this share of the large one.
_FEW: Final = 1024
_SHARE: Final = 8

Places = npt.NDArray[np.int64]


class KeyIndex:
    """The place of each key. `key_at` returns the keys at some places, for comparison."""

    def __init__(self, key_type: pa.DataType, key_at: Callable[[Places], pa.Array]) -> None:
        self._exact: Final = _is_exact(key_type)
        self._key_at: Final = key_at
        self._parts: tuple[_Sorted, _Sorted] = (_Sorted(), _Sorted())
        # Used instead of the codes once two keys have the same code.
        self._places: dict[Any, int] | None = None

    def find(self, keys: pa.Array) -> Places:
        """Return the place of each key, or ABSENT."""
        if self._places is None:
            codes = key_codes(keys)
            places = self._parts[0].find(codes)
            if len(self._parts[1].codes):
                recent = self._parts[1].find(codes)
                places = np.where(recent >= 0, recent, places)
            if self._match(keys, places):
                return places
            self._switch_to_keys()
        return self._find_by_key(keys)

    def put(self, keys: pa.Array, places: Places) -> Places:
        """Set the places of distinct keys, and return their previous places. ABSENT removes a key."""
        if self._places is None:
            codes = key_codes(keys)
            large, recent = self._parts
            found, in_large = large.where(codes)
            slots, in_recent = recent.where(codes)
            before = np.full(len(keys), ABSENT, np.int64)
            before[in_large] = large.places[found[in_large]]
            before[in_recent] = recent.places[slots[in_recent]]
            if self._match(keys, before) and (self._exact or len(np.unique(codes)) == len(codes)):
                large.places[found[in_large]] = places[in_large]
                recent.places[slots[in_recent]] = places[in_recent]
                new = ~in_large & ~in_recent & (places >= 0)
                if new.any():
                    recent.insert(codes[new], places[new])
                if len(recent.codes) > max(_FEW, len(large.codes) // _SHARE):
                    self._merge()
                return before
            self._switch_to_keys()
        before = self._find_by_key(keys)
        assert self._places is not None
        self._places.update(zip(key_values(keys), places.tolist(), strict=True))
        return before

    def scan(self, code: int, count: int) -> tuple[Places, int | None]:
        """Return the places of at most `count` keys from a code on, in the order of codes, and the next code.

        The next code is where to continue, None at the end. If two keys have the same code, returns all keys.
        """
        if self._places is not None:
            places = np.array([place for place in self._places.values() if place >= 0], np.int64)
            order = np.argsort(key_codes(self._key_at(places)), kind="stable")
            return places[order], None
        large, recent = (part.scan(code, count) for part in self._parts)
        codes = np.concatenate([large.codes, recent.codes])
        order = np.argsort(codes, kind="stable")[:count]
        places = np.concatenate([large.places, recent.places])[order]
        full = len(order) == count
        following = int(codes[order[-1]]) + 1 if full else None
        return places[places >= 0], following if following is None or following < 1 << 64 else None

    def renumber(self) -> Places:
        """Assign the places 0, 1, 2 ... to the keys. Returns their previous places, in this order."""
        if self._places is not None:
            kept = {key: place for key, place in self._places.items() if place >= 0}
            self._places = dict(zip(kept, range(len(kept)), strict=True))
            return np.array(list(kept.values()), np.int64)
        self._merge()
        part = self._parts[0]
        live = part.places >= 0
        before = part.places[live]
        self._parts = (_Sorted(part.codes[live], np.arange(len(before))), _Sorted())
        return before

    def _merge(self) -> None:
        large, recent = self._parts
        if len(recent.codes):
            large.insert(recent.codes, recent.places)
            self._parts = (large, _Sorted())

    def _find_by_key(self, keys: pa.Array) -> Places:
        assert self._places is not None
        return np.fromiter((self._places.get(k, ABSENT) for k in key_values(keys)), np.int64, len(keys))

    def _match(self, keys: pa.Array, places: Places) -> bool:
        """Return whether the keys equal those at the places where their codes were found."""
        if self._exact:
            return True
        found = np.flatnonzero(places >= 0)
        return not len(found) or _equal(keys.take(pa.array(found)), self._key_at(places[found]))

    @property
    def nbytes(self) -> int:
        """The approximate memory of the index, in bytes."""
        if self._places is not None:
            return 150 * len(self._places)
        return 16 * sum(len(part.codes) for part in self._parts)

    def _switch_to_keys(self) -> None:
        """Look up keys, not codes, from now on, since two keys have the same code."""
        places = np.concatenate([part.places for part in self._parts])
        places = places[places >= 0]
        self._places = dict(zip(key_values(self._key_at(places)), places.tolist(), strict=True))
        self._parts = (_Sorted(), _Sorted())


class _Sorted:
    """Places, sorted by their codes."""

    def __init__(self, codes: npt.NDArray[np.uint64] | None = None, places: Places | None = None) -> None:
        self.codes: npt.NDArray[np.uint64] = np.empty(0, np.uint64) if codes is None else codes
        self.places: Places = np.empty(0, np.int64) if places is None else places

    def find(self, codes: npt.NDArray[np.uint64]) -> Places:
        """Return the place of each code, or ABSENT."""
        if not len(self.codes):
            return np.full(len(codes), ABSENT, np.int64)
        slots, hits = self.where(codes)
        return np.where(hits, self.places[slots], ABSENT)

    def where(self, codes: npt.NDArray[np.uint64]) -> tuple[Places, npt.NDArray[np.bool_]]:
        """Return the position of each code, and a mask of the codes that were found."""
        if not len(self.codes):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
        slots = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return slots, self.codes[slots] == codes

    def scan(self, code: int, count: int) -> _Sorted:
        """Return at most `count` codes that are not below a code."""
        start = int(np.searchsorted(self.codes, np.uint64(code)))
        return _Sorted(self.codes[start : start + count], self.places[start : start + count])

    def insert(self, codes: npt.NDArray[np.uint64], places: Places) -> None:
        """Insert new codes."""
        codes = np.concatenate([self.codes, codes])
        places = np.concatenate([self.places, places])
        order = np.argsort(codes, kind="stable")
        self.codes, self.places = codes[order], places[order]


def key_values(keys: pa.Array) -> list[Any]:
    """Return keys as user code sees them; a key of several fields is a tuple."""
    if pa.types.is_struct(keys.type):
        return list(zip(*(child.to_pylist() for child in keys.flatten()), strict=True))
    return keys.to_pylist()  # type: ignore[no-any-return]  # pyarrow does not annotate it


def distinct_keys(keys: pa.Array) -> list[Any]:
    """Return the keys as Python objects, each once, in order of first use."""
    if len(keys) < MANY or pa.types.is_struct(keys.type):
        return list(dict.fromkeys(key_values(keys)))
    return key_values(pc.unique(keys))


def _is_exact(key_type: pa.DataType) -> bool:
    """Return whether two keys with the same code are always the same key."""
    return not (pa.types.is_struct(key_type) or pa.types.is_string(key_type) or pa.types.is_binary(key_type))


def _equal(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_struct(left.type):
        return all(_equal(a, b) for a, b in zip(left.flatten(), right.flatten(), strict=True))
    return bool(pc.all(pc.equal(left, right)).as_py())
