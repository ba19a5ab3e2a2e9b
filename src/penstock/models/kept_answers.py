"""Kept answers: what steps took from outside, beside the checkpoint, so that a replay takes the same.

That is which models of a group have answered in time, and the rows that lookups have found. The world outside decides
in the first attempt only. A slot writes what it took in a micro-batch, or in an interval, before its work counts; when
the same work is repeated, it reads that. The files are in the library, `models/answers/STEP/GROUP/KEYGROUP-TIME.json`,
and the newest of each slot are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from penstock.base.durable import write_once

__all__ = ["LOOKUPS", "ByTime", "KeptAnswers", "write_answers"]

_ANSWERS: Final = "answers"
# More than a job repeats: Spark keeps 100 micro-batches, and a run repeats the last one or two.
_MAX_FILES: Final = 200
# Rows of tables are large.
_MAX_LARGE_FILES: Final = 8
LOOKUPS: Final = "@lookups"
"""The group of the rows that a lookup has found."""

ByTime: TypeAlias = dict[int, list[list[Any]]]
"""The answers that each call took by the time of the micro-batch or round: places of models, or rows by key."""

_NOTHING: Final[Mapping[str, ByTime]] = MappingProxyType({})


class KeptAnswers:
    """The answers that a step takes in one run of a slot: those that are kept, and new ones, by group.

    `now_ms` is the time of the micro-batch or round, and `key_group` the first one of the slot. `before` has what
    earlier rounds of the interval took; one of them may have the same time.
    """

    def __init__(
        self, folder: str, step: str, now_ms: int, key_group: int, before: Mapping[str, ByTime] = _NOTHING
    ) -> None:
        self._place: Final = folder, step
        self._now_ms: Final = now_ms
        self._key_group: Final = key_group
        self._before: Final = before
        self._calls: Final = {group: len(by_time.get(now_ms, ())) for group, by_time in before.items()}
        self._kept: Final[dict[str, list[list[Any]] | None]] = {}
        self.new: Final[dict[str, ByTime]] = {}

    def next(self, group: str) -> list[Any] | None:
        """Return the answers that the next call of a group took when this work was done before; None if it was not."""
        kept = self._read(group)
        number = self._calls.get(group, 0)
        self._calls[group] = number + 1
        return None if kept is None or number >= len(kept) else kept[number]

    def taken(self, group: str) -> list[Any]:
        """Return all answers for this time: of earlier rounds, and those when this work was done before."""
        earlier = self._before.get(group, {}).get(self._now_ms, [])
        return [answer for call in [*earlier, *(self._read(group) or ())] for answer in call]

    def _read(self, group: str) -> list[list[Any]] | None:
        if group not in self._kept:
            self._kept[group] = _read(*self._place, group, self._now_ms, self._key_group)
        return self._kept[group]

    def note(self, group: str, taken: list[Any]) -> None:
        """Note the answers that the call took."""
        self.new.setdefault(group, {}).setdefault(self._now_ms, []).append(taken)


def write_answers(folder: str, step: str, key_group: int, found: dict[str, ByTime]) -> None:
    """Write the new answers of a slot; they are durable when this returns. Repeated work writes nothing."""
    for group, by_time in found.items():
        place = _folder(folder, step, group)
        write_once(place / f"{key_group}-{min(by_time)}.json", msgspec.json.encode(by_time))
        for path in _files(place, key_group)[: -(_MAX_LARGE_FILES if group == LOOKUPS else _MAX_FILES)]:
            path.unlink(missing_ok=True)


def _read(folder: str, step: str, group: str, now_ms: int, key_group: int) -> list[list[Any]] | None:
    if not folder:
        return None
    files = [path for path in _files(_folder(folder, step, group), key_group) if _time_of(path) <= now_ms]
    content = _content(files[-1]).get(now_ms) if files else None
    return None if content is None else msgspec.json.decode(content, type=list[list[Any]])


@functools.lru_cache(maxsize=16)
def _content(path: Path) -> dict[int, msgspec.Raw]:
    """Read a file, which never changes: most often that of earlier work, of which nothing is needed."""
    return msgspec.json.decode(path.read_bytes(), type=dict[int, msgspec.Raw])


def _files(folder: Path, key_group: int) -> list[Path]:
    """Return the files of a slot, oldest first."""
    return sorted(folder.glob(f"{key_group}-*.json"), key=_time_of)


def _time_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _folder(folder: str, step: str, group: str) -> Path:
    return Path(folder, _ANSWERS, quote(step, safe=""), quote(group, safe=""))
