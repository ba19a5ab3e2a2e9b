"""Publishing sinks: for how long messages that a broker does not take are published again."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExternalSystemError
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks import patience, publishing_sink
from penstock.sinks.base import TaskContext
from penstock.sinks.publishing_sink import OutgoingMessage, Publisher, PublishingSink

KIND = record_type("n BIGINT")


class FullQueue:
    """A publisher to a queue that has room for some messages each time."""

    def __init__(self, room: int) -> None:
        self.room = room

    def publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        for row in list(waiting)[: self.room]:
            del waiting[row]
        if waiting:
            raise ConnectionError("a queue is full")

    def close(self) -> None:
        """Nothing is open."""


class Sink(PublishingSink):
    def __init__(self, room: int) -> None:
        super().__init__("alerts", "a broker", format_of("json", KIND), tells_origin=False, max_bytes=1 << 20)
        self.room = room

    @property
    def login(self) -> tuple[Any, ...]:
        return (id(self),)

    def open_publisher(self) -> Publisher:
        return FullQueue(self.room)

    def routes(self, batch: pa.RecordBatch) -> Sequence[str]:
        return ["q"] * len(batch)

    def why_without_route(self) -> str:
        return ""

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Nothing is checked."""


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it was rested, by a clock that only rests move."""
    rests: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(rests), sleep=rests.append)
    monkeypatch.setattr(patience, "time", clock)
    return rests


def write(sink: Sink, count: int) -> None:
    task = sink.task(TaskContext(0, 0, 0, "line"), KIND)
    task.write(pa.RecordBatch.from_pylist([{"n": n} for n in range(count)], KIND.schema), None)


def test_a_queue_that_takes_some_each_time_is_waited_for(slept_s: list[float]) -> None:
    """For as long as that takes, though it is full again and again."""
    write(Sink(room=1), 1500)
    assert sum(slept_s) > publishing_sink._PATIENCE_S


def test_a_queue_that_takes_nothing_ends_the_run(slept_s: list[float]) -> None:
    with pytest.raises(ExternalSystemError, match=r"takes no messages \(a queue is full\), for 60 s"):
        write(Sink(room=0), 3)
    assert 60 < sum(slept_s) < 70
