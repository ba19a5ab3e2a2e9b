"""Lookup source: a table outside the job whose rows are found by some of their fields, and a cache of its rows."""

from __future__ import annotations

import abc
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

__all__ = ["BETWEEN_ROWS", "LookupKeys", "LookupSource", "Rows", "forget_rows", "rows_of_keys"]

Rows: TypeAlias = str
"""What a table has for a key: nothing, a row as JSON, or several with `BETWEEN_ROWS` between them.

One text for each key, since Python's collector of garbage looks again and again at a tuple for each.
"""

BETWEEN_ROWS: Final = "\x1e"
"""The record separator of ASCII, which JSON text does not contain."""


@dataclass(frozen=True)
class LookupKeys:
    """Distinct keys by which rows are found: a list of values for each field, none of them null.

    `names` are the keys as JSON, by which they are known.
    """

    columns: Sequence[Sequence[Any]]
    names: Sequence[str]

    @classmethod
    def of(cls, columns: Sequence[Sequence[Any]]) -> LookupKeys:
        """Return the keys with these values."""
        values = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return cls(columns, msgspec.json.Encoder().encode_lines(values).decode().split("\n")[:-1])

    def __len__(self) -> int:
        return len(self.names)

    def where(self, mask: Sequence[bool]) -> LookupKeys:
        """Return the keys whose mask is true."""
        if all(mask):
            return self
        columns = [list(itertools.compress(column, mask)) for column in self.columns]
        return LookupKeys(columns, list(itertools.compress(self.names, mask)))

    def part(self, start: int, count: int) -> LookupKeys:
        """Return consecutive keys."""
        end = start + count
        return LookupKeys([column[start:end] for column in self.columns], self.names[start:end])

    def plus(self, more: LookupKeys) -> LookupKeys:
        """Return these keys, followed by others."""
        columns = [[*one, *other] for one, other in zip(self.columns, more.columns, strict=True)]
        return LookupKeys(columns, [*self.names, *more.names])


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
    def find(self, fields: Sequence[str], keys: LookupKeys) -> list[Rows]:
        """Return the rows that each key has now.

        Raises ExternalSystemError when the table does not answer.
        """


@dataclass(frozen=True)
class _KeptRows:
    """The rows of keys, the key that was used least recently first; and which keys were found until when, in order."""

    rows: dict[str, Rows] = field(default_factory=dict)
    until: deque[tuple[float, Sequence[str]]] = field(default_factory=deque)

    def forget_before(self, now: float) -> None:
        """Forget outdated rows. A key that was evicted and found again may be forgotten too soon."""
        while self.until and self.until[0][0] <= now:
            for name in self.until.popleft()[1]:
                self.rows.pop(name, None)

    def take(self, names: Sequence[str], limit: int) -> None:
        """Note the use of keys, and keep no more than a limit of all."""
        rows = self.rows
        if len(rows) > limit // 2:
            # Up to half the limit nothing is evicted soon, so the order does not matter.
            for name in names:
                rows[name] = rows.pop(name)
        for name in list(itertools.islice(rows, max(0, len(rows) - limit))):
            del rows[name]


# By process, table and fields.
_kept: Final[dict[tuple[int, str, tuple[str, ...]], _KeptRows]] = {}


def rows_of_keys(
    source: LookupSource,
    fields: Sequence[str],
    keys: LookupKeys,
    clock: Callable[[], float] = time.monotonic,
) -> list[Rows]:
    """Return the rows of each key: those that were kept, and for all other keys those in the table now."""
    kept = _kept.setdefault((os.getpid(), source.place, tuple(fields)), _KeptRows())
    now = clock()
    kept.forget_before(now)
    rows: list[Any] = list(map(kept.rows.get, keys.names))
    unknown = keys.where([row is None for row in rows]) if None in rows else None
    if unknown is not None:
        found = source.find(fields, unknown)
        kept.rows.update(zip(unknown.names, found, strict=True))
        kept.until.append((now + source.cache_s, unknown.names))
        rows = list(map(kept.rows.get, keys.names))
    kept.take(keys.names, source.cache_rows)
    return rows


def forget_rows(source: LookupSource) -> None:
    """Forget the rows that this process has found in a table."""
    for process, place, fields in list(_kept):
        if place == source.place:
            del _kept[process, place, fields]
