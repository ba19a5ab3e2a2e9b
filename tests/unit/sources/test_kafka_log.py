"""Positions of a Kafka topic: limits, splits and their JSON form. The brokers' answers are simulated."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.bindings.types import RECORDS_PER_BATCH, KafkaBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sources import kafka_log
from penstock.sources.base import MISSING, Split
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.offset_fields import PLANNED, offsets_by_topic
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics

ends = st.dictionaries(
    st.integers(0, 20).map("{:05d}".format),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    min_size=1,
)


KNOWN = KnownTopics(Path(), PartitionNames("t"))


def log(limit: int = RECORDS_PER_BATCH) -> KafkaLog:
    return KafkaLog(KafkaBinding("numbers", "kafka://h:1/t", "h:1", "t"), {}, KNOWN, limit)


@examples(100)
@given(ends, st.integers(1, 10**6))
def test_a_limited_position_is_on_the_way(found: dict[str, tuple[int, int]], limit: int) -> None:
    """No partition goes back, each with records to read advances, and repeated steps reach the end."""
    start = {number: at for number, (at, _) in found.items()}
    end = {number: at + more for number, (at, more) in found.items()}
    one = log(limit)
    frozen = log(limit)
    frozen._frozen = end
    reached = frozen.latest(start, limited=True)
    for number in start:
        assert start[number] <= reached[number] <= end[number]
        assert reached[number] > start[number] or end[number] == start[number]
    total = sum(reached.values()) - sum(start.values())
    assert total <= limit + len(start)
    assert frozen.latest(start, limited=False) == end
    assert one.decode(one.encode(reached)) == reached


def test_the_first_micro_batches_of_a_backlog_are_small() -> None:
    """First outputs come soon; later micro-batches grow to the limit. A small backlog is read at once."""
    one = dataclasses.replace(log(), starts_small=True)
    one._frozen = {"00000": 3_000_000, "00001": 3_000_000}
    position = {"00000": 0, "00001": 0}
    sizes = []
    while position != one._frozen:
        reached = one.latest(position, limited=True)
        sizes.append(sum(reached.values()) - sum(position.values()))
        position = dict(reached)
    assert sizes == [100_000, 400_000, 1_600_000, 2_000_000, 1_900_000]
    little = dataclasses.replace(log(), starts_small=True)
    little._frozen = {"00000": 99_999}
    assert little.latest({"00000": 0}, limited=True) == {"00000": 99_999}


def test_what_was_deleted_is_passed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position records the gap, so a replay has the same splits whatever the brokers hold by then; gaps
    use no limit.
    """
    monkeypatch.setattr(kafka_log, "find_begins", lambda *_: {("t", 0): 90, ("t", 1): 5})
    one = log(20)
    one.binding = dataclasses.replace(one.binding, missing="skip")
    one._look = typing.cast("Any", types.SimpleNamespace(admin=None))
    one._frozen = {"00000": 100, "00001": 20, "00002": 7}
    start = {"00000": 10, "00001": 5, "00002": 7}
    reached = one.latest(start, limited=True)
    assert 90 < reached["00000"] <= 100
    assert 5 < reached["00001"] < 20
    stored = json.loads(json.dumps({**one.encode(reached), PLANNED: 1}))
    assert stored["@first"] == {"t": {"0": 90}}
    assert offsets_by_topic(stored) == {"t": stored["t"]}
    again = log()
    splits = again.splits(again.decode(one.encode(start)), again.decode(stored), 1)
    assert splits == [
        Split("00000", MISSING, 10, 90),
        Split("00000", "", 90, reached["00000"]),
        Split("00001", "", 5, reached["00001"]),
    ]
    (chunk,) = again.read(splits[:1], record_type("n INT"))
    assert chunk.bad[0].reason.startswith(
        "The offsets 10 to 89 of partition 0 of the topic 't' are missing (up to 80"
    )
    assert "@first" not in one.encode(one.latest(again.decode(stored), limited=False))


def test_an_interval_with_a_gap_is_read_again_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repeat follows the order of the readings, and does not ask the brokers for deleted records."""
    seen: list[Any] = []
    reader = types.SimpleNamespace(read=lambda ranges: iter([seen.append(dict(ranges))]))
    monkeypatch.setattr(KafkaLog, "reader", lambda _: reader)
    splits = [
        Split("00000", "", 0, 5),
        Split("00000", "", 5, 8),
        Split("00000", MISSING, 8, 20),
        Split("00000", "", 20, 30),
        Split("00001", "", 2, 4),
    ]
    found = list(log().read(splits, record_type("n INT")))
    assert seen == [{"00000": (0, 8)}, {"00000": (20, 30), "00001": (2, 4)}]
    assert [chunk.bad[0].offset for chunk in found if chunk is not None] == [8]


def test_a_plan_waits_while_no_broker_tells_where_a_partition_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """No new records are reported then; a bounded run fails instead, since it would end."""

    def away(*_: Any) -> None:
        raise ExternalSystemError("away")

    monkeypatch.setattr(kafka_log, "find_begins", away)
    monkeypatch.setattr(KafkaLog, "_ends", lambda _: {"00000": 5})
    one = log()
    one.binding = dataclasses.replace(one.binding, missing="skip")
    one._look = typing.cast("Any", types.SimpleNamespace(admin=None))
    assert one.latest({"00000": 1}, limited=True) == {"00000": 1}
    one._frozen = {"00000": 5}
    with pytest.raises(ExternalSystemError):
        one.latest({"00000": 1}, limited=True)


@examples(100)
@given(ends, st.integers(1, 8))
def test_splits_tile_what_lies_between(found: dict[str, tuple[int, int]], parallelism: int) -> None:
    """Splits are in order, without gap or overlap, and about as many as there are tasks."""
    start = {number: at for number, (at, _) in found.items()}
    end = {number: at + more for number, (at, more) in found.items()}
    splits = log().splits(start, end, parallelism)
    assert [split.partition for split in splits] == sorted(split.partition for split in splits)
    for name, parts in itertools.groupby(splits, lambda split: split.partition):
        tiles = list(parts)
        assert (tiles[0].start, tiles[-1].end) == (start[name], end[name])
        assert all(before.end == after.start for before, after in itertools.pairwise(tiles))
        assert all(tile.start < tile.end for tile in tiles)
    assert len(splits) <= parallelism + len(found)


def test_a_partition_that_went_back_is_not_read() -> None:
    """Topics that lost records are handled by the identity check."""
    one = log()
    one._frozen = {"00000": 5}
    assert one.latest({"00000": 8}, limited=False) == {"00000": 8}
    assert one.splits({"00000": 8}, {"00000": 8}, 2) == []


def test_a_log_travels_without_its_clients() -> None:
    """Spark's planner and the workers get copies."""
    one = log(9)
    one._frozen = {"00000": 5}
    copy = pickle.loads(pickle.dumps(one))
    assert (copy.limit, copy._frozen, copy._look) == (9, {"00000": 5}, None)


def test_positions_of_another_topic_are_refused() -> None:
    """The error has both names and says what to do."""
    with pytest.raises(
        BindingError, match=r"are of 'other', and the binding names the topic 't'\. Bind the stream"
    ):
        log().decode({"other": {"0": 1}, "planned_ms": 7})
