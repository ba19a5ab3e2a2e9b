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

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client
from penstock.errors import ExternalSystemError, RecordsLostError
from penstock.sources.base import MISSING, SourceChunk, Split
from penstock.sources.gathered_messages import (
    OFFSET,
    GatheredMessages,
    WantedParts,
    missing_chunk,
    partition_name,
)
from penstock.sources.topic_lag import PartitionLook, TopicLag, lag_of

__all__ = ["TopicReader", "topic_reader"]

_TAKEN_AT_ONCE: Final = 50_000
_POLL_S: Final = 0.1
_ANSWER_TIMEOUT_S: Final = 10.0
_MAX_READERS: Final = 16
# Tasks of a partition move between workers. A worker that is this many records behind reads them faster than it seeks.
_MAX_SKIPPED: Final = 20_000
_MAX_AHEAD: Final = 200_000
_NO_END: Final = 1 << 63

STALLED_AFTER_S: Final = 120.0
"""How long a range may yield nothing before the micro-batch fails, for example while brokers are away."""

_SETTINGS: Final[dict[str, Any]] = {
    # The client refuses to be without a group. It joins none, since partitions are assigned to it.
    "group.id": "penstock",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "socket.nagle.disable": True,
    # A range may end with records that no consumer sees: aborted ones, and the marks of transactions.
    "enable.partition.eof": True,
    # Records that were deleted before they were read are an error, not a gap.
    "auto.offset.reset": "error",
    # Bounds the memory for records that wait in the client. Beyond some MiB a longer queue reads no faster.
    "queued.max.messages.kbytes": 8 << 10,
    "queued.min.messages": 50_000,
    # A full queue is looked at again after this many milliseconds. The default, a second, stalls a short queue.
    "fetch.queue.backoff.ms": 5,
    # A seek waits until a request that waits for new records is answered.
    "fetch.wait.max.ms": 50,
    "fetch.max.bytes": 4 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}
_PARTITION: Final = methodcaller("partition")
_ERROR: Final = methodcaller("error")


class _Partition:
    """A partition that the consumer is assigned to, and the messages of it that wait to be returned.

    `at` is where the last range ended. All records before `received` were received, except those in `lost`, ranges of
    offsets that the broker had deleted. `end` is where the broker had nothing more when it said so last, `newest_ms`
    the newest time of what was taken, and `caught_up_ms` when all was.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.received = at
        self.end = -1
        self.newest_ms: int | None = None
        self.caught_up_ms: int | None = None
        self.messages: list[Any] = []
        self.lost: list[tuple[int, int]] = []

    def add(self, messages: list[Any]) -> None:
        """Add messages that follow the others."""
        self.received = max(self.received, messages[-1].offset() + 1)
        if messages[0].offset() < self.at:
            # Some were to be skipped before they came.
            messages = messages[bisect.bisect_left(messages, self.at, key=OFFSET) :]
        self.messages += messages

    def skip(self, start: int) -> bool:
        """Begin at an offset, by leaving out a few messages; False when that is too far from where this one is."""
        if not self.at <= start <= self.at + _MAX_SKIPPED:
            return False
        self.take(start)
        self.take_lost(start)
        self.at = start
        return True

    def lose(self, first: int) -> None:
        """Note that what is not received before an offset was deleted."""
        self.lost.append((self.received, first))
        self.received = first

    def take_lost(self, end: int) -> list[tuple[int, int]]:
        """Take the ranges before an offset that were deleted."""
        taken = [(first, min(last, end)) for first, last in self.lost if first < end]
        self.lost = [(max(first, end), last) for first, last in self.lost if last > end]
        return taken

    def take(self, end: int) -> list[Any]:
        """Take the messages before an offset."""
        messages = self.messages
        count = len(messages)
        if count and messages[-1].offset() >= end:
            count = bisect.bisect_left(messages, end, key=OFFSET)
        taken, self.messages = messages[:count], messages[count:]
        return taken


class TopicReader:
    """Reads ranges of one topic. Use it in one thread."""

    def __init__(self, binding: KafkaBinding, settings: Mapping[str, Any], wanted: WantedParts) -> None:
        self._binding: Final = binding
        self._wanted: Final = wanted
        self._errors: Final = LastError()
        self._consumer: Final = build_client(Consumer, binding, {**_SETTINGS, **settings}, self._errors)
        self._partitions: Final[dict[int, _Partition]] = {}
        self._out_of_range: Final[set[int]] = set()

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[SourceChunk]:
        """Read the records of each range [start, end), by partition in ascending order.

        The chunks are the same each time. When the broker has deleted records of a range, raises RecordsLostError, or
        reports them in a chunk if the binding says so. Raises ExternalSystemError when brokers do not answer.
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

    def take(self, timeout_s: float, most: int = _TAKEN_AT_ONCE) -> list[tuple[Split, SourceChunk]]:
        """Return the records that have come of the partitions that are followed, with the range that they are of.

        Waits for the first one for some time, and returns about `most` of them. Raises what `read` raises.
        """
        messages = self._consumer.consume(most, 0)
        if not messages:
            one = self._consumer.poll(timeout_s)
            messages = [] if one is None else [one, *self._consumer.consume(most, 0)]
        self._sort(messages)
        now_ms = time.time_ns() // 1_000_000
        found: list[tuple[Split, SourceChunk]] = []
        for number, waiting in sorted(self._partitions.items()):
            start, taken = waiting.at, waiting.take(_NO_END)
            if taken:
                waiting.at = taken[-1].offset() + 1
                gathered = GatheredMessages(partition_name(number), self._wanted)
                chunks = [*gathered.add(taken), *gathered.rest()]
                ends = [chunk.offsets[-1].as_py() + 1 for chunk in chunks]
                for chunk, end in zip(chunks, ends, strict=True):
                    found.append((Split(partition_name(number), "", start, end), chunk))
                    start = end
                times = chunks[-1].times
                waiting.newest_ms = None if times is None else times.times_ms[-1]
            for first, last in waiting.take_lost(_NO_END):
                waiting.at = last
                lost = Split(partition_name(number), MISSING, first, last)
                found.append((lost, missing_chunk(self._binding.topic, number, first, last)))
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
        gathered = GatheredMessages(partition_name(number), self._wanted)
        while True:
            is_complete = one.received >= end
            yield from gathered.add(one.take(end))
            for lost in one.take_lost(end):
                yield missing_chunk(self._binding.topic, number, *lost)
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
        while self._out_of_range:
            self._pass_over(self._out_of_range.pop())

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
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            # The records before it may be among the messages that came with it.
            self._out_of_range.add(number)
            return True
        raise self._refused(number, error.str())

    def _pass_over(self, number: int) -> None:
        """Go on at the first record that is there. Raises RecordsLostError unless the binding says to do so."""
        binding, one = self._binding, self._partitions.get(number)
        if one is None:
            return
        place = TopicPartition(binding.topic, number)
        try:
            first, end = self._consumer.get_watermark_offsets(place, _ANSWER_TIMEOUT_S)
        except KafkaException as e:
            raise self._refused(number, e.args[0].str()) from e
        if first <= one.received:
            raise self._refused(number, f"it has no record at offset {one.received}, and ends at {end}")
        if binding.missing != "skip":
            raise RecordsLostError(_lost_text(binding, number, one.received, first))
        one.lose(first)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([TopicPartition(binding.topic, number, first)])

    def _refused(self, number: int, reason: str) -> ExternalSystemError:
        binding = self._binding
        return ExternalSystemError(
            f"Stream {binding.stream!r}: the broker {binding.servers} does not give the records of the topic "
            f"{binding.topic!r}, partition {number} ({reason})."
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


def _lost_text(binding: KafkaBinding, number: int, start: int, first: int) -> str:
    return (
        f"Stream {binding.stream!r}: the topic {binding.topic!r} on {binding.servers} has deleted records of partition "
        f"{number} that the job has not read yet: the offsets {start} to {first - 1}. To go on at {first}, with a dead "
        "letter that counts them, add missing=skip to the URI and start the job again. To read everything that is left "
        "anew, take a savepoint of the checkpoint (penstock savepoint), and start the job from it with a new "
        "checkpoint, --from-savepoint and --no-positions."
    )


_readers: OrderedDict[Any, TopicReader] = OrderedDict()


def topic_reader(binding: KafkaBinding, settings: Mapping[str, Any], wanted: WantedParts) -> TopicReader:
    """Return this process's reader of a topic; the reader that was used least recently makes room for a new one."""
    key = (
        os.getpid(),
        binding.stream,
        binding.servers,
        binding.topic,
        binding.missing,
        tuple(sorted(settings.items())),
        wanted,
    )
    reader = _readers.get(key)
    if reader is None:
        reader = _readers[key] = TopicReader(binding, settings, wanted)
        if len(_readers) > _MAX_READERS:
            _readers.popitem(last=False)[1].close()
    _readers.move_to_end(key)
    return reader
