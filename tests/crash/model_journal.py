"""A receiver that replaces a socket or a broker: it journals a folder's files in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.sources.journal import JournalWriter

__all__ = ["JournaledReceiver"]


class JournaledReceiver:
    """Journals the records of files, each with its position as a note, and continues after the newest note at
    a start.

    A file is journaled whole, and then acknowledged: its sender does not send it again.
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
        """Journal the new files."""
        for path in sorted(self._given.glob("[0-9]*.jsonl")):
            number = int(path.stem)
            if number >= self._next:
                self._journal.append(path.read_bytes().splitlines(), str(number).encode())
                self._next = number + 1
            self._acknowledge(path)


RECEIVERS: list[JournaledReceiver] = []
