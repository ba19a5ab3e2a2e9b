"""Kept answers: the answers that steps took from outside, kept beside the checkpoint so that a replay takes the same.

They say which models of a group have answered in time, and which rows lookups have found. Only the first attempt asks
the outside world. A slot writes what it took in a micro-batch, or in an interval, before its work counts; when the same
work is repeated, it reads that. Names are `STEP/GROUP/KEYGROUP-TIME.json`, in the folder `answers` of the library or of
the checkpoint's store, and the newest of each slot are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from penstock.errors import CheckpointError
from penstock.models.library_places import LibraryPlace, ReadPlace
from penstock.models.suspensions import SlotSuspensions

__all__ = ["LOOKUPS", "KeptAnswers", "SlotAnswers"]

# More than a job can repeat: Spark keeps 100 micro-batches, and a run repeats the last one or two.
_MAX_FILES: Final = 200
# Rows of tables are large.
_MAX_LARGE_FILES: Final = 8
LOOKUPS: Final = "@lookups"
"""The group of the rows that a lookup has found."""

_ByTime: TypeAlias = dict[int, list[list[Any]]]
"""The answers that each call took by the time of the micro-batch or round: places of models, or rows by key."""


class SlotAnswers:
    """The answers that a step takes in one micro-batch or interval of a slot, by group, and suspensions of its models.

    `key_groups` are those of the slot. Without a `place` nothing is kept.
    """

    def __init__(
        self,
        place: LibraryPlace | None,
        step: str,
        key_groups: Sequence[int],
        library: ReadPlace | None = None,
    ) -> None:
        self._place: Final = place
        self.suspensions: Final = SlotSuspensions(library, step, key_groups)
        self._step: Final = step
        self._key_group: Final = key_groups[0]
        self._found: Final[dict[str, _ByTime]] = {}
        self._listed: Final[dict[str, list[str]]] = {}

    def at(self, now_ms: int) -> KeptAnswers:
        """Return the answers of a run of the slot: at the time of the micro-batch or round."""
        return KeptAnswers(self, now_ms)

    def taken(self, group: str, now_ms: int) -> list[list[Any]]:
        """Return the answers to calls of earlier rounds, of which one may have had the same time."""
        return self._found.get(group, {}).get(now_ms, [])

    def kept(self, group: str, now_ms: int) -> list[list[Any]] | None:
        """Return the answers to calls at a time when this work was done before; None if it was not."""
        if self._place is None:
            return None
        names = [name for name in self._names(group) if _time_of(name) <= now_ms]
        content = _read_answers(self._place, names[-1]).get(now_ms) if names else None
        return None if content is None else msgspec.json.decode(content, type=list[list[Any]])

    def add(self, run: KeptAnswers) -> None:
        """Add the answers that a run took."""
        for group, calls in run.new.items():
            self._found.setdefault(group, {}).setdefault(run.now_ms, []).extend(calls)

    def write(self) -> None:
        """Write the added answers; they are durable when this returns. Repeated work writes nothing.

        Raises CheckpointError if another attempt has done the same work with other answers meanwhile, OSError, and
        ExternalSystemError.
        """
        if self._place is None:
            return
        for group, by_time in self._found.items():
            name = f"{self._folder(group)}/{self._key_group}-{min(by_time)}.json"
            content = msgspec.json.encode(by_time)
            if self._place.keep_first(name, content) != content:
                raise CheckpointError(
                    f"Step {self._step!r}: another attempt at the same work has taken other answers from outside, so "
                    "this one ends. Start the job again; it takes those."
                )
            names = sorted({*self._names(group), name}, key=_time_of)
            surplus = names[: -(_MAX_LARGE_FILES if group == LOOKUPS else _MAX_FILES)]
            if surplus:
                self._place.remove(surplus)

    def _names(self, group: str) -> list[str]:
        """Return the names of the files that the slot had at first, oldest first. Others write nothing meanwhile."""
        assert self._place is not None
        if group not in self._listed:
            beginning = f"{self._folder(group)}/{self._key_group}-"
            names = [name for name in self._place.names(self._folder(group)) if name.startswith(beginning)]
            self._listed[group] = sorted(names, key=_time_of)
        return self._listed[group]

    def _folder(self, group: str) -> str:
        return f"{quote(self._step, safe='')}/{quote(group, safe='')}"


class KeptAnswers:
    """The answers that a step takes in one run of a slot: those that are kept, and new ones, by group."""

    def __init__(self, of_slot: SlotAnswers, now_ms: int) -> None:
        self._of_slot: Final = of_slot
        self.suspensions: Final = of_slot.suspensions
        self.now_ms: Final = now_ms
        self._calls: Final[dict[str, int]] = {}
        self._kept: Final[dict[str, list[list[Any]] | None]] = {}
        self.new: Final[dict[str, list[list[Any]]]] = {}

    def next(self, group: str) -> list[Any] | None:
        """Return the answers that the next call of a group took when this work was done before; None if it was not."""
        kept = self._read(group)
        number = self._calls.get(group, len(self._of_slot.taken(group, self.now_ms)))
        self._calls[group] = number + 1
        return None if kept is None or number >= len(kept) else kept[number]

    def taken(self, group: str) -> list[Any]:
        """Return all answers for this time: of earlier rounds, and those when this work was done before."""
        earlier = self._of_slot.taken(group, self.now_ms)
        return [answer for call in [*earlier, *(self._read(group) or ())] for answer in call]

    def _read(self, group: str) -> list[list[Any]] | None:
        if group not in self._kept:
            self._kept[group] = self._of_slot.kept(group, self.now_ms)
        return self._kept[group]

    def note(self, group: str, taken: list[Any]) -> None:
        """Note the answers that the call took."""
        self.new.setdefault(group, []).append(taken)


@functools.lru_cache(maxsize=16)
def _read_answers(place: LibraryPlace, name: str) -> dict[int, msgspec.Raw]:
    """Read a file, which never changes; usually it is of earlier work and has nothing that is needed."""
    found = place.find(name)
    if found is None:
        raise FileNotFoundError(f"{place.shown}/{name}")
    return msgspec.json.decode(found, type=dict[int, msgspec.Raw])


def _time_of(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".json").partition("-")[2])
