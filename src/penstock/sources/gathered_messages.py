"""Gathered messages: messages of one partition as chunks of columns, in bulk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from penstock.base.garbage import no_cyclic_collection
from penstock.metrics.source_times import SourceTimes
from penstock.records.event_headers import EventHeaders
from penstock.records.message_metadata import Metadata
from penstock.records.small_columns import column_of
from penstock.sources.base import BadRecord, SourceChunk

__all__ = ["OFFSET", "GatheredMessages", "WantedParts", "gone_chunk", "missing_chunk"]

# A chunk is decoded and packed when it has this many records or bytes. Larger chunks make fatter blocks, and blocks are
# what each key group pays for.
_CHUNK_RECORDS: Final = 500_000
_CHUNK_BYTES: Final = 64 << 20
# A timestamp takes a call for each record, and metrics need only approximate times.
_TIMES_SAMPLED: Final = 8

# `map` calls a function of C five times as fast as a `methodcaller`.
OFFSET: Final[Any] = Message.offset
"""The offset of a message."""
_VALUE: Final = Message.value
_KEY: Final = Message.key
_TIMESTAMP: Final = Message.timestamp
_HEADERS: Final = Message.headers
_SECOND: Final = itemgetter(1)
_NO_HEADERS: Final[dict[str, bytes]] = {}


@dataclass(frozen=True)
class WantedParts:
    """The parts of messages that a reader takes besides values and offsets. Each part costs time per message."""

    keys: bool = False
    timestamps: bool = False
    headers: tuple[str, ...] = ()
    events: EventHeaders | None = None

    @classmethod
    def of(cls, metadata: Metadata, *, keys: bool, events: EventHeaders | None = None) -> WantedParts:
        """Return the parts that the metadata of a stream needs, and the keys if they are wanted anyway.

        With `events`, messages that are CloudEvents in the binary mode become such in JSON.
        """
        parts = [part for _, part in metadata]
        named = {part.header for part in parts if part.header} | set(events.headers if events else ())
        return cls(
            keys or any(part.kind == "key" for part in parts),
            any(part.kind == "timestamp" for part in parts),
            tuple(sorted(named)),
            events,
        )


class GatheredMessages:
    """The messages of a chunk, until it is large enough."""

    def __init__(self, partition: str, wanted: WantedParts) -> None:
        self._partition: Final = partition
        self._wanted: Final = wanted
        self._begin()

    def _begin(self) -> None:
        self._offsets: list[np.ndarray] = []
        self._values: list[pa.Array] = []
        self._count = 0
        self._keys: list[Any] = []
        self._timestamps: list[int] = []
        self._times: list[SourceTimes | None] = []
        self._headers: list[tuple[str, list[Any]]] = [(name, []) for name in self._wanted.headers]
        self._unread: list[int] = []
        self._size = 0

    def add(self, messages: list[Any]) -> Iterator[SourceChunk]:
        """Add messages, and yield the chunks that are large enough. Where they end does not depend on the additions."""
        wanted = self._wanted
        while messages:
            part = messages[: _CHUNK_RECORDS - self._count]
            values = column_of(list(map(_VALUE, part)), pa.binary())
            # The end of each value.
            ends = np.frombuffer(values.buffers()[1], np.int32, len(part), offset=4)
            if self._size + ends[-1] >= _CHUNK_BYTES:
                count = int(np.searchsorted(ends, _CHUNK_BYTES - self._size)) + 1
                part, values = part[:count], values[:count]
            messages = messages[len(part) :]
            self._size += int(ends[len(part) - 1])
            self._count += len(part)
            self._values.append(values)
            self._offsets.append(_offsets_of(part))
            self._times.append(_source_times_of(part))
            if wanted.keys:
                self._keys += map(_KEY, part)
            if wanted.timestamps:
                # Pairs that are kept would keep the garbage collector busy.
                self._timestamps += map(_SECOND, map(_TIMESTAMP, part))
            if wanted.headers:
                self._add_headers(part)
            if self._size >= _CHUNK_BYTES or self._count == _CHUNK_RECORDS:
                yield from self.rest()

    def _add_headers(self, messages: Sequence[Any]) -> None:
        columns = [(name, column.append) for name, column in self._headers]
        counted = self._headers[0][1]
        waiting = map(_HEADERS, messages)
        is_done = False
        # The client makes a list of pairs for each message, and collections would cost twice as much as these.
        with no_cyclic_collection():
            while not is_done:
                try:
                    for headers in waiting:
                        # The last header of a name counts.
                        found = dict(headers) if headers else _NO_HEADERS
                        for name, append in columns:
                            append(found.get(name))
                    is_done = True
                except (SystemError, UnicodeDecodeError):
                    # The client has no names that are not UTF-8, and goes on with the next message.
                    self._unread.append(len(counted))
                    for _, append in columns:
                        append(None)

    def rest(self) -> Iterator[SourceChunk]:
        """Yield the remaining messages as a chunk, if there are any."""
        if self._values:
            wanted = self._wanted
            values = self._values[0] if len(self._values) == 1 else pa.concat_arrays(self._values)
            headers = {name: pa.array(column, pa.binary()) for name, column in self._headers}
            chunk = SourceChunk(
                self._partition,
                pa.array(np.concatenate(self._offsets), pa.int64()),
                raw=values if wanted.events is None else wanted.events.structured(values, headers),
                keys=pa.array(self._keys, pa.binary()) if wanted.keys else None,
                timestamps=_timestamps_of(self._timestamps) if wanted.timestamps else None,
                headers=headers,
                times=SourceTimes.merged(self._times),
            )
            yield _without(chunk, self._unread) if self._unread else chunk
        self._begin()


def _without(chunk: SourceChunk, rows: Sequence[int]) -> SourceChunk:
    """Return a chunk with some of its messages as bad records, since their headers cannot be read."""
    raw = chunk.raw
    assert raw is not None
    reason = "The headers of the message cannot be read: the name of one is not UTF-8."
    bad = [
        BadRecord(reason, chunk.partition, chunk.offsets[row].as_py(), raw[row].as_py() or b"")
        for row in rows
    ]
    kept = np.ones(len(raw), bool)
    kept[rows] = False
    mask = pa.array(kept)
    return dataclasses.replace(
        chunk,
        offsets=chunk.offsets.filter(mask),
        raw=raw.filter(mask),
        keys=None if chunk.keys is None else chunk.keys.filter(mask),
        timestamps=None if chunk.timestamps is None else chunk.timestamps.filter(mask),
        headers={name: column.filter(mask) for name, column in chunk.headers.items()},
        bad=bad,
    )


def missing_chunk(name: str, topic: str, number: int, start: int, end: int) -> SourceChunk:
    """Return a chunk without records that reports a range of offsets of a partition as missing."""
    reason = (
        f"The offsets {start} to {end - 1} of partition {number} of the topic {topic!r} are missing (up to "
        f"{end - start} records): its brokers had deleted them before the job read them. The stream continues at {end}."
    )
    return _notice(name, reason, start)


def gone_chunk(name: str, topic: str, number: int, start: int, end: int) -> SourceChunk:
    """Return a chunk without records that ends a partition whose topic is gone. `end` is the last that was known."""
    known = f" At least the offsets up to {end - 1} are missing." if end > start else ""
    reason = (
        f"The topic {topic!r} was deleted. The job had read its partition {number} up to the offset {start}, and what "
        f"came after that, if anything did, is missing.{known} The stream continues without it."
    )
    return _notice(name, reason, start, ends=True)


def _notice(name: str, reason: str, offset: int, *, ends: bool = False) -> SourceChunk:
    bad = [BadRecord(reason, name, offset, b"")]
    return SourceChunk(name, pa.array([], pa.int64()), raw=pa.array([], pa.binary()), bad=bad, ends=ends)


def _offsets_of(messages: Sequence[Any]) -> np.ndarray:
    first, last = messages[0].offset(), messages[-1].offset()
    # Offsets have gaps where transactions or compaction have left some.
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return np.fromiter(map(OFFSET, messages), np.int64, len(messages))


def _source_times_of(messages: Sequence[Any]) -> SourceTimes | None:
    """Return the timestamps of messages, of many only a sample; None if they have none."""
    count = len(messages)
    places = range(count) if count <= _TIMES_SAMPLED else range(count - 1, -1, -(count // _TIMES_SAMPLED))
    times_ms = [messages[place].timestamp()[1] for place in places]
    if times_ms[0] < 0:
        return None
    return SourceTimes.at(times_ms[0], 1) if count == 1 else SourceTimes.of(times_ms, count)


def _timestamps_of(found: list[int]) -> pa.Array:
    """Return the times of messages; those of messages without one are negative."""
    times = np.array(found, np.int64)
    return pa.array(times, pa.int64(), mask=times < 0)
