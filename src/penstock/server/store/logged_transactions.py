"""Logged transactions: a store on an object store, for servers that share nothing else.

Each server has all tables in a file of its own, and brings it up to the newest change before it reads or writes. A
transaction is carried out there, and counts when its changed rows are the next change of the log. If another server's
change has that number, the transaction is undone, and carried out again after it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

import sqlalchemy as sa

from penstock.checkpoints.stored_home import place_of_home
from penstock.errors import CheckpointError, JobDefinitionError, StoreError
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.server.store.change_log import BehindError, Change, ChangeLog, Snapshot
from penstock.server.store.database import leadership
from penstock.server.store.row_view import RowView
from penstock.server.store.view_folder import view_folder

__all__ = ["LoggedTransactions"]

_Result = TypeVar("_Result")


class _TakenError(Exception):
    """Another change has the number."""


class LoggedTransactions:
    """Transactions of a store on an object store. Safe to use from several threads.

    Args:
        log: the change log of the store.
        clock_s: a clock of this process that never goes back.

    """

    def __init__(self, log: ChangeLog, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log: Final = log
        self._clock_s: Final = clock_s
        self._writer: Final = f"{socket.gethostname()}/{os.getpid()}"
        # One thread at a time follows the log or adds to it.
        self._lock: Final = threading.Lock()
        self._looks = 0
        self._failure: str | None = None
        self._resources: Final = contextlib.ExitStack()
        self._folder: Final = self._resources.enter_context(view_folder())
        try:
            log.check()
            self._view = self._load()
        except BaseException:
            self._resources.close()
            raise

    @classmethod
    def at(cls, uri: str) -> Self:
        """Open the store at `s3://BUCKET/PREFIX`. Raises JobDefinitionError for another URI."""
        try:
            place = place_of_home(uri)
        except CheckpointError:
            scheme = uri.partition("://")[0]
            raise JobDefinitionError(
                f"{scheme}://... cannot be the store of a server. Give {scheme}://BUCKET/PREFIX; keys belong in "
                "the environment of the server."
            ) from None
        return cls(ChangeLog(ObjectFolder(place, {}, IN_HASTE), place.shown))

    def close(self) -> None:
        """Remove the tables of this process."""
        with self._lock:
            self._view.close()
            self._resources.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads, and sees every change that any server has made before."""
        before = self._looks
        with self._lock:
            # Another thread may have looked after this one asked; then its look is as good.
            if self._looks == before:
                self._look()
            elif self._failure is not None:
                raise StoreError(self._failure)
            view = self._view
        with view.reading() as connection:
            yield connection

    def write(self, act: Callable[[sa.Connection], _Result]) -> _Result:
        """Carry out a transaction, again and again until its change is the next one, or it changes nothing."""
        with self._lock:
            while True:
                self._look()
                with contextlib.suppress(_TakenError):
                    return self._try(act)

    def lease_unchanged_ms(self) -> int:
        """Return for how long this process has seen the leader's lease unchanged, by its own clock."""
        return int((self._clock_s() - self._lease_seen_s) * 1000)

    def _try(self, act: Callable[[sa.Connection], _Result]) -> _Result:
        """Carry out a transaction. Raises _TakenError if another change has come first."""
        with self._view.writing() as connection:
            result = act(connection)
            rows, gone = self._view.touched_rows(connection)
            if not rows and not gone:
                return result
            change = Change(
                number=self._number + 1,
                id=uuid.uuid4().hex,
                writer=self._writer,
                revision=self._view.revision,
                rows=rows,
                gone=gone,
            )
            if not self._log.add(change):
                raise _TakenError
        self._note(change)
        if self._log.is_due(self._number):
            self._log.compact(Snapshot(self._number, self._view.revision, self._view.all_rows()))
        return result

    def _look(self) -> None:
        """Bring the tables up to the newest change."""
        self._looks += 1
        try:
            self._follow()
        except BaseException as e:
            self._failure = str(e)
            raise
        self._failure = None

    def _follow(self) -> None:
        try:
            changes = self._log.newer(self._number)
        except BehindError:
            before, self._view = self._view, self._load()
            before.close()
            return
        self._view.apply(changes)
        for change in changes:
            self._note(change)

    def _load(self) -> RowView:
        """Return new tables, from the newest snapshot and the changes after it."""
        view = RowView(self._folder / f"{uuid.uuid4().hex}.db")
        try:
            snapshot, changes = self._log.load(view.revision)
            view.apply([snapshot, *changes])
        except BaseException:
            view.close()
            raise
        self._number = changes[-1].number if changes else snapshot.number
        self._lease_seen_s = self._clock_s()
        return view

    def _note(self, change: Change) -> None:
        self._number = change.number
        if leadership.name in change.rows:
            self._lease_seen_s = self._clock_s()
