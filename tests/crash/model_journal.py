"""A receiver in the place of a socket or a broker: it takes a folder's files, in order, into the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from penstock.sources.journal import JournalWriter

__all__ = ["JournaledReceiver"]


class JournaledReceiver:
    """Journals the records of files, each with its place as a note, and after a start goes on behind the newest note.

    So it does what the receiver of a RabbitMQ stream does. A file is journaled whole when the source is looked at.
    """

    error = None

    def __init__(self, folder: Path, given: Path) -> None:
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
        while (path := self._given / f"{self._next:04}.jsonl").exists():
            lines = path.read_bytes().splitlines()
            self._journal.append(lines, str(self._next).encode())
            self._next += 1


RECEIVERS: list[JournaledReceiver] = []
