"""A broker as data: topics, transactions and the offsets of groups, and the changes that clients make to them.

A change can be carried out again, so what a broker holds behind any of the operations of a life is known.
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
    """Something that the brokers have done at a moment of their clock.

    `topic` makes a topic with `count` partitions, `grow` gives it so many. `give` is what somebody else writes, the
    file `count`, in a transaction of its own. The others are requests of producers: `init` takes over the transactional
    id `name` with a time-out of `count` seconds; `offsets` commits `offset` and `note` for the group `name`.
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
    """What has an offset in a partition: a message, or the end of a transaction. `transaction` 0 is none."""

    message: Message | None
    transaction: int = 0


@dataclass
class Topic:
    """A topic, and which files were given to it by those who write it."""

    id: int
    partitions: list[list[Entry]]
    given: int = 0


@dataclass
class Owner:
    """Whoever has a transactional id now; the number of its open transaction, 0 without one."""

    epoch: int
    timeout_s: float
    transaction: int = 0
    begun_s: float = 0.0
    places: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)


def failed(code: int, why: str = "", *, fatal: bool = False, aborts: bool = False) -> KafkaException:
    """An error as librdkafka raises it."""
    return KafkaException(KafkaError(code, why or None, fatal, not fatal and not aborts, aborts))


@dataclass
class Brokers:
    """What the brokers hold, and their clock."""

    topics: dict[str, Topic] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    groups: dict[str, tuple[int, str]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    now_s: float = 0.0
    transactions: int = 0
    made: int = 0

    def copy(self) -> Brokers:
        """The same, to be changed by itself."""
        return copy.deepcopy(self)

    def pass_time(self, now_s: float) -> None:
        """The clock advances, and transactions that have been open for too long end."""
        self.now_s = max(self.now_s, now_s)
        for owner in self.owners.values():
            if owner.transaction and self.now_s - owner.begun_s >= owner.timeout_s:
                self._end(owner, is_committed=False)
                owner.epoch += 1

    def check(self, change: Change) -> None:
        """Raise KafkaException for a change that the brokers refuse."""
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
        """Messages by their keys, in a transaction, with others between them that are given up."""
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
        """Whether an open transaction may change what a group has committed."""
        return any(group in owner.offsets for owner in self.owners.values())

    def known_groups(self) -> list[str]:
        """The groups that have committed, or are about to."""
        return sorted({*self.groups, *(group for owner in self.owners.values() for group in owner.offsets)})

    def end_of(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """Where a partition ends: for readers of what is committed at the first open transaction."""
        entries = self.topics[topic].partitions[partition]
        if not committed or not self.open:
            return len(entries)
        return next((at for at, entry in enumerate(entries) if entry.transaction in self.open), len(entries))

    def read(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, Message]]:
        """The messages between two offsets that are committed."""
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
    """The partition of a key."""
    return zlib.crc32(key or b"") % count
