"""Topic reader: reads ranges of offsets from the partitions of Kafka topics, in bulk. Runs in workers.

A worker process keeps one consumer for each stream, so that the next micro-batch continues where the last one ended
without a new connection. The consumer joins no group and commits nothing: the checkpoint keeps the offsets.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.base.garbage import no_cyclic_collection
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client
from penstock.errors import ExternalSystemError, RecordsLostError
from penstock.sources.assigned_partition import MAX_SKIPPED, AssignedPartition
from penstock.sources.base import MISSING, SourceChunk, Split
from penstock.sources.gathered_messages import GatheredMessages, WantedParts, missing_chunk
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_lag import PartitionLook, TopicLag, lag_of

__all__ = ["TopicReader", "following", "topic_reader"]

_MOST_TAKEN: Final = 50_000
# So many messages stay in a processor's cache until they are columns, and the next ones use their memory.
_CONSUMED_AT_ONCE: Final = 8_000
_POLL_S: Final = 0.1
_ANSWER_TIMEOUT_S: Final = 10.0
_MAX_READERS: Final = 16
_MAX_AHEAD: Final = 200_000
# How often a reader that follows partitions looks up their ends, for metrics.
_LOOK_EVERY_MS: Final = 250
_NO_END: Final = 1 << 63

STALLED_AFTER_S: Final = 120.0
"""How many seconds a range may yield nothing before the micro-batch fails, for example while brokers do not answer."""

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
    "queued.min.messages": 100_000,
    # A full queue is looked at again after this many milliseconds. The default, a second, stalls a short queue.
    "fetch.queue.backoff.ms": 5,
    # A seek waits until a request that waits for new records is answered.
    "fetch.wait.max.ms": 50,
    "fetch.max.bytes": 8 << 20,
    "max.partition.fetch.bytes": 2 << 20,
}
# Called for each message, by `map`, which calls a function of C five times as fast as a `methodcaller`.
_PARTITION: Final[Any] = Message.partition
_TOPIC: Final[Any] = Message.topic
_NO_TOPIC: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # librdkafka's own codes begin with it
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # librdkafka's own codes begin so
)
_ERROR: Final[Any] = Message.error


def following(pause_ms: int) -> dict[str, Any]:
    """Return settings of a reader that follows partitions.

    It does not seek, and less often asks again for what has not come. While records come, it asks for more a pause
    after the last answer, once that is taken. Else the brokers answer for each few records, which costs them, and the
    reader, as much as for many.
    """
    return {"fetch.wait.max.ms": 100, "queued.min.messages": 1, "fetch.queue.backoff.ms": pause_ms}


class TopicReader:
    """Reads ranges of the topics of one stream. Use it in one thread."""

    def __init__(
        self, binding: KafkaBinding, settings: Mapping[str, Any], wanted: WantedParts, names: PartitionNames
    ) -> None:
        self._binding: Final = binding
        self._wanted: Final = wanted
        self._names: Final = names
        self._errors: Final = LastError()
        self._consumer: Final = build_client(Consumer, binding, {**_SETTINGS, **settings}, self._errors)
        self._partitions: Final[dict[str, AssignedPartition]] = {}
        self._looked_ms = 0
        self._out_of_range: Final[set[str]] = set()
        self._gone: Final[set[str]] = set()

    def read(self, ranges: Mapping[str, tuple[int, int]]) -> Iterator[SourceChunk]:
        """Read the records of each range [start, end), by partition in ascending order.

        The chunks are the same each time. When the broker has deleted records of a range, raises RecordsLostError, or
        reports them in a chunk if the binding says so, also when a topic of its pattern is gone. Raises
        ExternalSystemError when brokers do not answer.
        """
        if any(end - start > MAX_SKIPPED for start, end in ranges.values()):
            # The next ranges of the others will be as large, and too far away to skip there.
            self._leave_others(ranges)
        self._seek({name: start for name, (start, _) in ranges.items()})
        open_ranges = {name: end for name, (_, end) in ranges.items()}
        try:
            for name in sorted(ranges):
                yield from self._chunks(name, open_ranges)
                self._partitions[name].at = open_ranges.pop(name)
        finally:
            # A range that is read in part, because the task fails or is killed, is read again from its start.
            self._unassign([name for name in open_ranges if name in self._partitions])

    def follow(self, starts: Mapping[str, int]) -> None:
        """Begin to follow partitions, each from an offset."""
        self._leave_others(starts)
        self._seek(starts)

    def take(self, timeout_s: float, most: int = _MOST_TAKEN) -> list[tuple[Split, SourceChunk]]:
        """Return the records that have arrived from the followed partitions, with their range.

        Waits for the first one for some time, and returns about `most` of them. Raises what `read` raises.
        """
        starts = self.positions
        taken = self._take_chunks(timeout_s, most)
        now_ms = time.time_ns() // 1_000_000
        found: list[tuple[Split, SourceChunk]] = []
        for name, waiting in sorted(self._partitions.items()):
            start = starts[name]
            for chunk in taken.get(name, ()):
                end = _end_of(chunk)
                found.append((Split(name, "", start, end), chunk))
                start = end
                waiting.newest_ms = None if chunk.times is None else chunk.times.times_ms[-1]
            for first, last in waiting.take_lost(_NO_END):
                waiting.at = last
                lost = Split(name, MISSING, first, last)
                found.append((lost, missing_chunk(name, *self._names.place(name), first, last)))
            if waiting.end >= waiting.at:
                waiting.caught_up_ms = now_ms
        self._look(now_ms)
        return found

    def _take_chunks(self, timeout_s: float, most: int) -> dict[str, list[SourceChunk]]:
        """Return about `most` records that have arrived, by partition, up to the first that were deleted."""
        gathered: dict[str, GatheredMessages] = {}
        chunks: dict[str, list[SourceChunk]] = {}
        # The cyclic collector is only off while there are messages, not while the thread waits.
        with no_cyclic_collection():
            count = self._gather([], most, gathered, chunks)
        if not count:
            one = self._poll(timeout_s)
            if one is not None:
                with no_cyclic_collection():
                    self._gather([one], most, gathered, chunks)
        for name, kept in gathered.items():
            chunks[name].extend(kept.rest())
        return chunks

    def _gather(
        self,
        messages: list[Any],
        most: int,
        gathered: dict[str, GatheredMessages],
        chunks: dict[str, list[SourceChunk]],
    ) -> int:
        """Gather messages, and about `most` more that have arrived, by partition; return how many came."""
        count = 0
        while True:
            asked = min(most - count, _CONSUMED_AT_ONCE)
            messages += self._consume(asked)
            count += len(messages)
            is_last = len(messages) < asked or count >= most
            self._sort(messages)
            for name, waiting in self._partitions.items():
                if waiting.messages:
                    taken = waiting.take(_NO_END)
                    waiting.at = taken[-1].offset() + 1
                    if name not in gathered:
                        gathered[name], chunks[name] = GatheredMessages(name, self._wanted), []
                    chunks[name].extend(gathered[name].add(taken))
            if is_last or any(waiting.lost for waiting in self._partitions.values()):
                return count
            messages = []

    def _look(self, now_ms: int) -> None:
        """Look up where the partitions end, for metrics."""
        is_due = now_ms >= self._looked_ms + _LOOK_EVERY_MS
        if is_due:
            self._looked_ms = now_ms
        for name, one in self._partitions.items():
            if is_due or one.broker_end < one.at:
                _, one.broker_end = self._consumer.get_watermark_offsets(self._place(name), cached=True)

    def lag(self) -> TopicLag:
        """Return the lag of the followed partitions, as of the last look. Any thread may ask.

        It does not ask the client, which would let it wait until a `take` in another thread has its records.
        """
        looks = [
            PartitionLook(one.at, one.end, one.broker_end, one.caught_up_ms, one.newest_ms)
            for one in list(self._partitions.values())
        ]
        return lag_of(looks, time.time_ns() // 1_000_000)

    @property
    def positions(self) -> dict[str, int]:
        """The next offset of each partition that is followed."""
        return {name: one.at for name, one in self._partitions.items()}

    @property
    def known_ends(self) -> dict[str, int]:
        """The next offset of each partition, beyond the marks that the client has passed since the last record."""
        return {name: max(one.at, one.received) for name, one in self._partitions.items()}

    def _place(self, name: str, offset: int = OFFSET_INVALID) -> TopicPartition:
        topic, number = self._names.place(name)
        return TopicPartition(topic, number, offset)

    def _seek(self, starts: Mapping[str, int]) -> None:
        """Let each partition begin at an offset. What the client has read ahead is kept where it continues there."""
        known = self._partitions
        moved = [name for name, start in starts.items() if name in known and not known[name].skip(start)]
        self._unassign(moved)
        new = {name: start for name, start in starts.items() if name not in known}
        if new:
            self._consumer.incremental_assign([self._place(name, start) for name, start in new.items()])
            known.update({name: AssignedPartition(start) for name, start in new.items()})

    def _leave_others(self, kept: Collection[str]) -> None:
        self._unassign([name for name in self._partitions if name not in kept])

    def _unassign(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._consumer.incremental_unassign([self._place(name) for name in names])
        for name in names:
            del self._partitions[name]
        self._gone.difference_update(names)

    def _chunks(self, name: str, open_ranges: Mapping[str, int]) -> Iterator[SourceChunk]:
        one, end = self._partitions[name], open_ranges[name]
        gathered = GatheredMessages(name, self._wanted)
        is_complete = False
        while not is_complete:
            # The collector would look through all messages until they are columns.
            with no_cyclic_collection():
                if one.received < end and not one.messages:
                    self._receive(open_ranges)
                is_complete = one.received >= end
                chunks = list(gathered.add(one.take(end)))
            yield from chunks
            for lost in one.take_lost(end):
                yield missing_chunk(name, *self._names.place(name), *lost)
        yield from gathered.rest()

    def _receive(self, open_ranges: Mapping[str, int]) -> None:
        """Wait for messages, and sort them by partition."""
        deadline_s = time.monotonic() + STALLED_AFTER_S
        wanted = sum(max(0, end - self._partitions[name].received) for name, end in open_ranges.items())
        messages = self._consume(min(wanted, _CONSUMED_AT_ONCE))
        while not messages:
            # Consuming several messages waits until all of them are there.
            one = self._poll(_POLL_S)
            messages = [] if one is None else [one]
            if not messages and time.monotonic() > deadline_s:
                raise self._stalled()
        self._sort(messages)
        for name in self._gone & set(open_ranges):
            self._partitions[name].lose_to(open_ranges[name])
        self._drop_surplus(open_ranges)

    def _poll(self, timeout_s: float) -> Any:
        """Wait for a message, and return it; None if none has come."""
        found = self._consumer.poll(timeout_s)
        self._errors.await_login()
        return found

    def _consume(self, most: int) -> list[Any]:
        """Return messages that have arrived, without waiting. Call it without the cyclic collector.

        The collector would look through all of them again and again, which takes as long as making them.
        """
        return self._consumer.consume(most, 0)

    def _sort(self, messages: list[Any]) -> None:
        """Sort messages by partition."""
        if any(map(_ERROR, messages)):
            messages = [message for message in messages if not self._is_error(message)]
        for topic, part in self._by_topic(messages):
            numbers = set(map(_PARTITION, part))
            runs: Iterable[tuple[int, Iterable[Any]]] = itertools.groupby(part, _PARTITION)
            if len(numbers) == 1:
                runs = [(numbers.pop(), part)]
            for number, run in runs:
                self._partitions[self._names.of(topic, number)].add(list(run))
        while self._out_of_range:
            self._pass_over(self._out_of_range.pop())

    def _by_topic(self, messages: list[Any]) -> Iterable[tuple[str, list[Any]]]:
        """Return runs of messages of one topic. Only a pattern has several."""
        if self._binding.pattern is None:
            return [(self._binding.topic, messages)] if messages else []
        return [(topic, list(run)) for topic, run in itertools.groupby(messages, _TOPIC)]

    def _is_error(self, message: Any) -> bool:
        """Return whether a message is an event, not a record. Raises the error of the event."""
        error = message.error()
        if error is None:
            return False
        topic, offset = message.topic(), message.offset()
        # Errors that are of no partition have no topic.
        name = "" if topic is None else self._names.of(topic, message.partition())
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own codes begin so
            if name in self._partitions:
                one = self._partitions[name]
                one.received = max(one.received, offset)
                one.end = offset
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # librdkafka's own codes begin so
            # The records before it may be among the messages that came with it.
            self._out_of_range.add(name)
            return True
        if (
            error.code() in _NO_TOPIC
            and self._binding.pattern is not None
            and self._binding.missing == "skip"
        ):
            # The planner decides that the stream continues without it.
            self._gone.update([name] if name in self._partitions else [])
            return True
        raise self._refused(name, error.str())

    def _pass_over(self, name: str) -> None:
        """Continue at the first record left. Raises RecordsLostError unless the binding allows it."""
        binding, one = self._binding, self._partitions.get(name)
        if one is None:
            return
        place = self._place(name)
        try:
            first, end = self._consumer.get_watermark_offsets(place, _ANSWER_TIMEOUT_S)
        except KafkaException as e:
            raise self._refused(name, e.args[0].str()) from e
        if first <= one.received:
            raise self._refused(
                name,
                f"it has no record at offset {one.received}, and ends at {end}",
                "It was deleted and recreated, or its brokers have lost records: start the job again, and it says how "
                "to go on",
            )
        if binding.missing != "skip":
            raise RecordsLostError(_lost_text(binding, place, one.received, first))
        one.lose(first)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([self._place(name, first)])

    def _refused(
        self, name: str, reason: str, remedy: str = "Start the job again when it does"
    ) -> ExternalSystemError:
        binding, where = self._binding, self._binding.place
        if name:
            topic, number = self._names.place(name)
            where = f"the topic {topic!r}, partition {number}"
        return ExternalSystemError(
            f"Stream {binding.stream!r}: the broker {binding.servers} does not give the records of {where} ({reason}). "
            f"{remedy}."
        )

    def _drop_surplus(self, open_ranges: Mapping[str, int]) -> None:
        """Leave partitions that were read far beyond their ranges, since they would only fill the memory."""
        ahead = [
            name
            for name, one in self._partitions.items()
            if name not in open_ranges and len(one.messages) > _MAX_AHEAD
        ]
        self._unassign(ahead)

    def _stalled(self) -> ExternalSystemError:
        binding = self._binding
        reason = f" ({self._errors.text})" if self._errors.text else ""
        return ExternalSystemError(
            f"Stream {binding.stream!r}: the brokers {binding.servers} have given no record of "
            f"{binding.place} for {STALLED_AFTER_S:g} s, although there are some{reason}. Start the job again when "
            "they answer."
        )

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def _lost_text(binding: KafkaBinding, place: TopicPartition, start: int, first: int) -> str:
    return (
        f"Stream {binding.stream!r}: the topic {place.topic!r} on {binding.servers} has deleted records of partition "
        f"{place.partition} that the job has not read yet: the offsets {start} to {first - 1}. To continue at {first}, "
        "with a dead letter that counts them, add missing=skip to the URI and start the job again. To read everything "
        "that is left anew, take a savepoint of the checkpoint (penstock savepoint), and start the job from it with a "
        "new checkpoint, --from-savepoint and --no-positions."
    )


def _end_of(chunk: SourceChunk) -> int:
    """Return the offset after the last message of a chunk, which may be a bad one."""
    last: list[int] = chunk.offsets[-1:].to_pylist()
    return max([*last, *(bad.offset for bad in chunk.bad)]) + 1


_readers: OrderedDict[Any, TopicReader] = OrderedDict()


def topic_reader(
    binding: KafkaBinding, settings: Mapping[str, Any], wanted: WantedParts, names: PartitionNames
) -> TopicReader:
    """Return this process's reader of the topics of a stream.

    The reader that was used least recently makes room for a new one.
    """
    key = (
        os.getpid(),
        binding.stream,
        binding.servers,
        binding.topic,
        binding.missing,
        tuple(sorted(settings.items())),
        wanted,
        names,
    )
    reader = _readers.get(key)
    if reader is None:
        reader = _readers[key] = TopicReader(binding, settings, wanted, names)
        if len(_readers) > _MAX_READERS:
            _readers.popitem(last=False)[1].close()
    _readers.move_to_end(key)
    return reader
