"""Feeds: threads of an engine that read records as they arrive, decode them, and send them to the slots."""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from penstock.machine.limits import Cores
from penstock.metrics.source_times import SourceTimes
from penstock.realtime.intake import Intake
from penstock.realtime.messages import HISTORY, Reading
from penstock.runtime.packed_rows import PackedRow
from penstock.sources.base import GONE, ReplayableLog, SourceChunk, Split
from penstock.sources.chunk_times import times_of
from penstock.sources.kafka_log import KafkaLog, Offsets
from penstock.sources.topic_lag import TopicLag
from penstock.sources.topic_reader import TopicReader
from penstock.streams.graph import SourceNode

__all__ = [
    "Arrival",
    "Arrivals",
    "EndOfInterval",
    "Feed",
    "FeedLinks",
    "FollowedTopics",
    "PushedRanges",
    "RepeatedReadings",
    "RowReader",
    "pause_of",
]

# How long a feed waits for records before it checks whether to end.
_POLL_S: Final = 0.25
_ASSUMED_RECORD_BYTES: Final = 1000.0
_LEAST_AT_ONCE: Final = 100
_MOST_AT_ONCE: Final = 50_000
# How long after an answer a reader asks the brokers for more. It takes each answer at once, and works on it meanwhile.
_PAUSE_MS: Final = 4
_SHORT_PAUSE_MS: Final = 2
# A short pause takes more of the processor, of the brokers' as well: with fewer cores for a slot, records wait longer.
_CORES_FOR_SHORT: Final = 2


class RowReader(Protocol):
    """Turns the chunks of a stream into packed rows."""

    def rows(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[PackedRow]:
        """Yield the rows of chunks that were read at a time."""


class Arrival(NamedTuple):
    """The chunks of a stream that have arrived, perhaps none. With `ends`, an interval ends here."""

    reading: Reading
    chunks: list[SourceChunk]
    ends: bool = False


class Arrivals(Protocol):
    """The records of a stream that arrive while a job runs."""

    @property
    def has_history(self) -> bool:
        """Whether records that were there at the start are still unread."""

    @property
    def positions(self) -> Offsets | None:
        """The position after the chunks that `next` has returned, unless the coordinator knows it."""

    def next(self) -> Arrival | None:
        """Wait for a while, and return what has arrived. None is the end of the last interval."""

    def end(self) -> None:
        """Return None from `next` as soon as everything that belongs to the interval was returned."""


def pause_of(slots: int, usable: Cores) -> int:
    """Return how long a reader of one of so many slots pauses after each answer, in ms, on cores that they share."""
    return _SHORT_PAUSE_MS if usable.at_once >= _CORES_FOR_SHORT * slots else _PAUSE_MS


class FollowedTopics:
    """The partitions of topics that an engine follows.

    `history` has their ends at the start, if data waits for these records; `until` has the offsets at which to stop, if
    any. `gone` has the partitions of deleted topics, with their unread offsets: they end with a chunk that says so. No
    more records are taken at once than the intake of the slot suggests. `pause_ms` is how long after an answer the
    brokers are asked for more.
    """

    def __init__(
        self,
        log: KafkaLog,
        starts: Offsets,
        history: Offsets | None,
        until: Offsets | None,
        intake: Intake,
        gone: Mapping[str, tuple[int, int]] | None = None,
        pause_ms: int = _PAUSE_MS,
    ) -> None:
        self._log: Final = log
        self._pause_ms: Final = pause_ms
        self._starts: Final = starts
        self._gone = dict(gone or {})
        self._history: Final = history or {}
        self._until: Final = until
        self._intake: Final = intake
        self._record_bytes = _ASSUMED_RECORD_BYTES
        self._ends: Final = threading.Event()
        self._reader: TopicReader | None = None
        self.positions: Offsets | None = {**starts, **{name: at for name, (at, _) in self._gone.items()}}
        # The same offsets, past the marks of transactions, which no reader sees.
        self._read_to: dict[str, int] = dict(starts)

    @property
    def has_history(self) -> bool:
        """Whether records that were there at the start are still unread."""
        return self._is_before(self._history)

    def _is_before(self, ends: Offsets) -> bool:
        return any(self._read_to.get(name, 0) < end for name, end in ends.items())

    def next(self) -> Arrival | None:
        """Wait for a while, and return the records that have arrived."""
        if self._gone:
            return self._report_gone()
        if self._ends.is_set() or (self._until is not None and not self._is_before(self._until)):
            return None
        if not self._starts:
            self._ends.wait()
            return None
        reader = self._reader
        if reader is None:
            reader = self._log.follower(self._pause_ms)
            reader.follow(self._starts)
            self._reader = reader
        found = reader.take(_POLL_S, self._most_at_once())
        self._see([chunk for _, chunk in found])
        self.positions, self._read_to = reader.positions, reader.known_ends
        return Arrival(Reading.of(split for split, _ in found), [chunk for _, chunk in found])

    def _report_gone(self) -> Arrival:
        """End the partitions of deleted topics."""
        splits = [Split(name, GONE, *offsets) for name, offsets in sorted(self._gone.items())]
        self._gone = {}
        self.positions = dict(self._starts)
        return Arrival(Reading.of(splits), [self._log.notice(split) for split in splits])

    def _most_at_once(self) -> int:
        """Return how many records to take at once: about half of what may wait for the slot."""
        return min(
            max(_LEAST_AT_ONCE, int(self._intake.waiting_bytes / 2 / self._record_bytes)), _MOST_AT_ONCE
        )

    def _see(self, chunks: Iterable[SourceChunk]) -> None:
        """Learn the size of records. Small chunks are ignored: they say little, and nothing waits."""
        sizes = [
            (chunk.raw.nbytes, len(chunk.raw))
            for chunk in chunks
            if chunk.raw is not None and len(chunk.raw) >= _LEAST_AT_ONCE
        ]
        count = sum(number for _, number in sizes)
        if count:
            self._record_bytes = max(1.0, sum(size for size, _ in sizes) / count)

    def lag(self) -> TopicLag | None:
        """Return how many records wait in the partitions, for metrics; None before the first look."""
        return None if self._reader is None else self._reader.lag()

    def end(self) -> None:
        """Stop reading; an interval that drains stops at its ends instead."""
        if self._until is None:
            self._ends.set()


class PushedRanges:
    """The ranges of a log that the coordinator gives an engine to read."""

    positions = None

    def __init__(self, log: ReplayableLog[Any], node: SourceNode) -> None:
        self._log: Final = log
        self._node: Final = node
        self._ranges: Final[queue.SimpleQueue[Reading | _Mark]] = queue.SimpleQueue()
        self.has_history = True

    def push(self, reading: Reading | None) -> None:
        """Add a range; None is the end of the history."""
        self._ranges.put(_Mark.HISTORY if reading is None else reading)

    def cut(self) -> None:
        """End an interval after the ranges that were pushed."""
        self._ranges.put(_Mark.CUT)

    def next(self) -> Arrival | None:
        """Wait for a range, and read it."""
        found = self._ranges.get()
        if isinstance(found, Reading):
            return Arrival(found, list(self._log.read(found.splits, self._node.record_type)))
        if found is _Mark.END:
            return None
        if found is _Mark.HISTORY:
            self.has_history = False
        return Arrival(Reading(0, []), [], ends=found is _Mark.CUT)

    def end(self) -> None:
        """Let `next` return None after the ranges that were pushed."""
        self._ranges.put(_Mark.END)


class _Mark(enum.Enum):
    HISTORY = enum.auto()
    CUT = enum.auto()
    END = enum.auto()


class EndOfInterval:
    """The end of an interval in all feeds of an engine.

    No feed sends rows of the next interval before all have ended this one: the feeds share the connections to other
    engines, where rows of the next interval may have to wait for the end of the other feeds.
    """

    def __init__(self, feeds: int, interval: int) -> None:
        self._feeds: Final = feeds
        self._changed: Final = threading.Condition()
        self._interval = interval
        self._ended = 0
        self._is_closed = False

    def reach(self) -> None:
        """Note that one more feed has ended its interval."""
        with self._changed:
            self._ended += 1
            if self._ended == self._feeds:
                self._interval, self._ended = self._interval + 1, 0
                self._changed.notify_all()

    def await_all(self, interval: int) -> None:
        """Wait until all feeds have ended the interval before this one."""
        with self._changed:
            self._changed.wait_for(lambda: self._interval >= interval or self._is_closed)

    def close(self) -> None:
        """Release all threads that wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class FeedLinks:
    """The links of the feeds of an engine to its slots and to each other.

    Attributes:
        send: sends rows of a sender in an interval.
        run: runs a round for the rows that were sent to the slot of the engine, or lets another thread do so.
        end: tells that a sender has ended an interval, or only the history of its stream.
        fail: called with the error that ends the thread of a feed.
        together: the end of the interval in all feeds.

    """

    send: Callable[[str, int, Iterable[PackedRow], SourceTimes | None], None]
    run: Callable[[], None]
    end: Callable[[str, int, int], None]
    fail: Callable[[BaseException], None]
    together: EndOfInterval


class Feed:
    """A thread that reads one stream in one engine, and sends what it reads.

    `taken` has its readings in the interval that ended last, and its positions at that end. `lag` is the lag of a topic
    at that end, and `work_s` the processor time that reading has taken so far.

    Args:
        reader: turns chunks into rows.
        arrivals: the records of the stream that have arrived.
        sender: the name under which rows are sent.
        links: those of all feeds of the engine.
        interval: the first interval.

    """

    def __init__(
        self,
        reader: RowReader,
        arrivals: Arrivals,
        sender: str,
        links: FeedLinks,
        interval: int,
    ) -> None:
        self._reader: Final = reader
        self.arrivals: Final = arrivals
        self._sender: Final = sender
        self._links: Final = links
        self._interval = interval
        self._readings: list[Reading] = []
        self._positions = arrivals.positions
        self.taken: tuple[list[Reading], Offsets | None] = ([], None)
        self.lag: TopicLag | None = None
        self.work_s = 0.0
        self._rounds_s = 0.0
        # Another thread cuts a topic, since this one may be waiting for records.
        self._lock: Final = threading.Lock()
        self._thread: Final = threading.Thread(target=self._run, name=f"feed {sender}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def cut(self) -> None:
        """End the interval: later reads belong to the next one."""
        if isinstance(self.arrivals, PushedRanges):
            self.arrivals.cut()
        else:
            self._cut()

    def _cut(self) -> None:
        with self._lock:
            self.taken = (self._readings, self._positions)
            self.lag = self.arrivals.lag() if isinstance(self.arrivals, FollowedTopics) else None
            self._readings = []
            self._links.end(self._sender, self._interval, 0)
            self._interval += 1
            self._links.together.reach()

    def _run(self) -> None:
        in_history = True
        try:
            while True:
                if in_history and not self.arrivals.has_history:
                    in_history = False
                    self._links.end(self._sender, self._interval, HISTORY)
                found = self.arrivals.next()
                if found is None:
                    break
                if found.ends:
                    self._cut()
                else:
                    self._take(found)
            self._cut()
        except BaseException as e:  # whatever it is, the engine ends with it
            self._links.fail(e)

    def _take(self, arrival: Arrival) -> None:
        reading, chunks, _ = arrival
        with self._lock:
            self._positions = self.arrivals.positions
            if chunks:
                self._links.together.await_all(self._interval)
                self._readings.append(reading)
                rows = self._reader.rows(chunks, reading.now_ms)
                self._links.send(self._sender, self._interval, rows, times_of(chunks, reading.now_ms))
        begun_s = time.thread_time()
        self.work_s = begun_s - self._rounds_s
        if chunks:
            # Not under the lock: a round may take long, and the stream can be cut meanwhile.
            self._links.run()
            self._rounds_s += time.thread_time() - begun_s


class RepeatedReadings:
    """The readings of an interval that is repeated."""

    has_history = True
    positions = None

    def __init__(self, log: ReplayableLog[Any], node: SourceNode, readings: Iterable[Reading]) -> None:
        self._log: Final = log
        self._node: Final = node
        self._readings: Final = iter(readings)

    def next(self) -> Arrival | None:
        """Read the same records again."""
        reading = next(self._readings, None)
        if reading is None:
            return None
        return Arrival(reading, list(self._log.read(reading.splits, self._node.record_type)))

    def end(self) -> None:
        """Do nothing: the end is known."""
