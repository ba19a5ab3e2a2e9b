"""Kafka log: the topics of a stream as a log that Spark plans and checkpoints, and that workers read."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from confluent_kafka.admin import AdminClient

from penstock.bindings.types import RECORDS_PER_BATCH, KafkaBinding
from penstock.brokers.kafka_topics import (
    LastError,
    build_client,
    check_topic,
    count_partitions,
    find_topics,
)
from penstock.brokers.topic_offsets import find_begins, find_ends
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sources.base import GONE, MISSING, SourceChunk, Split
from penstock.sources.batch_limits import BatchLimit
from penstock.sources.gathered_messages import WantedParts, gone_chunk, missing_chunk
from penstock.sources.offset_fields import FIRST_THERE, offsets_by_topic
from penstock.sources.topic_identity import KnownTopics, keep_found, keep_gone, topic_deleted
from penstock.sources.topic_reader import STALLED_AFTER_S, TopicReader, following, topic_reader

__all__ = ["KafkaLog", "Offsets"]

Offsets: TypeAlias = Mapping[str, int]
"""The next offset of each partition that a stream reads, by its name."""

# The pauses, in seconds, between two questions of the planner to the brokers: for ends, and for new partitions.
_LOOK_S: Final = 0.02
_PARTITIONS_LOOK_S: Final = 1.0
_ANSWER_TIMEOUT_S: Final = 5.0
# Up to this many records are read by one task.
_RECORDS_OF_A_TASK: Final = 20_000
# The first micro-batches of a backlog: the first is small, so that outputs come soon, and each is larger by a factor.
_FIRST_RECORDS: Final = 100_000
_GROWTH: Final = 4


@dataclass
class _Look:
    """The latest answers of the brokers, in the process that plans."""

    admin: AdminClient
    errors: LastError
    names: list[str]
    names_at_s: float
    ends: dict[str, int] = field(default_factory=dict)
    ends_at_s: float | None = None
    # They include partitions of topics deleted since.
    ever: dict[str, int] = field(default_factory=dict)

    def see(self, ends: dict[str, int]) -> None:
        """Note where partitions end."""
        self.ends = ends
        self.ever.update(ends)


class _Position(dict[str, int]):
    """A position, with the first offsets of partitions whose earlier records were deleted before they were planned.

    The partitions of topics that are gone are not in it any more.
    """

    def __init__(self, ends: Offsets, first_there: Offsets) -> None:
        super().__init__(ends)
        self.first_there: Final = first_there


@dataclass
class KafkaLog:
    """The topics of a stream as a `ReplayableLog`. Positions are offsets by partition.

    `known` is what the checkpoint knows of the topics at the start, and where it begins to read. Partitions and topics
    that are found while the job runs are read from their beginning. `limit` is the number of records that a micro-batch
    reads at most, and `learned_limit` one that follows the size of the records; `settings` are librdkafka's. With
    `starts_small` the first micro-batches of a process that plans read less.
    """

    binding: KafkaBinding
    settings: Mapping[str, Any]
    known: KnownTopics
    limit: int = RECORDS_PER_BATCH
    wanted: WantedParts = field(default_factory=WantedParts)
    starts_small: bool = False
    learned_limit: BatchLimit | None = None
    _grown: int = field(default=_FIRST_RECORDS, init=False)
    _frozen: dict[str, int] | None = field(default=None, init=False)
    _look: _Look | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Clients do not travel.
        return {**self.__dict__, "_look": None}

    @property
    def is_paced(self) -> bool:
        """Whether the binding limits the records of a micro-batch, for a control stream."""
        return self.binding.is_paced

    def beginning(self) -> Offsets:
        """Return where the checkpoint begins to read the topics."""
        return self.known.begins

    def encode(self, position: Offsets) -> dict[str, Any]:
        """Encode a position as a JSON object, by topic and partition."""
        names = self.known.names
        encoded: dict[str, Any] = names.by_topic(position)
        if first_there := _first_there(position):
            encoded[FIRST_THERE] = names.by_topic(first_there)
        return encoded

    def decode(self, offset: Mapping[str, Any]) -> Offsets:
        """Decode a position. Raises BindingError when it is of a topic that the binding does not read."""
        topics = offsets_by_topic(offset)
        unread = [topic for topic in topics if not self.binding.reads(topic)]
        if unread or not (topics or self._has_pattern):
            raise BindingError(
                f"Stream {self.binding.stream!r}: the positions are of {', '.join(map(repr, topics)) or 'no topic'}, "
                f"and the binding names {self.binding.place}. Bind the stream to all topics that it has read, or start "
                "without positions."
            )
        names = self.known.names
        return _Position(names.by_name(topics), names.by_name(offset.get(FIRST_THERE, {})))

    @property
    def _has_pattern(self) -> bool:
        return self.binding.pattern is not None

    def latest(self, start: Offsets, *, limited: bool) -> Offsets:
        """Return the newest position to read up to from `start`; with `limited` at most one micro-batch ahead.

        While no broker answers nothing is new. Raises ExternalSystemError when that lasts for long.

        If the binding says so, what was deleted before it is planned is passed over. The position says up to where, so
        that a replay passes over the same. The partitions of topics that are gone are left out of it.
        """
        ends = self._frozen if self._frozen is not None else self._ends()
        first_there: Offsets = {}
        gone = self._gone(start, ends) if self._has_pattern else []
        kept = {name: at for name, at in start.items() if name not in gone} if gone else start
        if self.binding.missing == "skip":
            try:
                first_there = self._passed_over(kept, ends)
            except ExternalSystemError:
                # A frozen log is read to its end. Otherwise the next look at the ends tells whether the error lasts.
                if self._frozen is not None:
                    raise
                return start
        reached = self._limited({**kept, **first_there}, ends, limited=limited)
        reached |= self._found(start, ends)
        if gone:
            ever = self._looked().ever
            keep_gone(self.known.path, {self.known.names.topic(name) for name in gone})
            first_there = {**first_there, **{name: max(start[name], ever.get(name, 0)) for name in gone}}
        return _Position(reached, first_there)

    def _gone(self, start: Offsets, ends: Offsets) -> list[str]:
        """Return the partitions of a position whose topics are gone. Raises PlaceMissingError if they must not be."""
        away = [name for name in start if name not in ends]
        topics = {self.known.names.topic(name) for name in away}
        gone = {topic for topic in sorted(topics) if self._is_gone(topic)}
        if gone and self.binding.missing != "skip":
            raise topic_deleted(self.binding, min(gone))
        return [name for name in away if self.known.names.topic(name) in gone]

    def _is_gone(self, topic: str) -> bool:
        """Return whether brokers say that a topic does not exist. A topic that is moving may be missing from a list."""
        look = self._looked()
        try:
            return count_partitions(look.admin, self.binding, look.errors, _ANSWER_TIMEOUT_S, topic) is None
        except ExternalSystemError:
            return False

    def _found(self, start: Offsets, ends: Offsets) -> dict[str, int]:
        """Return the first offsets of partitions that are not in a position yet, once their topics are known durably.

        Their records can be read from the next position on.
        """
        new = [name for name in ends if name not in start]
        if not new:
            return {}
        names, look = self.known.names, self._looked()
        if self._has_pattern:
            topics = {names.topic(name) for name in new} - {names.topic(name) for name in start}
            kept = keep_found(look.admin, self.binding, self.known.path, topics) if topics else set()
            new = [name for name in new if (topic := names.topic(name)) in kept or topic not in topics]
        begins = find_begins(look.admin, self.binding, names.places(new), _ANSWER_TIMEOUT_S)
        return {names.of(*place): at for place, at in begins.items()}

    def _passed_over(self, start: Offsets, ends: Offsets) -> Offsets:
        """Return the first offsets of partitions whose next records after `start` were deleted."""
        names = self.known.names
        read = [name for name, at in start.items() if ends.get(name, at) > at]
        begins = find_begins(self._looked().admin, self.binding, names.places(read), _ANSWER_TIMEOUT_S)
        found = {names.of(*place): begin for place, begin in begins.items()}
        return {name: begin for name, begin in found.items() if begin > start[name]}

    def _limited(self, start: Offsets, ends: Offsets, *, limited: bool) -> dict[str, int]:
        """The ends of the partitions of a position, or part of the way there, in proportion to what waits in each."""
        waits = {name: max(0, ends.get(name, at) - at) for name, at in start.items()}
        total = sum(waits.values())
        limit = self.limit if self.learned_limit is None else min(self.limit, self.learned_limit.read())
        if self.starts_small:
            limit = min(limit, self._grown)
        if not limited or total <= limit:
            return {name: at + waits[name] for name, at in start.items()}
        self._grown = min(self._grown * _GROWTH, RECORDS_PER_BATCH)
        return {name: at + -(-waits[name] * limit // total) for name, at in start.items()}

    def freeze(self) -> None:
        """Fix the ends at the present ones."""
        self._frozen = self._find_ends(self._looked())

    def newest(self) -> Offsets | None:
        """Return the latest known ends."""
        return self._frozen if self._look is None else self._look.ends

    def gone(self, start: Offsets, end: Offsets) -> dict[str, tuple[int, int]]:
        """Return the partitions whose topics are gone at `end`, each with its unread range as far as it is known."""
        if not self._has_pattern:
            return {}
        first_there = _first_there(end)
        return {name: (at, first_there.get(name, at)) for name, at in start.items() if name not in end}

    def splits(self, start: Offsets, end: Offsets, parallelism: int) -> list[Split]:
        """Cut the records between two positions into splits.

        Each is a range of one partition, or what it has lost, or its end if its topic is gone.
        """
        gone = self.gone(start, end)
        lost = {
            name: (start[name], first)
            for name, first in _first_there(end).items()
            if name not in gone and first > start.get(name, first)
        }
        begin = {**start, **{name: first for name, (_, first) in lost.items()}}
        ranges = {
            name: (at, end[name]) for name, at in sorted(begin.items()) if name in end and end[name] > at
        }
        total = sum(last - first for first, last in ranges.values())
        most = max(_RECORDS_OF_A_TASK, -(-total // parallelism))
        splits = [Split(name, MISSING, *lost[name]) for name in sorted(lost)]
        splits += [Split(name, GONE, *offsets) for name, offsets in sorted(gone.items())]
        for name, (first, last) in ranges.items():
            parts = -(-(last - first) // most)
            cuts = [first + (last - first) * part // parts for part in range(parts + 1)]
            splits += [Split(name, "", low, high) for low, high in itertools.pairwise(cuts)]
        return splits

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # as ReplayableLog
        """Read the records of splits."""
        ranges: dict[str, tuple[int, int]] = {}
        for split in splits:
            if split.path in (MISSING, GONE):
                yield from self._read(ranges)
                ranges = {}
                yield self.notice(split)
                continue
            first, _ = ranges.get(split.partition, (split.start, split.start))
            ranges[split.partition] = first, split.end
        yield from self._read(ranges)

    def _read(self, ranges: Mapping[str, tuple[int, int]]) -> Iterator[SourceChunk]:
        return self.reader().read(ranges) if ranges else iter(())

    def notice(self, split: Split) -> SourceChunk:
        """Return the chunk that reports what a partition has lost, or that its topic is gone."""
        report = gone_chunk if split.path == GONE else missing_chunk
        return report(split.partition, *self.known.names.place(split.partition), split.start, split.end)

    def nearness(self, shares: Sequence[Sequence[Split]]) -> list[int]:
        """Return how many of the splits of each share begin where this worker's reader has ended."""
        positions = self.reader().positions
        return [sum(positions.get(split.partition) == split.start for split in splits) for splits in shares]

    def reader(self) -> TopicReader:
        """Return the reader of the topics in this worker."""
        return topic_reader(self.binding, self.settings, self.wanted, self.known.names)

    def follower(self, pause_ms: int) -> TopicReader:
        """Return the reader in this worker that follows the topics, with a pause after each answer."""
        settings = {**following(pause_ms), **self.settings}
        return topic_reader(self.binding, settings, self.wanted, self.known.names)

    def forget(self, end: Offsets) -> None:
        """Do nothing: brokers keep records for as long as the topic says."""

    def lag(self, position: Offsets) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Return nothing: Spark reports the lag, as of the plan of a micro-batch."""
        return {}

    def has_changed(self, followed: AbstractSet[str]) -> bool:
        """Ask the brokers whether there are more partitions than these, or topics of them are gone.

        Raises what `latest` raises.
        """
        look = self._looked()
        there = set(self._find(look.admin, look.errors))
        away = {self.known.names.topic(name) for name in followed - there} if self._has_pattern else set()
        return not there <= followed or any(map(self._is_gone, sorted(away)))

    def _looked(self) -> _Look:
        if self._look is None:
            errors = LastError()
            admin = build_client(AdminClient, self.binding, self.settings, errors)
            names = self._find(admin, errors)
            self._look = _Look(admin, errors, names, time.monotonic())
        return self._look

    def _find(self, admin: AdminClient, errors: LastError) -> list[str]:
        """Return the existing partitions. Raises PlaceMissingError when the topic of a binding does not exist."""
        binding, names = self.binding, self.known.names
        if self._has_pattern:
            return names.all_of(find_topics(admin, binding, errors, _ANSWER_TIMEOUT_S))
        count = count_partitions(admin, binding, errors, _ANSWER_TIMEOUT_S)
        if count is None:
            count = check_topic(binding, self.settings, _ANSWER_TIMEOUT_S)
        return names.all_of({binding.topic: count})

    def _ends(self) -> dict[str, int]:
        look = self._looked()
        now_s = time.monotonic()
        known_for_s = math.inf if look.ends_at_s is None else now_s - look.ends_at_s
        if known_for_s < _LOOK_S:
            return look.ends
        try:
            if now_s - look.names_at_s >= _PARTITIONS_LOOK_S:
                look.names = self._find(look.admin, look.errors)
                look.names_at_s = now_s
            look.see(self._find_ends(look))
        except ExternalSystemError:
            # Brokers that restart are back after some seconds.
            if known_for_s < STALLED_AFTER_S:
                return look.ends
            raise
        look.ends_at_s = time.monotonic()
        return look.ends

    def _find_ends(self, look: _Look) -> dict[str, int]:
        names = self.known.names
        ends = find_ends(look.admin, self.binding, names.places(look.names), _ANSWER_TIMEOUT_S)
        return {names.of(*place): at for place, at in ends.items()}


def _first_there(position: Offsets) -> Offsets:
    return position.first_there if isinstance(position, _Position) else {}
