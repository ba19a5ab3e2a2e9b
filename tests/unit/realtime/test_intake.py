"""Intake: a fast slot may queue much input, a slow one little."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from penstock.machine.limits import Cores
from penstock.realtime.intake import Intake
from penstock.realtime.stream_feeds import FollowedTopics, pause_of
from penstock.sources.base import SourceChunk, Split
from penstock.sources.kafka_log import KafkaLog

MAX = 32 << 20


def test_a_slot_may_have_waiting_what_it_does_in_a_second() -> None:
    """The limit is a second's work, within bounds, and recent rounds count, not old ones."""
    intake = Intake(MAX)
    assert intake.waiting_bytes == 1 << 20
    for _ in range(20):
        intake.note(10 << 20, 0.1)
    assert intake.waiting_bytes == MAX
    for _ in range(20):
        intake.note(1 << 20, 0.5)
    assert abs(intake.waiting_bytes - (2 << 20)) < 10_000
    for _ in range(20):
        intake.note(1000, 1.0)
    assert intake.waiting_bytes == 256 << 10


def test_rounds_without_data_say_nothing() -> None:
    """Rounds of timers and commands are not measured, nor are rounds too short to measure."""
    intake = Intake(MAX)
    intake.note(0, 5.0)
    intake.note(10, 0.0001)
    assert intake.waiting_bytes == 1 << 20
    assert Intake(500).waiting_bytes == 500


class SlowTopic:
    """A log and its reader: each take returns as many 2,000-byte records as requested."""

    positions: ClassVar[dict[str, int]] = {"00000": 0}
    known_ends: ClassVar[dict[str, int]] = {"00000": 0}

    def __init__(self) -> None:
        self.asked: list[int] = []

    def follower(self, pause_ms: int) -> SlowTopic:
        return self

    def follow(self, starts: Any) -> None:
        pass

    def take(self, timeout_s: float, most: int) -> list[tuple[Split, SourceChunk]]:
        self.asked.append(most)
        raw = pa.array([b"x" * 2000] * most, pa.binary())
        chunk = SourceChunk("00000", pa.array(range(most), pa.int64()), raw=raw)
        return [(Split("00000", "", 0, most), chunk)]


def test_a_topic_is_read_no_faster_than_its_slot_works() -> None:
    """The reader takes half a second's work at a time, so that little is queued when the interval ends."""
    intake, log = Intake(MAX), SlowTopic()
    topic = FollowedTopics(cast("KafkaLog", log), {"00000": 0}, None, None, intake)
    topic.next()
    for _ in range(10):
        intake.note(1 << 20, 1.0)
        topic.next()
    assert abs(log.asked[-1] * 2000 - (512 << 10)) < 20_000
    for _ in range(20):
        intake.note(100 << 20, 1.0)
    topic.next()
    assert log.asked[-1] * 2000 > 15 << 20


@pytest.mark.parametrize(
    ("slots", "usable", "pause_ms"),
    [
        (1, Cores(2), 2),
        (2, Cores(2), 4),
        (4, Cores(8), 2),
        (4, Cores(8, 7.5), 4),
        (1, Cores(1), 4),
        (1, Cores(8, 2.0), 2),
    ],
)
def test_a_reader_asks_sooner_where_each_slot_has_two_cores(slots: int, usable: Cores, pause_ms: int) -> None:
    assert pause_of(slots, usable) == pause_ms
