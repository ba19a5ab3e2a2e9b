"""Change log: the transactions of a store as numbered objects, each created once, so that they have one order.

```
PREFIX/about.json                says that the prefix has the store of a server
PREFIX/changes/0000000012        the rows that a transaction has changed
PREFIX/snapshots/0000000512      all rows after that change
PREFIX/removed/0000000512        changes up to this number may have been removed
```

An object store creates an object only once. So of several servers that have read up to change n, one adds change
n + 1, and the others find it there, follow, and decide again. Old changes are removed, and a server that slept
meanwhile could create one of them again. Therefore a mark is created first, which stays; a change counts only where,
after it was read or created, the mark at or above its number is not there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias, TypeVar

import msgspec

from penstock.checkpoints.stored_log import ObjectsOfLog
from penstock.errors import PenstockError, StoreError

__all__ = ["SNAPSHOT_EVERY", "BehindError", "Change", "ChangeLog", "Rows", "Snapshot"]

_log: Final = logging.getLogger(__name__)

Rows: TypeAlias = dict[str, list[dict[str, int | str | None]]]
"""Rows of tables, by column."""

SNAPSHOT_EVERY: Final = 512
"""After each change whose number this divides, there is a snapshot. A reader needs the changes after the newest one."""

_ABOUT: Final = "about.json"
_FORMAT: Final = 1
_CHANGES: Final = "changes"
_SNAPSHOTS: Final = "snapshots"
_REMOVED: Final = "removed"
_AT_ONCE: Final = 16

_Decoded = TypeVar("_Decoded")


class _About(msgspec.Struct, frozen=True):
    """The description of a prefix that has the store of a server, in this format."""

    server_store: int


class Change(msgspec.Struct, frozen=True):
    """The changes of a transaction: the new content of rows, and the keys of deleted rows.

    `id` is its own, `writer` the process that has added it, `revision` the version of the tables.
    """

    number: int
    id: str
    writer: str
    revision: str
    rows: Rows
    gone: Rows


class Snapshot(msgspec.Struct, frozen=True):
    """All rows after a change. Number 0 is the empty store."""

    number: int
    revision: str
    rows: Rows


class BehindError(Exception):
    """Changes behind a number may have been removed; the newest snapshot has them."""


class ChangeLog:
    """The log of one store.

    All methods raise StoreError when the object store cannot be used, or has something else.

    Args:
        objects: the objects below the prefix of the store.
        shown: the URI of the prefix, for messages.
        snapshot_every: after how many changes there is a snapshot; the same for all servers.

    """

    def __init__(self, objects: ObjectsOfLog, shown: str, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._objects: Final = objects
        self.shown: Final = shown
        self._every: Final = snapshot_every

    def check(self) -> None:
        """Check that the prefix has a store, or is empty, and that objects are created only once."""
        about = msgspec.json.encode(_About(_FORMAT))
        with self._store_errors():
            created = self._objects.create(_ABOUT, about) and self._objects.create(_ABOUT, about)
            found = self._objects.find(_ABOUT)
        if created:
            raise StoreError(
                f"The object store of {self.shown} replaces objects that are to be created only once (If-None-Match), "
                "so two servers could not be told apart. Use another object store, or PostgreSQL."
            )
        if found != about:
            raise StoreError(
                f"{self.shown} has something else than the store of a server. Use another prefix."
            )

    def load(self, revision: str) -> tuple[Snapshot, list[Change]]:
        """Return the newest snapshot and all changes after it. `revision` is that of a store without a snapshot."""
        before = -1
        with self._store_errors():
            while True:
                base = max(self._numbers(_SNAPSHOTS), default=0)
                if base == before:
                    raise self._damaged(f"changes after {base}", "missing")
                before = base
                loaded = self._load_from(base, revision)
                # The changes that were read are complete unless some were removed meanwhile.
                if loaded is not None and not self._is_removed(base + 1):
                    return loaded

    def _load_from(self, base: int, revision: str) -> tuple[Snapshot, list[Change]] | None:
        """Return a snapshot and the changes after it; None if any of them is missing."""
        snapshot = Snapshot(0, revision, {})
        if base:
            content = self._objects.find(_name(_SNAPSHOTS, base))
            if content is None:
                return None
            snapshot = self._decode(content, Snapshot, _name(_SNAPSHOTS, base))
        numbers = sorted(number for number in self._numbers(_CHANGES, after=base) if number > base)
        if numbers != list(range(base + 1, base + 1 + len(numbers))):
            return None
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = list(pool.map(lambda number: self._objects.find(_name(_CHANGES, number)), numbers))
        changes = []
        for number, content in zip(numbers, contents, strict=True):
            if content is None:
                return None
            changes.append(self._decode(content, Change, _name(_CHANGES, number)))
        return snapshot, changes

    def newer(self, number: int) -> list[Change]:
        """Return the changes after a number. Raises BehindError if they may have been removed."""
        found: list[Change] = []
        with self._store_errors():
            while True:
                name = _name(_CHANGES, number + 1 + len(found))
                content = self._objects.find(name)
                if content is None:
                    break
                found.append(self._decode(content, Change, name))
            if self._is_removed(number + 1):
                raise BehindError
        return found

    def add(self, change: Change) -> bool:
        """Add a change; return whether it has its number, and not another one. Then the object store has it.

        After a StoreError it may have it, or get it later.
        """
        name = _name(_CHANGES, change.number)
        with self._store_errors():
            is_there = self._objects.create(name, msgspec.json.encode(change))
            if not is_there:
                # The answer to the request that has created it may be lost, and the client has asked again.
                content = self._objects.find(name)
                is_there = content is not None and self._decode(content, Change, name).id == change.id
            if self._is_removed(change.number):
                # It may have been there, and been removed since, even if it is not there now.
                raise StoreError(
                    f"This server stood still while others continued with the store {self.shown}, so it is not known "
                    "whether the change was made. Check what was done before you try again."
                )
        return is_there

    def is_due(self, number: int) -> bool:
        """Return whether a snapshot is due after a change."""
        return number % self._every == 0

    def compact(self, snapshot: Snapshot) -> None:
        """Write a snapshot, and remove changes that only servers far behind would need. A failure is logged.

        The next snapshot makes up for it.
        """
        try:
            name = _name(_SNAPSHOTS, snapshot.number)
            # All servers have the same rows after the same change, so it does not matter which one has created it.
            self._objects.create(name, msgspec.json.encode(snapshot))
            if not self._objects.holds(name):
                return
            limit = snapshot.number - self._every
            self._mark(limit)
            changes = [_name(_CHANGES, number) for number in self._numbers(_CHANGES) if number <= limit]
            older = [
                _name(_SNAPSHOTS, number) for number in self._numbers(_SNAPSHOTS) if number < snapshot.number
            ]
            if changes or older:
                self._objects.remove([*sorted(changes), *older])
        except PenstockError as e:
            _log.warning("Old changes of the store stay for now: %s", e)

    def _mark(self, limit: int) -> None:
        """Mark that changes up to a number may be removed. The marks are created in order, so none is left out."""
        missing = []
        for number in range(limit, 0, -self._every):
            if self._objects.holds(_name(_REMOVED, number)):
                break
            missing.append(number)
        for number in reversed(missing):
            self._objects.create(_name(_REMOVED, number), b"")

    def _is_removed(self, number: int) -> bool:
        """Return whether a change may have been removed."""
        mark = -(-number // self._every) * self._every
        return self._objects.holds(_name(_REMOVED, mark))

    def _numbers(self, folder: str, after: int = 0) -> Iterator[int]:
        for name in self._objects.names(folder, f"{after:010}" if after else ""):
            if len(name) == 10 and name.isdecimal():
                yield int(name)

    def _decode(self, content: bytes, kind: type[_Decoded], name: str) -> _Decoded:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise self._damaged(name, f"not what a server has written ({e})") from e

    def _damaged(self, what: str, how: str) -> StoreError:
        return StoreError(
            f"The store {self.shown} is damaged: {what}: {how}. Put the objects back from a copy, or use another store."
        )

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except PenstockError as e:
            raise StoreError(
                f"The store {self.shown} cannot be used: {e} Check what was done before you try again."
            ) from e


def _name(folder: str, number: int) -> str:
    return f"{folder}/{number:010}"
