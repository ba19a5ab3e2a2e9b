"""Inboxes: queues of the bundles of rows that readers and other slots send to a slot."""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from penstock.metrics.source_times import SourceTimes
from penstock.realtime.intake import Intake
from penstock.runtime.packed_rows import PackedRow

__all__ = ["Delivery", "Inbox", "PeerLostError"]


class PeerLostError(Exception):
    """Another engine of the job, a task of Spark, or the coordinator is gone."""


class Delivery(NamedTuple):
    """Rows of a sender for a level, perhaps for the end of the interval. Without rows, an end: see `Bundle`.

    `times` are for metrics only.
    """

    sender: str
    interval: int
    level: int
    rows: list[PackedRow] | None
    through: int = 0
    at_end: bool = False
    times: SourceTimes | None = None

    @property
    def nbytes(self) -> int:
        """The size of the bodies."""
        return sum(_size(row.body) for row in self.rows or ())


def _size(body: Any) -> int:
    return len(body) if isinstance(body, bytes) else int(body.nbytes)


class Inbox:
    """Two queues between threads: one for the present interval, and one for the next, which others may have begun.

    Readers that put rows wait while more rows of their interval are queued than the intake of the slot allows. The
    thread of the slot waits in `await_any` for what comes.
    """

    def __init__(self, intake: Intake, interval: int) -> None:
        self._intake: Final = intake
        self._interval = interval
        self._deliveries: Final[dict[int, list[Delivery]]] = {interval: []}
        self._sizes: Final[dict[int, int]] = {}
        self._lock: Final = threading.Lock()
        # The slot's thread waits for the one, readers for the other. So a reader that takes its own deliveries does not
        # wake the slot's thread, which would take the interpreter from it.
        self._arrived: Final = threading.Condition(self._lock)
        self._has_room: Final = threading.Condition(self._lock)
        self._is_woken = False
        self._error: BaseException | None = None

    def put(self, *deliveries: Delivery, waits: bool = False, wakes: bool = True) -> None:
        """Add deliveries of one interval. With `waits`, wait for room first. Raises the error of `fail`.

        Without `wakes`, the caller takes them itself, or calls `wake`.
        """
        size, interval = sum(one.nbytes for one in deliveries), deliveries[0].interval
        with self._lock:
            while waits and self._sizes.get(interval, 0) > self._intake.waiting_bytes and self._error is None:
                self._has_room.wait()
            self._raise()
            self._deliveries.setdefault(interval, []).extend(deliveries)
            self._sizes[interval] = self._sizes.get(interval, 0) + size
            if wakes:
                self._arrived.notify_all()

    def offer(self, delivery: Delivery, *, waits: bool) -> bool:
        """Add a delivery as `put` does. Return whether the inbox still takes deliveries."""
        try:
            self.put(delivery, waits=waits)
        except Exception:  # the error of `fail`, with which the task ends
            return False
        return True

    def wake(self) -> None:
        """End the wait of the thread of the slot."""
        with self._lock:
            self._is_woken = True
            self._arrived.notify_all()

    def await_any(self, timeout_s: float | None, *, until_woken: bool) -> bool:
        """Wait, up to the timeout, for deliveries for the interval or `fail`, or also for `wake`.

        Return whether there are deliveries.
        """
        with self._lock:
            self._arrived.wait_for(
                lambda: (
                    self._deliveries[self._interval]
                    or self._error is not None
                    or (until_woken and self._is_woken)
                ),
                timeout_s,
            )
            self._is_woken = False
            return bool(self._deliveries[self._interval])

    @property
    def waiting_bytes(self) -> int:
        """The size of the bodies that wait for the interval."""
        return self._sizes.get(self._interval, 0)

    def fail(self, error: BaseException) -> None:
        """Raise an error in all threads that use the inbox."""
        with self._lock:
            self._error = self._error or error
            self._arrived.notify_all()
            self._has_room.notify_all()

    def take(self) -> list[Delivery]:
        """Take the deliveries for the interval. Raises the error of `fail`."""
        with self._lock:
            self._raise()
            found, self._deliveries[self._interval] = self._deliveries[self._interval], []
            self._sizes.pop(self._interval, None)
            self._has_room.notify_all()
            return found

    def wait_for_all(self, senders: AbstractSet[str], timeout_s: float) -> None:
        """Wait, up to the timeout, until each of these senders has put something for the interval."""
        with self._lock:
            self._arrived.wait_for(
                lambda: self._error or self._has_all(senders),
                timeout_s,
            )

    def has_all(self, senders: AbstractSet[str]) -> bool:
        """Return whether each of these senders has put something for the interval."""
        with self._lock:
            return self._has_all(senders)

    def _has_all(self, senders: AbstractSet[str]) -> bool:
        return senders <= {one.sender for one in self._deliveries[self._interval]}

    def advance(self) -> None:
        """Begin the next interval, after all deliveries of the present one were taken."""
        with self._lock:
            assert not self._deliveries.pop(self._interval), "an interval ends with all its deliveries"
            self._interval += 1
            self._deliveries.setdefault(self._interval, [])

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
