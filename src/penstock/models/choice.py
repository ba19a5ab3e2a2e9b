"""Choice: which version of a model scores which key."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.models.versions import CANARY, SERVING, SHADOW, ModelVersion, key_text, version_before
from penstock.state.key_groups import key_hashes
from penstock.state.key_index import key_values

__all__ = ["Choice"]

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_ALL: Final = 1 << 64


@dataclass(frozen=True)
class Choice:
    """The versions of a model that score at a cut: by key, in the shadow, and as a fallback.

    `share` is the share of the keys that `canary` serves, `pins` has the pinned keys as text, and `before` is the
    version that scores when another one cannot.
    """

    model: str
    serving: str | None
    canary: str | None
    share: float
    pins: Mapping[str, str]
    shadows: tuple[str, ...]
    before: Mapping[str, str | None]

    @classmethod
    def of(cls, model: str, versions: Mapping[str, ModelVersion]) -> Self:
        """Return the choice that the statuses of versions make."""
        by_status: dict[str, list[str]] = {}
        for name, version in versions.items():
            by_status.setdefault(version.status, []).append(name)
        serving = next(iter(by_status.get(SERVING, ())), None)
        canary = next(iter(by_status.get(CANARY, ())), None)
        pins = {key: name for name, version in versions.items() for key in version.pinned}
        found = dict.fromkeys(name for name in (serving, canary, *pins.values()) if name is not None)
        return cls(
            model,
            serving,
            canary,
            0.0 if canary is None else versions[canary].share,
            pins,
            tuple(by_status.get(SHADOW, ())),
            {name: version_before(versions, name) for name in found},
        )

    @property
    def is_by_key(self) -> bool:
        """Whether the version depends on the key."""
        return bool(self.canary is not None or self.pins)

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """The versions that may score."""
        named = [*self.before, *self.before.values(), *self.shadows]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @functools.cached_property
    def chosen(self) -> tuple[str | None, ...]:
        """The versions that keys are chosen for, the one that serves first."""
        return tuple(dict.fromkeys([self.serving, self.canary, *self.pins.values()]))

    def places_of(self, keys: pa.Array) -> npt.NDArray[np.intp]:
        """Return the place among `chosen` of the version that scores each key; keys must not be null."""
        found = np.zeros(len(keys), np.intp)
        if self.canary is not None:
            found[self._in_canary(keys)] = self.chosen.index(self.canary)
        if self.pins:
            places = {name: place for place, name in enumerate(self.chosen)}
            for row, key in enumerate(_texts(keys)):
                if key in self.pins:
                    found[row] = places[self.pins[key]]
        return found

    def versions_of(self, keys: pa.Array) -> list[str | None]:
        """Return the version that scores each key; keys must not be null."""
        return [self.chosen[place] for place in self.places_of(keys).tolist()]

    def _in_canary(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which keys the canary has. A larger share includes the keys of a smaller one.

        The hash that decides on key groups is mixed with the name of the model, so that the share is one of every key
        group, and models differ in the keys that they choose.
        """
        mixed = _mixed(key_hashes(keys) ^ np.uint64(xxhash.xxh64_intdigest(self.model.encode())))
        limit = round(self.share * _ALL)
        return np.ones(len(keys), np.bool_) if limit >= _ALL else mixed < np.uint64(limit)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return values whose bits all depend on all bits of the given ones (the finaliser of SplitMix64)."""
    mixed = values + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _texts(keys: pa.Array) -> Sequence[str]:
    return [key_text(key) for key in key_values(keys)]
