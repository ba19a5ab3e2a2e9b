"""Put queue: which records of a task go into the next request, so that those of one partition key stay in order.

Of one request Kinesis may take some records and refuse others, and a later record of a key could overtake a refused
one. So a request has at most one record of a key, and the next of that key follows when it is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

__all__ = ["Outgoing", "PutQueue"]


class Outgoing(NamedTuple):
    """A record to be put: its row in the block, its partition key and its data."""

    row: int
    key: str
    data: bytes

    @property
    def size(self) -> int:
        """The bytes that Kinesis counts."""
        return len(self.data) + len(self.key.encode())


class PutQueue:
    """The records that wait, by key in their order.

    Args:
        records: all of them, in order.
        keeps_order: whether the records of a key stay in order.
        most: the most records of a request.
        most_bytes: the most bytes of a request, which has at least one record.

    """

    def __init__(
        self, records: Iterable[Outgoing], *, keeps_order: bool, most: int = 500, most_bytes: int = 5 << 20
    ) -> None:
        self._most: Final = most
        self._most_bytes: Final = most_bytes
        self._keeps_order: Final = keeps_order
        self._by_key: Final[dict[Hashable, deque[Outgoing]]] = {}
        for record in records:
            self._by_key.setdefault(self._line(record), deque()).append(record)
        # The keys whose first record may go, those that have waited longest first.
        self._ready: Final[deque[Hashable]] = deque(self._by_key)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def _line(self, record: Outgoing) -> Hashable:
        """Return the line in which a record waits."""
        return record.key if self._keeps_order else record.row

    def take(self) -> list[Outgoing]:
        """Return the records of the next request, each the first that waits of its key."""
        taken: list[Outgoing] = []
        size = 0
        while self._ready and len(taken) < self._most:
            record = self._by_key[self._ready[0]][0]
            size += record.size
            if taken and size > self._most_bytes:
                break
            taken.append(record)
            self._ready.popleft()
        return taken

    def settle(self, taken: Sequence[Outgoing], failed: AbstractSet[int]) -> None:
        """Note the outcome of a request: rows that failed go first into the next one."""
        again: list[Hashable] = []
        for record in taken:
            line = self._line(record)
            if record.row in failed:
                again.append(line)
                continue
            waiting = self._by_key[line]
            waiting.popleft()
            if waiting:
                self._ready.append(line)
            else:
                del self._by_key[line]
        self._ready.extendleft(reversed(again))
