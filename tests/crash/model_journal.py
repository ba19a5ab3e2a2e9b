"""A receiver in the place of a socket or a broker: it takes a folder's files, in order, into the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.sources.journal import JournalWriter

__all__ = ["JournaledReceiver"]


class JournaledReceiver:
    """Journals the records of files, each with its place as a note, and after a start continues after the newest note.

    A file is journaled whole, and then acknowledged: whoever gave it does not give it again.
    """

    error = None

    def __init__(self, folder: Path, given: Path, acknowledge: Callable[[Path], None]) -> None:
        self._acknowledge = acknowledge
        self._journal = JournalWriter(folder)
        self._given = given
        self._next = next((int(note) + 1 for note in self._journal.notes() if note), 0)

    def __enter__(self) -> Self:
        RECEIVERS.append(self)
        self.receive()
        return self

    def __exit__(self, *_: object) -> None:
        RECEIVERS.remove(self)
        self._journal.close()

    def wait_for_end(self, stop: Any) -> None:
        self.receive()

    def receive(self) -> None:
        """Journal what has come."""
        for path in sorted(self._given.glob("[0-9]*.jsonl")):
            number = int(path.stem)
            if number >= self._next:
                self._journal.append(path.read_bytes().splitlines(), str(number).encode())
                self._next = number + 1
            self._acknowledge(path)


RECEIVERS: list[JournaledReceiver] = []
