"""Which shards may be read when, against a model of a stream that is split and merged at random."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.kinesis.shard_places import Shard, ShardPlace, discovered, expired, readable

KEYS = 16


@dataclass
class PlainShard:
    name: str
    keys: range
    parents: tuple[str, ...] = ()
    records: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False


class PlainStream:
    """A stream in memory: each shard has the numbers of its keys."""

    def __init__(self) -> None:
        self.shards = [PlainShard("s00", range(KEYS))]
        self.trimmed = 0
        self.put_so_far = dict.fromkeys(range(KEYS), 0)

    def open(self) -> list[PlainShard]:
        return sorted((one for one in self.shards if not one.closed), key=lambda one: one.keys.start)

    def put(self, key: int) -> None:
        (shard,) = [one for one in self.open() if key in one.keys]
        shard.records.append((key, self.put_so_far[key]))
        self.put_so_far[key] += 1

    def split(self, choice: int) -> None:
        splittable = [one for one in self.open() if len(one.keys) > 1]
        if not splittable:
            return
        parent = splittable[choice % len(splittable)]
        middle = (parent.keys.start + parent.keys.stop) // 2
        parent.closed = True
        for keys in (range(parent.keys.start, middle), range(middle, parent.keys.stop)):
            self.shards.append(PlainShard(f"s{len(self.shards):02}", keys, (parent.name,)))

    def merge(self, choice: int) -> None:
        there = self.open()
        if len(there) < 2:
            return
        place = choice % (len(there) - 1)
        first, second = there[place], there[place + 1]
        first.closed = second.closed = True
        keys = range(first.keys.start, second.keys.stop)
        self.shards.append(PlainShard(f"s{len(self.shards):02}", keys, (first.name, second.name)))

    def listed(self) -> list[Shard]:
        return [Shard(one.name, one.parents, is_closed=one.closed) for one in self.shards[self.trimmed :]]

    def find(self, name: str) -> PlainShard:
        return next(one for one in self.shards if one.name == name)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "split", "merge", "read", "trim"]), st.integers(0, 999)),
    max_size=80,
)


@given(actions=ACTIONS)
def test_each_record_is_read_once_and_those_of_a_key_in_order(actions: list[tuple[str, int]]) -> None:
    """Deleted shards that were read to their end do not hold up their children."""
    stream = PlainStream()
    places = discovered(stream.listed(), {}, ShardPlace(reached_ms=1))
    read: dict[int, list[int]] = {key: [] for key in range(KEYS)}

    def read_on(choice: int, most: int) -> bool:
        nonlocal places
        places = discovered(stream.listed(), places)
        there = readable(stream.listed(), places)
        if not there:
            return False
        shard = stream.find(there[choice % len(there)].name)
        at = int(places[shard.name].after or 0)
        taken = shard.records[at : at + most]
        for key, number in taken:
            read[key].append(number)
        at += len(taken)
        ended = shard.closed and at == len(shard.records)
        places[shard.name] = ShardPlace(str(at), reached_ms=1, ended=ended)
        return bool(taken) or ended

    for action, choice in actions:
        if action == "put":
            stream.put(choice % KEYS)
        elif action == "split":
            stream.split(choice)
        elif action == "merge":
            stream.merge(choice)
        elif action == "read":
            read_on(choice, 1 + choice % 3)
        else:
            # Retention deletes the oldest shards once they are read.
            first = stream.shards[stream.trimmed].name
            if stream.trimmed < len(stream.shards) - 1 and places.get(first, ShardPlace()).ended:
                stream.trimmed += 1
        assert not expired(stream.listed(), places, 0)
    while any(read_on(choice, 1000) for choice in range(len(stream.shards))):
        pass
    assert read == {key: list(range(count)) for key, count in stream.put_so_far.items()}


def test_what_may_be_lost() -> None:
    """Records may be lost in a shard not read up to the retention limit, and in one deleted before its end."""
    shards = [Shard("b"), Shard("c", ("gone",))]
    places = {"a": ShardPlace("7", reached_ms=50), "b": ShardPlace("8", reached_ms=90)}
    found = discovered(shards, {**places, "over": ShardPlace(ended=True)})
    # The age of the new shard's content is unknown, but not older than the oldest position.
    assert found == {**places, "c": ShardPlace(reached_ms=0)}
    assert expired(shards, found, 60) == {"a": 50, "c": 0}


def test_a_child_has_been_reached_no_further_than_its_parents() -> None:
    shards = [Shard("a"), Shard("b"), Shard("c", ("a", "b")), Shard("d", ("c",))]
    places = {
        "a": ShardPlace("7", reached_ms=50, ended=True),
        "b": ShardPlace("8", reached_ms=40, ended=True),
    }
    found = discovered(shards, places)
    assert (found["c"].reached_ms, found["d"].reached_ms) == (40, 40)
    assert [shard.name for shard in readable(shards, found)] == ["c"]


def test_a_shard_that_waits_for_its_parents_loses_nothing() -> None:
    """This holds however long reading them takes, and right after their end; the shard's time was noted when
    it was found.
    """
    shards = [Shard("a"), Shard("b"), Shard("c", ("a", "b")), Shard("d", ("c",))]
    waiting = {name: ShardPlace(reached_ms=10) for name in "cd"}
    for ended in (False, True):
        parents = {"a": ShardPlace("7", reached_ms=80, ended=ended), "b": ShardPlace("8", reached_ms=70)}
        assert expired(shards, {**parents, **waiting}, 60) == {}
        found = expired(shards, {**parents, **waiting}, 75)
        assert found == {"b": 70, "c": 70, "d": 70}
