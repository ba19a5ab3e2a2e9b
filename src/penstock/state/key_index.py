"""Key indexes: where the row of a key is, for whole columns of keys, in few bytes a key.

A key has a code of 64 bits: an integral key is its own, of any other it is the hash that also decides its key group.
Codes are kept sorted and looked up by bisection. Two keys with the same code are as good as impossible, yet possible;
an index that meets them goes on as a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.key_groups import key_codes

__all__ = ["ABSENT", "KeyIndex", "key_values"]

ABSENT: Final = -1
"""The place of a key that is not there."""

# New codes gather in a small index beside the large one until there are so many, or a part of it.
_FEW: Final = 1024
_SHARE: Final = 8

Places = npt.NDArray[np.int64]


class KeyIndex:
    """The place of each key. `key_at` gives the keys in some places, to compare them."""

    def __init__(self, key_type: pa.DataType, key_at: Callable[[Places], pa.Array]) -> None:
        self._exact: Final = _is_exact(key_type)
        self._key_at: Final = key_at
        self._parts: tuple[_Sorted, _Sorted] = (_Sorted(), _Sorted())
        # In place of the codes once two keys have the same.
        self._places: dict[Any, int] | None = None

    def find(self, keys: pa.Array) -> Places:
        """The place of each key, or ABSENT."""
        if self._places is None:
            codes = key_codes(keys)
            places = self._parts[0].find(codes)
            if len(self._parts[1].codes):
                recent = self._parts[1].find(codes)
                places = np.where(recent >= 0, recent, places)
            if self._are(keys, places):
                return places
            self._meet()
        return self._find_as_they_are(keys)

    def put(self, keys: pa.Array, places: Places) -> Places:
        """Set the places of keys, each of which comes once; gives those from before. ABSENT takes a key out."""
        if self._places is None:
            codes = key_codes(keys)
            large, recent = self._parts
            found, in_large = large.where(codes)
            slots, in_recent = recent.where(codes)
            before = np.full(len(keys), ABSENT, np.int64)
            before[in_large] = large.places[found[in_large]]
            before[in_recent] = recent.places[slots[in_recent]]
            if self._are(keys, before) and (self._exact or len(np.unique(codes)) == len(codes)):
                large.places[found[in_large]] = places[in_large]
                recent.places[slots[in_recent]] = places[in_recent]
                new = ~in_large & ~in_recent & (places >= 0)
                if new.any():
                    recent.insert(codes[new], places[new])
                if len(recent.codes) > max(_FEW, len(large.codes) // _SHARE):
                    self._merge()
                return before
            self._meet()
        before = self._find_as_they_are(keys)
        assert self._places is not None
        self._places.update(zip(key_values(keys), places.tolist(), strict=True))
        return before

    def stretch(self, code: int, count: int) -> tuple[Places, int | None]:
        """The places of some keys whose codes are not below a code, in the order of codes; and the code to go on with.

        They are at most `count`, but all when two keys have the same code.
        """
        if self._places is not None:
            places = np.array([place for place in self._places.values() if place >= 0], np.int64)
            order = np.argsort(key_codes(self._key_at(places)), kind="stable")
            return places[order], None
        large, recent = (part.stretch(code, count) for part in self._parts)
        codes = np.concatenate([large.codes, recent.codes])
        order = np.argsort(codes, kind="stable")[:count]
        places = np.concatenate([large.places, recent.places])[order]
        full = len(order) == count
        following = int(codes[order[-1]]) + 1 if full else None
        return places[places >= 0], following if following is None or following < 1 << 64 else None

    def renumber(self) -> Places:
        """Give the keys that are there the places 0, 1, 2 ...; gives the places from before, in this order."""
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

    def _find_as_they_are(self, keys: pa.Array) -> Places:
        assert self._places is not None
        return np.fromiter((self._places.get(k, ABSENT) for k in key_values(keys)), np.int64, len(keys))

    def _are(self, keys: pa.Array, places: Places) -> bool:
        """Whether the keys are those in the places where their codes were found."""
        if self._exact:
            return True
        found = np.flatnonzero(places >= 0)
        return not len(found) or _equal(keys.take(pa.array(found)), self._key_at(places[found]))

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        if self._places is not None:
            return 150 * len(self._places)
        return 16 * sum(len(part.codes) for part in self._parts)

    def _meet(self) -> None:
        """Two keys have the same code, so from now on keys are looked up as they are."""
        places = np.concatenate([part.places for part in self._parts])
        places = places[places >= 0]
        self._places = dict(zip(key_values(self._key_at(places)), places.tolist(), strict=True))
        self._parts = (_Sorted(), _Sorted())


class _Sorted:
    """Places by sorted codes."""

    def __init__(self, codes: npt.NDArray[np.uint64] | None = None, places: Places | None = None) -> None:
        self.codes: npt.NDArray[np.uint64] = np.empty(0, np.uint64) if codes is None else codes
        self.places: Places = np.empty(0, np.int64) if places is None else places

    def find(self, codes: npt.NDArray[np.uint64]) -> Places:
        """The place of each code, or ABSENT."""
        if not len(self.codes):
            return np.full(len(codes), ABSENT, np.int64)
        slots, hits = self.where(codes)
        return np.where(hits, self.places[slots], ABSENT)

    def where(self, codes: npt.NDArray[np.uint64]) -> tuple[Places, npt.NDArray[np.bool_]]:
        """Where the codes stand, for those that do."""
        if not len(self.codes):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
        slots = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return slots, self.codes[slots] == codes

    def stretch(self, code: int, count: int) -> _Sorted:
        """At most `count` codes that are not below a code."""
        start = int(np.searchsorted(self.codes, np.uint64(code)))
        return _Sorted(self.codes[start : start + count], self.places[start : start + count])

    def insert(self, codes: npt.NDArray[np.uint64], places: Places) -> None:
        """Add codes that are new."""
        codes = np.concatenate([self.codes, codes])
        places = np.concatenate([self.places, places])
        order = np.argsort(codes, kind="stable")
        self.codes, self.places = codes[order], places[order]


def key_values(keys: pa.Array) -> list[Any]:
    """Keys as user code sees them; a key of several fields is a tuple."""
    if pa.types.is_struct(keys.type):
        return list(zip(*(child.to_pylist() for child in keys.flatten()), strict=True))
    return keys.to_pylist()  # type: ignore[no-any-return]


def _is_exact(key_type: pa.DataType) -> bool:
    """Whether two keys with the same code are the same key."""
    return not (pa.types.is_struct(key_type) or pa.types.is_string(key_type) or pa.types.is_binary(key_type))


def _equal(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_struct(left.type):
        return all(_equal(a, b) for a, b in zip(left.flatten(), right.flatten(), strict=True))
    return bool(pc.all(pc.equal(left, right)).as_py())
