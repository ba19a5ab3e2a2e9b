"""Receivers: journal the records of sources that cannot be read again, before the job sees them."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Self, TypeVar

from penstock.errors import (
    BindingError,
    ExternalSystemError,
    JobFailedError,
    PenstockError,
    RecordsLostError,
)
from penstock.sources.journal import JournalWriter

__all__ = ["IDLE_S", "MAX_BYTES", "Group", "Receiver", "group_end_s"]

IDLE_S: Final = 0.2
"""How long a receiver waits for input before it checks whether to stop, in seconds."""
MAX_BYTES: Final = 8 << 20
"""The size of a group, in bytes, at which it is made durable at once."""

_log: Final = logging.getLogger("penstock.sources")
_log.addHandler(logging.NullHandler())

_GROUP_S: Final = 0.01
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_PATIENCE_S: Final = 60.0

_Connection = TypeVar("_Connection", bound=AbstractContextManager[Any])


class Receiver(ABC, Generic[_Connection]):
    """A receiver of the records of a stream, in its own thread, which appends them to a journal; a context manager.

    When the connection is lost the receiver reconnects, with growing pauses. Entering it raises an error when the
    first connection cannot be made; like all others it is made in the thread, since some clients work only in the
    thread that has made them. The caller checks `error` from time to time: when it is set, nothing more is
    received.

    Args:
        stream: the stream's name, for messages.
        journal: where records go; the receiver closes it.
        bounded: whether to end at the stream's end, which `wait_for_end` waits for.

    """

    def __init__(self, stream: str, journal: JournalWriter, *, bounded: bool = False) -> None:
        self._stream = stream
        self._journal = journal
        self._bounded = bounded
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"receiver-{stream}", daemon=True)
        self._first: _Connection | None = None
        self._has_begun = threading.Event()
        self._refusal: BaseException | None = None
        self.error: PenstockError | None = None

    @abstractmethod
    def _connect(self) -> _Connection:
        """Return a connection that is ready to receive.

        Raises ExternalSystemError when it cannot be made now, and BindingError when the place of the binding does not
        exist.
        """

    @abstractmethod
    def _receive(self, connection: _Connection) -> None:
        """Journal what arrives until `_stopping` is set, or the end for this kind of source is reached.

        Raises OSError or ExternalSystemError when the connection is lost before that, and RecordsLostError when the
        other side has deleted what comes next.
        """

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._has_begun.wait()
            if self._refusal is not None:
                raise self._refusal
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._journal.close()

    def wait_for_end(self, stop: threading.Event) -> None:
        """Wait until everything up to the end of the stream is durable, or `stop` is set; only for bounded runs."""
        assert self._bounded, "a streaming source has no end"
        while not self._ended.wait(0.1) and not stop.is_set():
            if self.error is not None:
                raise self.error

    def _run(self) -> None:
        try:
            self._first = self._connect()
        except BaseException as e:  # the thread that enters raises it
            self._refusal = e
            return
        finally:
            self._has_begun.set()
        try:
            self._receive_until_the_end()
        except PenstockError as e:
            self.error = e
        except Exception as e:  # otherwise the job would continue without this stream
            self.error = JobFailedError(
                f"Stream {self._stream!r}: the receiver failed ({type(e).__name__}: {e})."
            )

    def _connect_again(self) -> _Connection:
        try:
            return self._connect()
        except BindingError as e:
            raise _MissingError(e) from None

    def _receive_until_the_end(self) -> None:
        pause_s = _FIRST_PAUSE_S
        missing_since_s: float | None = None
        while not (self._bounded and self._ended.is_set()):
            before = self._journal.position
            try:
                with self._first or self._connect_again() as connection:
                    self._first = None
                    missing_since_s = None
                    self._receive(connection)
                self._ended.set()
            except RecordsLostError:
                raise
            except (OSError, ExternalSystemError) as e:
                if self._journal.has_failed:
                    raise
                # The other side does not answer; try again after the pause.
                _log.warning("Stream %r: %s", self._stream, e, extra={"stream": self._stream})
            except _MissingError as e:
                # A broker that has just started may not know its queues and streams yet.
                missing_since_s = missing_since_s or time.monotonic()
                if time.monotonic() > missing_since_s + _PATIENCE_S:
                    raise e.error from None
            if self._journal.position > before:
                pause_s = _FIRST_PAUSE_S
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _MissingError(Exception):
    """The place that the stream is bound to existed, but does not at the moment."""

    def __init__(self, error: BindingError) -> None:
        super().__init__(str(error))
        self.error = error


class Group:
    """Messages that become durable together: soon, but not one by one.

    Args:
        journal: where they go.
        max_records: the number of records at which the group is due.

    """

    def __init__(self, journal: JournalWriter, max_records: int) -> None:
        self._journal = journal
        self._max_records = max_records
        self._records: list[bytes] = []
        self._notes: list[bytes] = []
        self._bytes = 0
        self._committed_s = 0.0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: bytes, note: bytes = b"") -> None:
        """Add a record, with its part of the journal's note."""
        self._records.append(record)
        self._notes.append(note)
        self._bytes += len(record)

    @property
    def wait_s(self) -> float:
        """How many seconds to wait for more before the group is committed; 0 when it is due."""
        if not self._records:
            return IDLE_S
        if len(self._records) >= self._max_records or self._bytes >= MAX_BYTES:
            return 0.0
        return max(0.0, group_end_s(self._committed_s) - time.monotonic())

    def take(self) -> tuple[list[bytes], bytes]:
        """Empty the group, and return its records and the journal's note, to be committed now."""
        taken = self._records, b"".join(self._notes)
        self._records, self._notes, self._bytes = [], [], 0
        self._committed_s = time.monotonic()
        return taken

    def commit(self) -> None:
        """Make the group durable, and empty it."""
        if self._records:
            self._journal.append(*self.take())
            self._committed_s = time.monotonic()


def group_end_s(committed_s: float) -> float:
    """Return until when a group may grow. Only messages right after a commit have to wait."""
    return committed_s + _GROUP_S
