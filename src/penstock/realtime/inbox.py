"""Inboxes: where a slot finds the bundles of rows that readers and other slots send it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, NamedTuple

from penstock.runtime.packed_rows import PackedRow

__all__ = ["Delivery", "Inbox", "PeerLostError"]


class PeerLostError(Exception):
    """Another task of the interval, or its coordinator, is gone."""


class Delivery(NamedTuple):
    """Rows of a sender for a level. Without rows, what ends: as `Bundle.through`."""

    sender: str
    level: int
    rows: list[PackedRow] | None
    through: int = 0

    @property
    def nbytes(self) -> int:
        """The size of the bodies."""
        return sum(_size(row.body) for row in self.rows or ())


def _size(body: Any) -> int:
    return len(body) if isinstance(body, bytes) else int(body.nbytes)


class Inbox:
    """A queue between threads. What readers put waits while more than `max_bytes` wait to be processed."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: Final = max_bytes
        self._deliveries: deque[tuple[Delivery, int]] = deque()
        self._size = 0
        self._changed: Final = threading.Condition()
        self._error: BaseException | None = None

    def put(self, delivery: Delivery, *, waits: bool = False) -> None:
        """Add a delivery. With `waits`, wait for room first. Raises the error of `fail`."""
        size = delivery.nbytes
        with self._changed:
            while waits and self._size > self._max_bytes and self._error is None:
                self._changed.wait()
            self._raise()
            self._deliveries.append((delivery, size))
            self._size += size
            self._changed.notify_all()

    def offer(self, delivery: Delivery, *, waits: bool) -> bool:
        """Add a delivery as `put` does. Return whether anybody still takes deliveries."""
        try:
            self.put(delivery, waits=waits)
        except Exception:  # the error of `fail`, with which the task ends
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Raise an error in all threads that use the inbox."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def take(self, timeout_s: float | None) -> list[Delivery]:
        """Take everything that is there; wait for some time if nothing is. Raises the error of `fail`."""
        with self._changed:
            if not self._deliveries and self._error is None:
                self._changed.wait(timeout_s)
            self._raise()
            found = [delivery for delivery, _ in self._deliveries]
            self._deliveries.clear()
            self._size = 0
            self._changed.notify_all()
            return found

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
