"""Group commits: a thread makes groups of messages durable, while more messages arrive."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, Self, TypeVar

from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import Group

__all__ = ["GroupCommits"]

# How soon messages are acknowledged after the disk has them.
_LOOK_S: Final = 0.002

_Message = TypeVar("_Message")


class GroupCommits(Generic[_Message]):
    """The groups of a receiver, of which one at a time goes to disk; a context manager.

    All methods are called in the thread of the receiver. Leaving it waits for the disk, so that the journal has no
    other writer afterwards.

    Args:
        journal: where messages go.
        max_records: the number of messages at which a group is due.
        acknowledge: called with the messages of a group when they are durable.

    """

    def __init__(
        self, journal: JournalWriter, max_records: int, acknowledge: Callable[[list[_Message]], None]
    ) -> None:
        self._journal: Final = journal
        self._acknowledge: Final = acknowledge
        self._group: Final = Group(journal, max_records)
        self._thread: Final = ThreadPoolExecutor(1, "journal")
        self._grown: list[_Message] = []
        self._committed: list[_Message] = []
        self._commit: Future[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()
        if self._commit is not None:
            # A disk that fails is a reason to end, whatever happened to the connection meanwhile.
            self._commit.result()

    @property
    def wait_s(self) -> float:
        """How many seconds to wait for messages before the next step."""
        return self._group.wait_s if self._commit is None else _LOOK_S

    def add(self, body: bytes, message: _Message) -> None:
        """Add a message to the group that grows."""
        self._group.add(body)
        self._grown.append(message)

    def step(self) -> None:
        """Acknowledge the group that is durable by now, and commit the next one if it is due.

        Raises CheckpointError when the disk fails.
        """
        if self._commit is not None and self._commit.done():
            self._finish_commit()
        if self._commit is None and self._grown and self._group.wait_s == 0:
            self._begin_commit()

    def finish(self) -> None:
        """Commit and acknowledge all messages. Raises CheckpointError when the disk fails."""
        self._finish_commit()
        self._begin_commit()
        self._finish_commit()

    def _begin_commit(self) -> None:
        self._committed, self._grown = self._grown, []
        self._commit = self._thread.submit(self._journal.append, *self._group.take())

    def _finish_commit(self) -> None:
        if self._commit is None:
            return
        concurrent.futures.wait([self._commit])
        commit, self._commit = self._commit, None
        commit.result()
        self._acknowledge(self._committed)
