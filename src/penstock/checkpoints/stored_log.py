"""Stored log: the entries of a checkpoint on an object store, each created once, so that one run at a time adds any.

A run reads the log up to its newest entry n, and takes over the checkpoint with entry n + 1. Every further entry has
the next number. An object store creates an object only once, so a run that finds the next number taken has lost the
checkpoint: a run that was believed dead cannot add anything after the entry with which another one took over. Those
entries are never removed, other old ones are; so a start that was asleep while many were added and removed looks, after
it took over, for newer ones.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final, Protocol

from penstock.checkpoints.stored_entries import (
    FILES,
    LOG,
    TABLE_EVERY,
    Entry,
    FileTable,
    StoredFile,
    base_of,
    decode_entry,
    encode_entry,
    entry_name,
    epoch_of,
    number_of,
)
from penstock.errors import CheckpointError, CheckpointInUseError, ExternalSystemError, FencedError

__all__ = ["ObjectsOfLog", "StoredLog"]


class ObjectsOfLog(Protocol):
    """The objects below a prefix. `ObjectFolder` says what each method does, and raises."""

    def put(self, name: str, content: IO[bytes]) -> None:
        """Write an object."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless one of this name is there."""

    def find(self, name: str) -> bytes | None:
        """Return the content of an object, if it is there."""

    def holds(self, name: str) -> bool:
        """Return whether there is an object of this name."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""

    def remove_unfinished(self) -> None:
        """Remove the remains of writes that were broken off long ago."""

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        """Return the names in a folder."""


class StoredLog:
    """The log of one checkpoint, as one run sees it and adds to it.

    Args:
        objects: the objects below the prefix of the checkpoint.
        shown: the URI of the checkpoint, for messages.
        folder: the folder on this machine in which the run works.

    """

    def __init__(self, objects: ObjectsOfLog, shown: str, folder: str) -> None:
        self._objects: Final = objects
        self._shown: Final = shown
        self._folder: Final = folder
        self._run: Final = uuid.uuid4().hex
        self.table: Final = FileTable()
        self.newest: Entry | None = None
        self.epoch = 0
        self._number = -1
        self._numbers: set[int] = set()
        self._taken: set[int] = set()
        self._unneeded: set[str] = set()

    def read(self) -> None:
        """Read the log up to its newest entry.

        Raises CheckpointInUseError when a run removes entries meanwhile, and CheckpointError when one is damaged.
        """
        found = {number for name in self._objects.names(LOG) if (number := number_of(name)) is not None}
        self._numbers = found
        self._number = max(found, default=-1)
        for number in range(base_of(self._number), self._number + 1) if found else ():
            data = self._objects.find(entry_name(number))
            if data is None:
                raise self._gone(entry_name(number))
            entry, _ = decode_entry(data, f"{self._shown}/{entry_name(number)}")
            if number % TABLE_EVERY == 0:
                self.table.begin(entry.table or {})
                self._taken = set(entry.taken)
            else:
                self.table.apply(entry.files, entry.gone)
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        self.newest = entry
        self._number = entry.number
        self._numbers.add(entry.number)
        if entry.takes:
            self._taken.add(entry.number)

    def content(self, name: str) -> memoryview:
        """Return the content of an object, of an entry without its first line. Raises what `read` raises."""
        data = self._objects.find(name)
        if data is None:
            raise self._gone(name)
        if name.startswith(f"{LOG}/"):
            return decode_entry(data, f"{self._shown}/{name}")[1]
        return memoryview(data)

    def _gone(self, name: str) -> CheckpointError:
        if self._has_newer(max(self._numbers)):
            return self._in_use("has gone on while it was read")
        return CheckpointError(
            f"The checkpoint is damaged: {self._shown}/{name} is missing. Restore the object from a copy, or start "
            "from a savepoint with another checkpoint."
        )

    def take(self) -> None:
        """Take over the checkpoint as `read` has found it.

        Raises CheckpointInUseError when another run has added anything since.
        """
        self.epoch = 1 if self.newest is None else self.newest.epoch + 1
        entry = self._next(takes=True)
        if not self._create(entry, b""):
            raise self._in_use("has gone on while this one started")
        if self._has_newer(entry.number):
            raise self._in_use("has gone on while this one started")
        self._note(entry)
        self._remove_left_behind()

    def _has_newer(self, number: int) -> bool:
        return any((number_of(name) or 0) > number for name in self._objects.names(LOG, f"{number:010}"))

    def add(self, files: Mapping[str, StoredFile], gone: Sequence[str], content: bytes) -> None:
        """Add an entry with changed files; when this returns, the store has it.

        Raises FencedError when another run has taken over the checkpoint. After another error the store may have the
        entry, or get it later, so the run adds no more.
        """
        self._unneeded |= self.table.apply(files, gone)
        entry = self._next(files=files, gone=gone)
        if not self._create(entry, content):
            raise self._fenced()
        self._note(entry)
        self._remove_unneeded()

    def _next(
        self, *, takes: bool = False, files: Mapping[str, StoredFile] | None = None, gone: Sequence[str] = ()
    ) -> Entry:
        """Return the entry with the next number."""
        number = self._number + 1
        has_table = number % TABLE_EVERY == 0
        return Entry(
            number=number,
            id=uuid.uuid4().hex,
            run=self._run,
            epoch=self.epoch,
            host=socket.gethostname(),
            folder=self._folder,
            takes=takes,
            files=dict(files or {}),
            gone=tuple(gone),
            table=dict(self.table.files) if has_table else None,
            taken=tuple(sorted(self._taken)) if has_table else (),
        )

    @property
    def next_name(self) -> str:
        """The name of the entry that `add` adds next."""
        return entry_name(self._number + 1)

    def name_of_content(self) -> str:
        """Return a new name for an object of content."""
        return f"{FILES}/{self.epoch:010}-{uuid.uuid4().hex}"

    def put_content(self, name: str, content: IO[bytes]) -> None:
        """Write an object of content, which counts only when an entry names it."""
        self._objects.put(name, content)

    def _create(self, entry: Entry, content: bytes) -> bool:
        """Create an entry; return whether it is this one that has its number."""
        name = entry_name(entry.number)
        if self._objects.create(name, encode_entry(entry, content)):
            return True
        # The answer to the request that has created it may be lost, and the client has asked again.
        data = self._objects.find(name)
        return data is not None and decode_entry(data, f"{self._shown}/{name}")[0].id == entry.id

    def lost(self) -> FencedError | None:
        """Return the error if another run has taken over the checkpoint, else None."""
        return self._fenced() if self._objects.holds(entry_name(self._number + 1)) else None

    def _fenced(self) -> FencedError:
        data = self._objects.find(entry_name(self._number + 1))
        other = None if data is None else decode_entry(data, self._shown)[0]
        of = (
            "" if other is None else f" on {other.host} (its epoch is {other.epoch}, this run's {self.epoch})"
        )
        return FencedError(
            f"Another run{of} has taken over the checkpoint {self._shown}. This run has ended and commits nothing "
            "more. Let only one run use a checkpoint."
        )

    def _in_use(self, what: str) -> CheckpointInUseError:
        return CheckpointInUseError(
            f"The checkpoint {self._shown} is in use by another run of the job, which {what}. Stop that one first."
        )

    def _remove_left_behind(self) -> None:
        """Remove content of earlier runs that no entry names: they were broken off before that entry.

        Content of this epoch and later ones stays, since a later run may have taken over meanwhile.
        """
        self._unneeded |= {
            f"{FILES}/{name}"
            for name in self._objects.names(FILES)
            if (epoch := epoch_of(name)) is not None
            and epoch < self.epoch
            and not self.table.needs(f"{FILES}/{name}")
        }
        self._remove_unneeded(at_once=True)

    def _remove_unneeded(self, *, at_once: bool = False) -> None:
        """Now and then remove objects that no file needs. Readers need the entries from the newest table on."""
        if self._number % TABLE_EVERY and not at_once:
            return
        first = base_of(self._number)
        old = {number for number in self._numbers if number < first} - self._taken
        unneeded = {number for number in old if not self.table.needs(entry_name(number))}
        names = sorted({name for name in self._unneeded if name.startswith(f"{FILES}/")})
        try:
            if names or unneeded:
                self._objects.remove([*names, *(entry_name(number) for number in sorted(unneeded))])
        except ExternalSystemError:
            # They cost space only, and are removed with those of the next table.
            return
        self._numbers -= unneeded
        self._unneeded.clear()
