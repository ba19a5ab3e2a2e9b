"""Kafka log: a topic as a log that Spark plans and checkpoints, and that workers read."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from confluent_kafka.admin import AdminClient

from penstock.bindings.types import RECORDS_PER_BATCH, KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client, check_topic, count_partitions
from penstock.brokers.topic_offsets import find_begins, find_ends
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sources.base import FIRST_THERE, MISSING, PLANNED, SourceChunk, Split
from penstock.sources.gathered_messages import WantedParts, missing_chunk, partition_name
from penstock.sources.topic_reader import STALLED_AFTER_S, TopicReader, topic_reader

__all__ = ["KafkaLog", "Offsets"]

Offsets: TypeAlias = Mapping[int, int]
"""The next offset of each partition of a topic."""

# Planning asks the brokers at most this often, and for new partitions more rarely.
_LOOK_S: Final = 0.02
_PARTITIONS_LOOK_S: Final = 1.0
_ANSWER_TIMEOUT_S: Final = 5.0
# Fewer records than this are one task's work.
_RECORDS_OF_A_TASK: Final = 20_000
# The first micro-batches of a backlog: the first is small, so that outputs come soon, and each is larger by a factor.
_FIRST_RECORDS: Final = 100_000
_GROWTH: Final = 4


@dataclass
class _Look:
    """What the brokers have told last, in the process that plans."""

    admin: AdminClient
    errors: LastError
    partitions: int
    partitions_at_s: float
    ends: dict[int, int] = field(default_factory=dict)
    ends_at_s: float | None = None


class _Position(dict[int, int]):
    """A position, with the first offsets of partitions whose earlier records were deleted before they were planned."""

    def __init__(self, ends: Offsets, first_there: Offsets) -> None:
        super().__init__(ends)
        self.first_there: Final = first_there


@dataclass
class KafkaLog:
    """A topic as a `ReplayableLog`. Positions are offsets by partition.

    `begins` is where the checkpoint began to read. Partitions that the topic gets while the job runs are read from
    their beginning. `limit` is the number of records that a micro-batch reads at most; `settings` are librdkafka's.
    With `starts_small` the first micro-batches of a process that plans read less.
    """

    binding: KafkaBinding
    settings: Mapping[str, Any]
    begins: Offsets
    limit: int = RECORDS_PER_BATCH
    wanted: WantedParts = field(default_factory=WantedParts)
    starts_small: bool = False
    _grown: int = field(default=_FIRST_RECORDS, init=False)
    _frozen: dict[int, int] | None = field(default=None, init=False)
    _look: _Look | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Clients do not travel.
        return {**self.__dict__, "_look": None}

    @property
    def is_paced(self) -> bool:
        """Whether the binding says how much of the topic goes into a micro-batch, where it is a control stream."""
        return self.binding.is_paced

    def beginning(self) -> Offsets:
        """Return where the checkpoint begins to read the topic."""
        return self.begins

    def encode(self, position: Offsets) -> dict[str, Any]:
        """Encode a position as a JSON object, by topic and partition."""
        encoded: dict[str, Any] = {self.binding.topic: _encoded(position)}
        if first_there := _first_there(position):
            encoded[FIRST_THERE] = _encoded(first_there)
        return encoded

    def decode(self, offset: Mapping[str, Any]) -> Offsets:
        """Decode a position. Raises BindingError when it is of another topic."""
        if self.binding.topic not in offset:
            raise BindingError(
                f"Stream {self.binding.stream!r}: the positions are of the topic "
                f"{', '.join(name for name in offset if name not in (PLANNED, FIRST_THERE))}, and the binding names "
                f"{self.binding.topic!r}. Bind the stream to the same topic, or start without positions."
            )
        return _Position(_decoded(offset[self.binding.topic]), _decoded(offset.get(FIRST_THERE, {})))

    def latest(self, start: Offsets, *, limited: bool) -> Offsets:
        """Return the newest position to read up to from `start`; with `limited` at most one micro-batch ahead.

        While no broker answers nothing is new. Raises ExternalSystemError when that lasts for long.

        If the binding says so, what was deleted before it is planned is passed over. The position says up to where, so
        that a replay passes over the same.
        """
        ends = self._frozen if self._frozen is not None else self._ends()
        first_there: Offsets = {}
        if self.binding.missing == "skip":
            try:
                first_there = self._passed_over(start, ends)
            except ExternalSystemError:
                # What was frozen is read to its end. Otherwise the next look at the ends tells whether this lasts.
                if self._frozen is not None:
                    raise
                return start
        reached = self._limited({**start, **first_there}, ends, limited=limited)
        new = [number for number in ends if number not in start]
        if new:
            # They begin where they do now, and have something to read from the next position on.
            begins = find_begins(self._looked().admin, self.binding, new, _ANSWER_TIMEOUT_S)
            reached = {**reached, **begins}
        return _Position(reached, first_there)

    def _passed_over(self, start: Offsets, ends: Offsets) -> Offsets:
        """Return the first offsets of partitions that have deleted what comes after `start`."""
        read = [number for number, at in start.items() if ends.get(number, at) > at]
        begins = find_begins(self._looked().admin, self.binding, read, _ANSWER_TIMEOUT_S)
        return {number: begin for number, begin in begins.items() if begin > start[number]}

    def _limited(self, start: Offsets, ends: Offsets, *, limited: bool) -> dict[int, int]:
        """The ends of the partitions of a position, or part of the way there, in proportion to what waits in each."""
        waits = {number: max(0, ends.get(number, at) - at) for number, at in start.items()}
        total = sum(waits.values())
        limit = min(self.limit, self._grown) if self.starts_small else self.limit
        if not limited or total <= limit:
            return {number: at + waits[number] for number, at in start.items()}
        self._grown = min(self._grown * _GROWTH, RECORDS_PER_BATCH)
        return {number: at + -(-waits[number] * limit // total) for number, at in start.items()}

    def freeze(self) -> None:
        """Fix the ends at what they are now."""
        self._frozen = find_ends(
            self._looked().admin, self.binding, range(self._looked().partitions), _ANSWER_TIMEOUT_S
        )

    def newest(self) -> Offsets | None:
        """Return the ends that were known last."""
        return self._frozen if self._look is None else self._look.ends

    def splits(self, start: Offsets, end: Offsets, parallelism: int) -> list[Split]:
        """Cut what lies between two positions into splits; each is a range of one partition, or what it has lost."""
        lost = {n: (start[n], first) for n, first in _first_there(end).items() if first > start.get(n, first)}
        begin = {**start, **{n: first for n, (_, first) in lost.items()}}
        ranges = {n: (at, end[n]) for n, at in sorted(begin.items()) if n in end and end[n] > at}
        total = sum(last - first for first, last in ranges.values())
        most = max(_RECORDS_OF_A_TASK, -(-total // parallelism))
        splits = [Split(partition_name(n), MISSING, *lost[n]) for n in sorted(lost)]
        for number, (first, last) in ranges.items():
            parts = -(-(last - first) // most)
            cuts = [first + (last - first) * part // parts for part in range(parts + 1)]
            name = partition_name(number)
            splits += [Split(name, "", low, high) for low, high in itertools.pairwise(cuts)]
        return splits

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # as ReplayableLog
        """Read the records of splits."""
        ranges: dict[int, tuple[int, int]] = {}
        for split in splits:
            number = int(split.partition)
            if split.path == MISSING:
                yield from self._read(ranges)
                ranges = {}
                yield missing_chunk(self.binding.topic, number, split.start, split.end)
                continue
            first, _ = ranges.get(number, (split.start, split.start))
            ranges[number] = first, split.end
        yield from self._read(ranges)

    def _read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[SourceChunk]:
        return self.reader().read(ranges) if ranges else iter(())

    def reader(self) -> TopicReader:
        """Return the reader of the topic in this worker."""
        return topic_reader(self.binding, self.settings, self.wanted)

    def forget(self, end: Offsets) -> None:
        """The brokers keep records as long as the topic says."""

    def lag(self, position: Offsets) -> dict[str, Any]:  # noqa: ARG002  # as ReplayableLog
        """Return nothing: Spark reports what waits, as of the plan of a micro-batch."""
        return {}

    def count_partitions(self) -> int:
        """Ask the brokers how many partitions the topic has. Raises what `latest` raises."""
        look = self._looked()
        return self._count(look.admin, look.errors)

    def _looked(self) -> _Look:
        if self._look is None:
            errors = LastError()
            admin = build_client(AdminClient, self.binding, self.settings, errors)
            partitions = self._count(admin, errors)
            self._look = _Look(admin, errors, partitions, time.monotonic())
        return self._look

    def _count(self, admin: AdminClient, errors: LastError) -> int:
        """Count the partitions of the topic. Raises PlaceMissingError when it is gone for good."""
        count = count_partitions(admin, self.binding, errors, _ANSWER_TIMEOUT_S)
        return check_topic(self.binding, self.settings, _ANSWER_TIMEOUT_S) if count is None else count

    def _ends(self) -> dict[int, int]:
        look = self._looked()
        now_s = time.monotonic()
        known_for_s = math.inf if look.ends_at_s is None else now_s - look.ends_at_s
        if known_for_s < _LOOK_S:
            return look.ends
        try:
            if now_s - look.partitions_at_s >= _PARTITIONS_LOOK_S:
                look.partitions = self._count(look.admin, look.errors)
                look.partitions_at_s = now_s
            look.ends = find_ends(look.admin, self.binding, range(look.partitions), _ANSWER_TIMEOUT_S)
        except ExternalSystemError:
            # Brokers that restart are back after some seconds.
            if known_for_s < STALLED_AFTER_S:
                return look.ends
            raise
        look.ends_at_s = time.monotonic()
        return look.ends


def _first_there(position: Offsets) -> Offsets:
    return position.first_there if isinstance(position, _Position) else {}


def _encoded(offsets: Offsets) -> dict[str, int]:
    return {str(number): offsets[number] for number in sorted(offsets)}


def _decoded(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(number): at for number, at in offsets.items()}
