"""Brokers as data: topics, transactions and group offsets, and the changes that clients make to them.

A change can be replayed, so the brokers' state after any operation of a life is known.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from confluent_kafka import KafkaError, KafkaException

__all__ = ["Brokers", "Change", "Entry", "Message", "failed"]

Message = tuple[bytes | None, bytes]
"""The key and the value."""

ChangeKind = Literal["topic", "grow", "give", "init", "append", "offsets", "commit", "abort"]


class Change(NamedTuple):
    """A change to the brokers at a moment of their clock.

    `topic` makes a topic with `count` partitions, `grow` gives it that many. `give` is an outside write of
    file number `count`, in its own transaction. The others are requests of producers: `init` takes over the
    transactional id `name` with a timeout of `count` seconds; `offsets` commits `offset` and `note` for the
    group `name`.
    """

    kind: ChangeKind
    topic: str = ""
    partition: int = 0
    messages: Sequence[Message] = ()
    name: str = ""
    epoch: int = -1
    offset: int = 0
    note: str = ""
    count: int = 0
    at_s: float = 0.0

    def __str__(self) -> str:
        what = f"{self.kind} {self.name}" if self.name else self.kind
        if self.topic:
            what += f" {self.topic}/{self.partition}"
        if self.messages:
            what += f": {len(self.messages)} messages"
        return what


class Entry(NamedTuple):
    """An entry with an offset in a partition: a message, or the end of a transaction. `transaction` is 0
    outside transactions.
    """

    message: Message | None
    transaction: int = 0


@dataclass
class Topic:
    """A topic, and the files that outside writers gave to it."""

    id: int
    partitions: list[list[Entry]]
    given: int = 0


@dataclass
class Owner:
    """The present owner of a transactional id, and the number of its open transaction, 0 without one."""

    epoch: int
    timeout_s: float
    transaction: int = 0
    begun_s: float = 0.0
    places: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)


def failed(code: int, why: str = "", *, fatal: bool = False, aborts: bool = False) -> KafkaException:
    """Return an error as librdkafka raises it."""
    return KafkaException(KafkaError(code, why or None, fatal, not fatal and not aborts, aborts))


@dataclass
class Brokers:
    """The state of the brokers, and their clock."""

    topics: dict[str, Topic] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    groups: dict[str, tuple[int, str]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    now_s: float = 0.0
    transactions: int = 0
    made: int = 0

    def copy(self) -> Brokers:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def pass_time(self, now_s: float) -> None:
        """Advance the clock, and abort transactions that exceed their timeout."""
        self.now_s = max(self.now_s, now_s)
        for owner in self.owners.values():
            if owner.transaction and self.now_s - owner.begun_s >= owner.timeout_s:
                self._end(owner, is_committed=False)
                owner.epoch += 1

    def check(self, change: Change) -> None:
        """Raise KafkaException if the brokers refuse the change."""
        self.pass_time(change.at_s)
        if change.kind == "append" and change.topic not in self.topics:
            raise failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if change.epoch < 0:
            return
        owner = self.owners.get(change.name.split(" ")[0])
        if owner is None or owner.epoch != change.epoch:
            raise failed(KafkaError._FENCED, fatal=True)
        if change.kind in ("commit", "abort") and not owner.transaction:
            raise failed(KafkaError.INVALID_TXN_STATE, fatal=True)

    def apply(self, change: Change) -> None:
        """Carry out a change that was checked."""
        self.pass_time(change.at_s)
        _DO[change.kind](self, change)

    def _make(self, change: Change) -> None:
        if change.topic not in self.topics:
            self.made += 1
            self.topics[change.topic] = Topic(self.made, [[] for _ in range(change.count)])

    def _grow(self, change: Change) -> None:
        partitions = self.topics[change.topic].partitions
        partitions.extend([] for _ in range(len(partitions), change.count))

    def _give(self, change: Change) -> None:
        """Write messages by key in a transaction, interleaved with aborted ones."""
        topic = self.topics[change.topic]
        if change.count != topic.given:
            return
        topic.given += 1
        self.transactions += 2
        lost, kept = self.transactions - 1, self.transactions
        self.committed.add(kept)
        touched = set()
        for key, value in change.messages:
            number = partition_of(key, len(topic.partitions))
            touched.add(number)
            topic.partitions[number] += [Entry((key, b"given up"), lost), Entry((key, value), kept)]
        for number in sorted(touched):
            topic.partitions[number] += [Entry(None, lost), Entry(None, kept)]

    def _init(self, change: Change) -> None:
        owner = self.owners.setdefault(change.name, Owner(-1, change.count))
        if owner.transaction:
            self._end(owner, is_committed=False)
        owner.epoch += 1
        owner.timeout_s = change.count

    def _begin(self, owner: Owner) -> None:
        if not owner.transaction:
            self.transactions += 1
            owner.transaction, owner.begun_s = self.transactions, self.now_s
            self.open.add(self.transactions)

    def _append(self, change: Change) -> None:
        number = 0
        if change.epoch >= 0:
            owner = self.owners[change.name]
            self._begin(owner)
            owner.places.add((change.topic, change.partition))
            number = owner.transaction
        partition = self.topics[change.topic].partitions[change.partition]
        partition += [Entry(message, number) for message in change.messages]

    def _offsets(self, change: Change) -> None:
        transactional_id, group = change.name.split(" ")
        owner = self.owners[transactional_id]
        self._begin(owner)
        owner.offsets[group] = change.offset, change.note

    def _commit(self, change: Change) -> None:
        self._end(self.owners[change.name], is_committed=True)

    def _abort(self, change: Change) -> None:
        self._end(self.owners[change.name], is_committed=False)

    def _end(self, owner: Owner, *, is_committed: bool) -> None:
        self.open.discard(owner.transaction)
        if is_committed:
            self.committed.add(owner.transaction)
            self.groups |= owner.offsets
        for topic, partition in sorted(owner.places):
            self.topics[topic].partitions[partition].append(Entry(None, owner.transaction))
        owner.transaction, owner.places, owner.offsets = 0, set(), {}

    def waits_for(self, group: str) -> bool:
        """Return whether an open transaction may change the group's committed offsets."""
        return any(group in owner.offsets for owner in self.owners.values())

    def known_groups(self) -> list[str]:
        """Return the groups that have committed, or are about to."""
        return sorted({*self.groups, *(group for owner in self.owners.values() for group in owner.offsets)})

    def end_of(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """Return the end of a partition; for read_committed it is at the first open transaction."""
        entries = self.topics[topic].partitions[partition]
        if not committed or not self.open:
            return len(entries)
        return next((at for at, entry in enumerate(entries) if entry.transaction in self.open), len(entries))

    def read(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, Message]]:
        """Return the committed messages between two offsets."""
        found = self.topics[topic].partitions[partition][start:end]
        return [
            (start + at, entry.message)
            for at, entry in enumerate(found)
            if entry.message is not None and (not entry.transaction or entry.transaction in self.committed)
        ]


_DO: dict[ChangeKind, Callable[[Brokers, Change], None]] = {
    "topic": Brokers._make,
    "grow": Brokers._grow,
    "give": Brokers._give,
    "init": Brokers._init,
    "append": Brokers._append,
    "offsets": Brokers._offsets,
    "commit": Brokers._commit,
    "abort": Brokers._abort,
}


def partition_of(key: bytes | None, count: int) -> int:
    """Return the partition of a key."""
    return zlib.crc32(key or b"") % count
