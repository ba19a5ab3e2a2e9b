"""Suspensions: versions that a task must not call any more, since a call hung or took too much memory.

They are files in the library, `models/suspended/STEP/MODEL/VERSION-TIME-GROUP.json`, written before the worker ends.
So every repetition of the work reads them, and decides alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from penstock.models.library_places import LibraryPlace, ReadPlace

__all__ = ["SlotSuspensions", "Suspension", "find_suspensions", "suspend"]

_SUSPENDED: Final = "suspended"


class Suspension(msgspec.Struct, frozen=True):
    """A version that must not be called in a slot, from the time of a micro-batch or round on.

    `command` is the id of the command that gave the version its status: another one lifts the suspension. `from_ms` is
    that time in milliseconds since 1970, and `key_group` the first one of the slot.
    """

    step: str
    model: str
    version: str
    command: str
    reason: str
    from_ms: int
    key_group: int


def suspend(place: LibraryPlace, found: Suspension) -> None:
    """Suspend a version; this is durable when it returns. Raises OSError and ExternalSystemError."""
    name = f"{_folder(found.step, found.model)}/{found.version}-{found.from_ms}-{found.key_group}.json"
    place.keep_first(name, msgspec.json.encode(found))


class SlotSuspensions:
    """The suspensions in a slot at the beginning of its work in a micro-batch or interval.

    A worker that suspends a version ends, and its work is repeated. Without a `place` none is suspended. `key_groups`
    are those of the slot.
    """

    def __init__(self, place: ReadPlace | None, step: str, key_groups: Sequence[int]) -> None:
        self.key_groups: Final = key_groups
        self._place: Final = place
        self._step: Final = step
        self._found: Final[dict[str, list[Suspension]]] = {}

    def at(self, now_ms: int, model: str) -> list[Suspension]:
        """Return the suspensions of a model that count at a time."""
        if self._place is None:
            return []
        if model not in self._found:
            self._found[model] = _in_folder(self._place, _folder(self._step, model))
        return [
            one for one in self._found[model] if one.from_ms <= now_ms and one.key_group in self.key_groups
        ]


def find_suspensions(place: ReadPlace) -> list[Suspension]:
    """Return all suspensions, in the order of their names."""
    return _in_folder(place, _SUSPENDED)


def _in_folder(place: ReadPlace, folder: str) -> list[Suspension]:
    found = [place.find(name) for name in place.names(folder)]
    return [msgspec.json.decode(one, type=Suspension) for one in found if one is not None]


def _folder(step: str, model: str) -> str:
    return f"{_SUSPENDED}/{quote(step, safe='')}/{quote(model, safe='')}"
