"""Topic reader: reads ranges of offsets from the partitions of one Kafka topic, in bulk. Runs in workers.

A worker process keeps one consumer for each topic, so that the next micro-batch continues where the last one ended
without a new connection. The consumer joins no group and commits nothing: the checkpoint keeps the offsets.
"""

from __future__ import annotations

import bisect
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client
from penstock.errors import ExternalSystemError, RecordsLostError
from penstock.metrics.source_times import SourceTimes
from penstock.sources.base import SourceChunk, Split
from penstock.sources.topic_lag import PartitionLook, TopicLag, lag_of

__all__ = ["TopicReader", "partition_name", "topic_reader"]

# A chunk is decoded and packed when it has this many records or bytes. Larger chunks make fatter blocks, and blocks are
# what each key group pays for.
_CHUNK_RECORDS: Final = 500_000
_CHUNK_BYTES: Final = 64 << 20
_TAKEN_AT_ONCE: Final = 50_000
_POLL_S: Final = 0.1
_MAX_READERS: Final = 16
# Tasks of a partition move between workers. A worker that is this many records behind reads them faster than it seeks.
_MAX_SKIPPED: Final = 20_000
_MAX_AHEAD: Final = 200_000
_NO_END: Final = 1 << 63
# A timestamp takes a call for each record, and metrics need only about what they are.
_TIMES_SAMPLED: Final = 8

STALLED_AFTER_S: Final = 120.0
"""How long a range may yield nothing before the micro-batch fails, for example while brokers are away."""

_SETTINGS: Final[dict[str, Any]] = {
    # The client refuses to be without a group. It joins none, since partitions are assigned to it.
    "group.id": "penstock",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A range may end with records that no consumer sees: aborted ones, and the marks of transactions.
    "enable.partition.eof": True,
    # Records that were deleted before they were read are an error, not a gap.
    "auto.offset.reset": "error",
    # Bounds the memory for records that wait in the client. Beyond some MiB a longer queue reads no faster.
    "queued.max.messages.kbytes": 8 << 10,
    "queued.min.messages": 1_000_000,
    # A full queue is looked at again after this many milliseconds. The default, a second, stalls a short queue.
    "fetch.queue.backoff.ms": 5,
    # A seek waits until a request that waits for new records is answered.
    "fetch.wait.max.ms": 50,
    "fetch.max.bytes": 16 << 20,
    "max.partition.fetch.bytes": 4 << 20,
}
_VALUE: Final = methodcaller("value")
_KEY: Final = methodcaller("key")
_OFFSET: Final = methodcaller("offset")
_PARTITION: Final = methodcaller("partition")
_ERROR: Final = methodcaller("error")


def partition_name(number: int) -> str:
    """Name a partition as chunks do, so that names sort as numbers."""
    return f"{number:05d}"


class _Partition:
    """A partition that the consumer is assigned to, and the messages of it that wait to be returned.

    `at` is where the last range ended. All records before `received` were received. `end` is where the broker had
    nothing more when it said so last, `newest_ms` the newest time of what was taken, and `caught_up_ms` when all was.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.received = at
        self.end = -1
        self.newest_ms: int | None = None
        self.caught_up_ms: int | None = None
        self.messages: list[Any] = []

    def add(self, messages: list[Any]) -> None:
        """Add messages that follow the others."""
        self.received = max(self.received, messages[-1].offset() + 1)
        if messages[0].offset() < self.at:
            # Some were to be skipped before they came.
            messages = messages[bisect.bisect_left(messages, self.at, key=_OFFSET) :]
        self.messages += messages

    def skip(self, start: int) -> bool:
        """Begin at an offset, by leaving out a few messages; False when that is too far from where this one is."""
        if not self.at <= start <= self.at + _MAX_SKIPPED:
            return False
        self.take(start)
        self.at = start
        return True

    def take(self, end: int) -> list[Any]:
        """Take the messages before an offset."""
        messages = self.messages
        count = len(messages)
        if count and messages[-1].offset() >= end:
            count = bisect.bisect_left(messages, end, key=_OFFSET)
        taken, self.messages = messages[:count], messages[count:]
        return taken


class _Gathered:
    """What a chunk is made of, until it is large enough."""

    def __init__(self, partition: str, *, has_keys: bool) -> None:
        self._partition: Final = partition
        self._offsets: list[np.ndarray] = []
        self._values: list[Any] = []
        self._keys: list[Any] | None = [] if has_keys else None
        self._times: list[SourceTimes | None] = []
        self._size = 0

    def add(self, messages: list[Any]) -> Iterator[SourceChunk]:
        """Add messages, and yield the chunks that are large enough. Where they end does not depend on the additions."""
        while messages:
            part = messages[: _CHUNK_RECORDS - len(self._values)]
            values = list(map(_VALUE, part))
            sizes = np.cumsum([0 if value is None else len(value) for value in values])
            if self._size + sizes[-1] >= _CHUNK_BYTES:
                count = int(np.searchsorted(sizes, _CHUNK_BYTES - self._size)) + 1
                part, values = part[:count], values[:count]
            messages = messages[len(part) :]
            self._size += int(sizes[len(part) - 1])
            self._values += values
            self._offsets.append(_offsets_of(part))
            self._times.append(_times_of(part))
            if self._keys is not None:
                self._keys += map(_KEY, part)
            if self._size >= _CHUNK_BYTES or len(self._values) == _CHUNK_RECORDS:
                yield from self.rest()

    def rest(self) -> Iterator[SourceChunk]:
        """Yield what is left as a chunk, if anything is."""
        if self._values:
            keys = None if self._keys is None else pa.array(self._keys, pa.binary())
            offsets = pa.array(np.concatenate(self._offsets), pa.int64())
            values, times = pa.array(self._values, pa.binary()), SourceTimes.merged(self._times)
            yield SourceChunk(self._partition, offsets, raw=values, keys=keys, times=times)
        self._offsets, self._values, self._times, self._size = [], [], [], 0
        self._keys = None if self._keys is None else []


def _times_of(messages: Sequence[Any]) -> SourceTimes | None:
    """Return the timestamps of messages, of many only a sample; None if they have none."""
    count = len(messages)
    places = range(count) if count <= _TIMES_SAMPLED else range(count - 1, -1, -(count // _TIMES_SAMPLED))
    times_ms = [messages[place].timestamp()[1] for place in places]
    if times_ms[0] < 0:
        return None
    return SourceTimes.at(times_ms[0], 1) if count == 1 else SourceTimes.of(times_ms, count)


def _offsets_of(messages: Sequence[Any]) -> np.ndarray:
    first, last = messages[0].offset(), messages[-1].offset()
    # Offsets have gaps where transactions or compaction have left some.
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return np.fromiter(map(_OFFSET, messages), np.int64, len(messages))


class TopicReader:
    """Reads ranges of one topic. Use it in one thread."""

    def __init__(self, binding: KafkaBinding, settings: Mapping[str, Any], *, wants_keys: bool) -> None:
        self._binding: Final = binding
        self._wants_keys: Final = wants_keys
        self._errors: Final = LastError()
        self._consumer: Final = build_client(Consumer, binding, {**_SETTINGS, **settings}, self._errors)
        self._partitions: Final[dict[int, _Partition]] = {}

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[SourceChunk]:
        """Read the records of each range [start, end), by partition in ascending order.

        The chunks are the same each time. Raises RecordsLostError when the broker has deleted records of a range,
        ExternalSystemError when brokers do not answer.
        """
        self._seek({number: start for number, (start, _) in ranges.items()})
        open_ranges = {number: end for number, (_, end) in ranges.items()}
        try:
            for number in sorted(ranges):
                yield from self._chunks(number, open_ranges)
                self._partitions[number].at = open_ranges.pop(number)
        finally:
            # What is read in part, because the task fails or is killed, is read again from its start.
            self._unassign([number for number in open_ranges if number in self._partitions])

    def follow(self, starts: Mapping[int, int]) -> None:
        """Begin to take records of partitions as they come, each from an offset."""
        self._unassign([number for number in self._partitions if number not in starts])
        self._seek(starts)

    def take(self, timeout_s: float) -> list[tuple[Split, SourceChunk]]:
        """Return the records that have come of the partitions that are followed, with the range that they are of.

        Waits for the first one for some time. Raises what `read` raises.
        """
        messages = self._consumer.consume(_TAKEN_AT_ONCE, 0)
        if not messages:
            one = self._consumer.poll(timeout_s)
            messages = [] if one is None else [one, *self._consumer.consume(_TAKEN_AT_ONCE, 0)]
        self._sort(messages)
        now_ms = time.time_ns() // 1_000_000
        found: list[tuple[Split, SourceChunk]] = []
        for number, waiting in sorted(self._partitions.items()):
            start, taken = waiting.at, waiting.take(_NO_END)
            if taken:
                waiting.at = taken[-1].offset() + 1
                gathered = _Gathered(partition_name(number), has_keys=self._wants_keys)
                chunks = [*gathered.add(taken), *gathered.rest()]
                ends = [chunk.offsets[-1].as_py() + 1 for chunk in chunks]
                for chunk, end in zip(chunks, ends, strict=True):
                    found.append((Split(partition_name(number), "", start, end), chunk))
                    start = end
                times = chunks[-1].times
                waiting.newest_ms = None if times is None else times.times_ms[-1]
            if waiting.end >= waiting.at:
                waiting.caught_up_ms = now_ms
        return found

    def lag(self) -> TopicLag:
        """Return what waits in the partitions that are followed. Any thread may ask."""
        looks = []
        for number, one in list(self._partitions.items()):
            place = TopicPartition(self._binding.topic, number)
            _, broker_end = self._consumer.get_watermark_offsets(place, cached=True)
            looks.append(PartitionLook(one.at, one.end, broker_end, one.caught_up_ms, one.newest_ms))
        return lag_of(looks, time.time_ns() // 1_000_000)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition that is followed."""
        return {number: one.at for number, one in self._partitions.items()}

    @property
    def known_ends(self) -> dict[int, int]:
        """The next offset of each partition, beyond the marks that the client has passed since the last record."""
        return {number: max(one.at, one.received) for number, one in self._partitions.items()}

    def _seek(self, starts: Mapping[int, int]) -> None:
        """Let each partition begin at an offset. What the client has read ahead is kept where it continues there."""
        known = self._partitions
        moved = [
            number for number, start in starts.items() if number in known and not known[number].skip(start)
        ]
        self._unassign(moved)
        new = {number: start for number, start in starts.items() if number not in known}
        if new:
            self._consumer.incremental_assign(
                [TopicPartition(self._binding.topic, number, start) for number, start in new.items()]
            )
            known.update({number: _Partition(start) for number, start in new.items()})

    def _unassign(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        places = [TopicPartition(self._binding.topic, number) for number in numbers]
        self._consumer.incremental_unassign(places)
        for number in numbers:
            del self._partitions[number]

    def _chunks(self, number: int, open_ranges: Mapping[int, int]) -> Iterator[SourceChunk]:
        one, end = self._partitions[number], open_ranges[number]
        gathered = _Gathered(partition_name(number), has_keys=self._wants_keys)
        while True:
            is_complete = one.received >= end
            yield from gathered.add(one.take(end))
            if is_complete:
                break
            self._receive(open_ranges)
        yield from gathered.rest()

    def _receive(self, open_ranges: Mapping[int, int]) -> None:
        """Wait for messages, and sort them by partition."""
        deadline_s = time.monotonic() + STALLED_AFTER_S
        wanted = sum(max(0, end - self._partitions[number].received) for number, end in open_ranges.items())
        messages = self._consumer.consume(min(wanted, _TAKEN_AT_ONCE), 0)
        while not messages:
            # Consuming several messages waits until all of them are there.
            one = self._consumer.poll(_POLL_S)
            messages = [] if one is None else [one]
            if not messages and time.monotonic() > deadline_s:
                raise self._stalled()
        self._sort(messages)
        self._drop_surplus(open_ranges)

    def _sort(self, messages: list[Any]) -> None:
        """Sort messages by partition."""
        if any(map(_ERROR, messages)):
            messages = [message for message in messages if not self._is_error(message)]
        numbers = set(map(_PARTITION, messages))
        runs: Iterable[tuple[int, Iterable[Any]]] = itertools.groupby(messages, _PARTITION)
        if len(numbers) == 1:
            runs = [(numbers.pop(), messages)]
        for number, run in runs:
            self._partitions[number].add(list(run))

    def _is_error(self, message: Any) -> bool:
        """Whether a message is an event, not a record. Raises what the event says."""
        error = message.error()
        if error is None:
            return False
        number, offset = message.partition(), message.offset()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own codes begin with it
            if number in self._partitions:
                one = self._partitions[number]
                one.received = max(one.received, offset)
                one.end = offset
            return True
        binding = self._binding
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise RecordsLostError(
                f"Stream {binding.stream!r}: the topic {binding.topic!r} on {binding.servers} has deleted records of "
                f"partition {number} that the job has not read yet ({error.str()})."
            )
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the broker {binding.servers} does not give the records of the topic "
            f"{binding.topic!r}, partition {number} ({error.str()})."
        )

    def _drop_surplus(self, open_ranges: Mapping[int, int]) -> None:
        """Leave partitions that are far ahead of what is wanted of them, which would only fill the memory."""
        ahead = [
            number
            for number, one in self._partitions.items()
            if number not in open_ranges and len(one.messages) > _MAX_AHEAD
        ]
        self._unassign(ahead)

    def _stalled(self) -> ExternalSystemError:
        binding = self._binding
        reason = f" ({self._errors.text})" if self._errors.text else ""
        return ExternalSystemError(
            f"Stream {binding.stream!r}: the brokers {binding.servers} have given no record of the topic "
            f"{binding.topic!r} for {STALLED_AFTER_S:g} s, although there are some{reason}. Start the job again when "
            "they answer."
        )

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


_readers: OrderedDict[Any, TopicReader] = OrderedDict()


def topic_reader(binding: KafkaBinding, settings: Mapping[str, Any], *, wants_keys: bool) -> TopicReader:
    """Return this process's reader of a topic; the reader that was used least recently makes room for a new one."""
    key = (
        os.getpid(),
        binding.stream,
        binding.servers,
        binding.topic,
        tuple(sorted(settings.items())),
        wants_keys,
    )
    reader = _readers.get(key)
    if reader is None:
        reader = _readers[key] = TopicReader(binding, settings, wants_keys=wants_keys)
        if len(_readers) > _MAX_READERS:
            _readers.popitem(last=False)[1].close()
    _readers.move_to_end(key)
    return reader
