"""Shard places: up to where each shard of a stream has been read, and which may be read next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["Shard", "ShardPlace", "StreamPlaces", "discovered", "expired", "readable", "shards_of"]

_HASHES: Final = 1 << 128


@dataclass(frozen=True)
class Shard:
    """A shard as Kinesis lists it. `parents` are those that it was split or merged from; they may be gone by now.

    A closed shard, which was split or merged itself, gets no more records.
    """

    name: str
    parents: tuple[str, ...] = ()
    first_hash: int = 0
    last_hash: int = _HASHES - 1
    is_closed: bool = False


class ShardPlace(msgspec.Struct, frozen=True, array_like=True):
    """Up to where a shard has been read.

    `after` is the sequence number of the last record that was; while it is empty, the shard is read from its beginning,
    or from `since_ms` on. Records that arrived before `reached_ms`, by the clock of the server, have been read. The
    times are in milliseconds since 1970. With `ended` it has no more records.
    """

    after: str = ""
    since_ms: int = 0
    reached_ms: int = 0
    ended: bool = False


class StreamPlaces(msgspec.Struct, frozen=True):
    """Up to where a stream has been read. `created_ms` tells it from another of the same name."""

    name: str
    created_ms: int
    shards: dict[str, ShardPlace]


def shards_of(listed: Iterable[Mapping[str, Any]]) -> list[Shard]:
    """Return shards from what Kinesis lists, by name.

    >>> shards_of([{"ShardId": "b", "ParentShardId": "a", "HashKeyRange": {"StartingHashKey": "0",
    ...             "EndingHashKey": "9"}, "SequenceNumberRange": {"StartingSequenceNumber": "1"}}])
    [Shard(name='b', parents=('a',), first_hash=0, last_hash=9, is_closed=False)]
    """
    found = [
        Shard(
            one["ShardId"],
            tuple(filter(None, (one.get("ParentShardId"), one.get("AdjacentParentShardId")))),
            int(one["HashKeyRange"]["StartingHashKey"]),
            int(one["HashKeyRange"]["EndingHashKey"]),
            "EndingSequenceNumber" in one["SequenceNumberRange"],
        )
        for one in listed
    ]
    return sorted(found, key=lambda shard: shard.name)


def discovered(
    shards: Sequence[Shard], places: Mapping[str, ShardPlace], first: ShardPlace | None = None
) -> dict[str, ShardPlace]:
    """Return the places with those of shards that are new, and without those that are over and listed no more.

    New shards begin at `first` when a stream is read for the first time. Later ones are read from their beginning; as
    nothing of them has been read, they have been reached no further than their parents.
    """
    listed = {shard.name for shard in shards}
    found = {name: place for name, place in places.items() if name in listed or not place.ended}
    oldest_ms = min((place.reached_ms for place in places.values()), default=0)
    by_name = {shard.name: shard for shard in shards}
    for shard in _parents_first(shards, by_name):
        if shard.name in found:
            continue
        if first is not None:
            found[shard.name] = first
            continue
        known = [found[name].reached_ms for name in shard.parents if name in found]
        found[shard.name] = ShardPlace(reached_ms=min(known, default=oldest_ms))
    return {name: found[name] for name in sorted(found)}


def _parents_first(shards: Sequence[Shard], by_name: Mapping[str, Shard]) -> list[Shard]:
    done: dict[str, Shard] = {}
    waiting = list(reversed(shards))
    while waiting:
        shard = waiting[-1]
        before = [by_name[name] for name in shard.parents if name in by_name and name not in done]
        if before:
            waiting += before
            continue
        done[shard.name] = waiting.pop()
    return list(done.values())


def readable(shards: Sequence[Shard], places: Mapping[str, ShardPlace]) -> list[Shard]:
    """Return the shards that may be read now: those that have not ended, and whose parents have, or are gone."""
    listed = {shard.name for shard in shards}
    return [
        shard
        for shard in shards
        if not places[shard.name].ended
        and all(name not in listed or places[name].ended for name in shard.parents)
    ]


def expired(shards: Sequence[Shard], places: Mapping[str, ShardPlace], oldest_ms: int) -> dict[str, int]:
    """Return the shards of which unread records may be gone, each with the time from which on they may be.

    The stream keeps records that came at `oldest_ms` or later. A shard that is listed no more has nothing that is left.
    One that waits for its parents begins after their end, so it has come as far as they have.
    """
    reached: dict[str, int] = {}
    for shard in _parents_first(shards, {shard.name: shard for shard in shards}):
        if shard.name in places:
            earlier = [reached[name] for name in shard.parents if name in reached]
            reached[shard.name] = max(places[shard.name].reached_ms, min(earlier, default=0))
    return {
        name: reached.get(name, place.reached_ms)
        for name, place in places.items()
        if not place.ended and reached.get(name, -1) < oldest_ms
    }
