"""Lag: how many records wait in the source of a stream, and for how long."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.types import KafkaBinding
from penstock.jobs.stream_lags import LagClock, StreamLags, log_waiting, topic_waiting
from penstock.metrics.batch_metrics import Lag
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics
from penstock.sources.topic_lag import PartitionLook, TopicLag, lag_of
from penstock.spark.progress import SourceProgress

KNOWN = KnownTopics(Path(), PartitionNames("rooms"))


def test_what_waits_in_a_topic() -> None:
    """It is summed over partitions, new ones included, and unknown while Spark does not report it."""
    log = KafkaLog(KafkaBinding("rooms", "kafka://h:1/rooms", "h:1", "rooms"), {}, KNOWN)
    told = SourceProgress({"rooms": {"0": 10, "1": 5}, "planned_ms": 7}, {"rooms": {"0": 12, "1": 5, "2": 4}})
    waiting = topic_waiting(log, told)
    assert waiting is not None
    assert (waiting.lag, waiting.position, waiting.end) == (Lag(records=6), 15, 21)
    as_text = SourceProgress('{"rooms": {"0": 10}}', '{"rooms": {"0": 11}}')
    assert topic_waiting(log, as_text) == (Lag(records=1), 10, 11)
    assert topic_waiting(log, SourceProgress({"rooms": {"0": 1}}, None)) is None


def test_what_waits_in_a_log() -> None:
    """It is in the unit of the log's positions: files of a folder, bytes of a journal. Starts report none."""
    found: dict[str, Any] = {"files": 3, "bytes": 70}
    log: Any = SimpleNamespace(lag=lambda position: found, decode=lambda offset: offset["position"])
    assert log_waiting(log, SourceProgress({"position": 4})) == (Lag(files=3, bytes=70), 4, 7)
    found = {"bytes": 70}
    assert log_waiting(log, SourceProgress('{"position": 4}')) == (Lag(bytes=70), 4, 74)
    assert log_waiting(log, SourceProgress()) is None
    found = {}
    assert log_waiting(log, SourceProgress({"position": 4})) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40))
def test_the_lag_clock_tells_how_long_the_oldest_waits(steps: list[tuple[int, int]]) -> None:
    """The result equals that of known arrival times; records from before the start count from the start."""
    clock = LagClock()
    came: list[int] = []
    position = 0
    for now, (more, read) in enumerate(steps):
        came += [now] * more
        position = min(len(came), position + read)
        clock.see(now, len(came))
        expected = now - came[position] if position < len(came) else 0
        assert clock.waited_s(now, position) == expected


def test_the_lag_clock_is_bounded() -> None:
    """When it has too many observations it drops every second one; the error is a small part of the whole time."""
    clock = LagClock()
    for now in range(10_000):
        clock.see(now, now + 1)
    assert len(clock._looks) <= 512
    assert clock.waited_s(10_000, 0) == 10_000
    assert 4_900 <= clock.waited_s(10_000, 5_000) <= 5_000
    clock.see(20_000, 20_001)
    assert clock.waited_s(20_001, 20_000) == 1


def rooms_lag(lags: StreamLags, at: dict[str, int], latest: dict[str, int], planned_s: float) -> Lag:
    """Return the lag of a topic after a micro-batch."""
    log = KafkaLog(KafkaBinding("rooms", "kafka://h:1/rooms", "h:1", "rooms"), {}, KNOWN)
    source: Any = SimpleNamespace(node=SimpleNamespace(name="rooms"), log=log)
    return lags.find([source], [SourceProgress({"rooms": at}, {"rooms": latest})], planned_s)["rooms"]


def test_what_was_there_at_the_start_is_as_old_as_its_neighbours() -> None:
    """The run did not see them arrive, but has read records that are a little older."""
    now_s = time.time()
    lags = StreamLags()
    lags.see_times({"rooms": {"00000": int((now_s - 600) * 1000), "00001": int((now_s - 5) * 1000)}})
    found = rooms_lag(lags, {"0": 10, "1": 10}, {"0": 100, "1": 10}, now_s)
    assert found.records == 90
    assert found.seconds == pytest.approx(600, abs=5)
    # New records count from their arrival, however old the newest record before them is.
    lags.see_times({"rooms": {"00000": int((now_s - 500) * 1000)}})
    assert rooms_lag(lags, {"0": 100, "1": 10}, {"0": 103, "1": 10}, now_s - 2).seconds == pytest.approx(
        2, abs=2
    )
    assert rooms_lag(lags, {"0": 103, "1": 10}, {"0": 103, "1": 10}, now_s).seconds == 0


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([], TopicLag(0, 0)),
        # The broker has said that there are no more records; the remaining offsets are transaction markers.
        ([PartitionLook(5, 5, 7, 900, 500)], TopicLag(0, 0)),
        ([PartitionLook(5, 3, 9, 100, 400)], TopicLag(4, 600)),
        # The first record after an idle hour.
        ([PartitionLook(5, 4, 6, 990, 400)], TopicLag(1, 10)),
        ([PartitionLook(5, -1, 9, None, 400), PartitionLook(1, -1, 2, None, 200)], TopicLag(5, 800)),
        ([PartitionLook(0, -1, 9, None, None), PartitionLook(1, -1, 2, None, 200)], TopicLag(10, None)),
        ([PartitionLook(3, -1, -1001, None, None)], TopicLag(0, 0)),
    ],
)
def test_what_a_reader_that_follows_a_topic_has_not_read(
    looks: list[PartitionLook], expected: TopicLag
) -> None:
    """It is newer than the last record read, and than the moment when the reader had caught up."""
    assert lag_of(looks, 1000) == expected
