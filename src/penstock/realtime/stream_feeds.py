"""Feeds: threads of a task that read streams as records come, decode them, and send them to the slots."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from penstock.realtime.messages import HISTORY, Reading
from penstock.runtime.packed_rows import PackedRow
from penstock.sources.base import ReplayableLog, SourceChunk
from penstock.sources.kafka_log import KafkaLog, Offsets
from penstock.streams.graph import SourceNode

__all__ = ["Arrivals", "Feed", "FollowedTopic", "PushedRanges", "RepeatedReadings", "RowReader"]

_POLL_S: Final = 0.05


class RowReader(Protocol):
    """Turns the chunks of a stream into packed rows."""

    def rows(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[PackedRow]:
        """Yield the rows of chunks that were read at a time."""


class Arrivals(Protocol):
    """What comes of a stream while an interval runs."""

    @property
    def has_history(self) -> bool:
        """Whether not all that was there at the start is read."""

    def next(self) -> tuple[Reading, list[SourceChunk]] | None:
        """Wait for some time, and return what has come; without chunks if nothing has. None is the end."""

    def end(self) -> None:
        """Return None from `next` as soon as everything that belongs to the interval was returned."""


class FollowedTopic:
    """The partitions of a topic that a task follows.

    `history` has their ends at the start, if data waits for these records; `until` has where to stop, if anywhere.
    """

    def __init__(
        self, log: KafkaLog, starts: Offsets, history: Offsets | None = None, until: Offsets | None = None
    ) -> None:
        self._log: Final = log
        self._starts: Final = starts
        self._history: Final = history or {}
        self._until: Final = until
        self._ends: Final = threading.Event()
        self._is_open = False
        self.positions: dict[int, int] = dict(starts)
        # The same, beyond marks of transactions, which no reader sees.
        self._read_to: dict[int, int] = dict(starts)

    @property
    def has_history(self) -> bool:
        """Whether not all that was there at the start is read."""
        return self._is_before(self._history)

    def _is_before(self, ends: Offsets) -> bool:
        return any(self._read_to.get(number, 0) < end for number, end in ends.items())

    def next(self) -> tuple[Reading, list[SourceChunk]] | None:
        """Wait for some time, and return what has come."""
        if self._ends.is_set() or (self._until is not None and not self._is_before(self._until)):
            return None
        if not self._starts:
            self._ends.wait()
            return None
        reader = self._log.reader()
        if not self._is_open:
            reader.follow(self._starts)
            self._is_open = True
        found = reader.take(_POLL_S)
        self.positions, self._read_to = reader.positions, reader.known_ends
        return Reading.of(split for split, _ in found), [chunk for _, chunk in found]

    def end(self) -> None:
        """Read nothing more, except up to where to stop."""
        if self._until is None:
            self._ends.set()


class PushedRanges:
    """The ranges of a log that the coordinator gives a task to read."""

    def __init__(self, log: ReplayableLog[Any], node: SourceNode) -> None:
        self._log: Final = log
        self._node: Final = node
        self._ranges: Final[queue.SimpleQueue[Reading | None]] = queue.SimpleQueue()
        self._ended: Final = threading.Event()
        self.has_history = True

    def push(self, reading: Reading | None) -> None:
        """Add a range; None is the end of the history."""
        self._ranges.put(reading)

    def next(self) -> tuple[Reading, list[SourceChunk]] | None:
        """Wait for a range, and read it."""
        reading = self._ranges.get()
        if reading is not None:
            return reading, list(self._log.read(reading.splits, self._node.record_type))
        if self._ended.is_set() and self._ranges.empty():
            return None
        self.has_history = False
        return Reading(0, []), []

    def end(self) -> None:
        """Let `next` return None after the ranges that were pushed."""
        self._ended.set()
        self._ranges.put(None)


class Feed:
    """A thread that reads one stream in one task, and sends what it reads. `readings` has what it has read so far.

    Args:
        reader: turns chunks into rows.
        arrivals: what comes of the stream.
        sender: the name under which rows are sent.
        send: sends rows of a sender.
        end: tells that a sender has ended, or only the history of its stream.
        fail: is told the error that ends the thread.

    """

    def __init__(
        self,
        reader: RowReader,
        arrivals: Arrivals,
        sender: str,
        send: Callable[[str, Iterable[PackedRow]], None],
        end: Callable[[str, int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._reader: Final = reader
        self.arrivals: Final = arrivals
        self._sender: Final = sender
        self._send: Final = send
        self._end: Final = end
        self._fail: Final = fail
        self.readings: list[Reading] = []
        self._thread: Final = threading.Thread(target=self._run, name=f"feed {sender}", daemon=True)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _run(self) -> None:
        in_history = True
        try:
            while True:
                if in_history and not self.arrivals.has_history:
                    in_history = False
                    self._end(self._sender, HISTORY)
                found = self.arrivals.next()
                if found is None:
                    break
                reading, chunks = found
                if chunks:
                    self.readings.append(reading)
                    self._send(self._sender, self._reader.rows(chunks, reading.now_ms))
            self._end(self._sender, 0)
        except BaseException as e:  # whatever it is, the task ends with it
            self._fail(e)


class RepeatedReadings:
    """The readings of an interval that is repeated."""

    has_history = True

    def __init__(self, log: ReplayableLog[Any], node: SourceNode, readings: Iterable[Reading]) -> None:
        self._log: Final = log
        self._node: Final = node
        self._readings: Final = iter(readings)

    def next(self) -> tuple[Reading, list[SourceChunk]] | None:
        """Read what was read."""
        reading = next(self._readings, None)
        if reading is None:
            return None
        return reading, list(self._log.read(reading.splits, self._node.record_type))

    def end(self) -> None:
        """Do nothing: the end is known."""
