"""Lookup source: a table outside the job in which rows are found by some of their fields, and the rows kept of it."""

from __future__ import annotations

import abc
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ["Key", "LookupSource", "Rows", "forget_rows", "rows_of_keys"]

Key: TypeAlias = tuple[Any, ...]
"""The values by which a row is found, one for each field, none of them null."""

Rows: TypeAlias = tuple[str, ...]
"""What a table has for a key, as JSON: nothing, a row, or several."""


@dataclass(frozen=True)
class LookupSource(abc.ABC):
    """A table outside the job. It is pickled to the workers, so it opens connections where it needs them.

    `table` is its name in the job, and `place` tells it from others. A task keeps what it has found of up to
    `cache_rows` keys for `cache_s` seconds.
    """

    table: str
    place: str
    cache_s: float
    cache_rows: int

    @abc.abstractmethod
    def check(self, fields: Sequence[str]) -> None:
        """Check, in the driver, that the table answers and has a row for each key. Raises a PenstockError."""

    @abc.abstractmethod
    def find(self, fields: Sequence[str], keys: Sequence[Key]) -> Mapping[Key, Rows]:
        """Return the rows that keys have now, each once; a key without one may be left out.

        Raises ExternalSystemError when the table does not answer.
        """


# By process, table and fields; until when, and the rows; the key that was used least recently first.
_kept: Final[dict[tuple[int, str, tuple[str, ...]], OrderedDict[Key, tuple[float, Rows]]]] = {}


def rows_of_keys(
    source: LookupSource,
    fields: Sequence[str],
    keys: Sequence[Key],
    clock: Callable[[], float] = time.monotonic,
) -> dict[Key, Rows]:
    """Return the rows that keys have, those that were kept, and for all others what the table has now."""
    kept = _kept.setdefault((os.getpid(), source.place, tuple(fields)), OrderedDict())
    now = clock()
    found: dict[Key, Rows] = {}
    unknown = []
    for key in keys:
        entry = kept.get(key)
        if entry is None or entry[0] <= now:
            unknown.append(key)
            continue
        kept.move_to_end(key)
        found[key] = entry[1]
    if unknown:
        new = source.find(fields, unknown)
        until = now + source.cache_s
        for key in unknown:
            found[key] = new.get(key, ())
            kept[key] = (until, found[key])
            kept.move_to_end(key)
    while len(kept) > source.cache_rows:
        kept.popitem(last=False)
    return found


def forget_rows(source: LookupSource) -> None:
    """Forget what this process has found in a table."""
    for process, place, fields in list(_kept):
        if place == source.place:
            del _kept[process, place, fields]
