"""Single readings: the processor time of rounds of one record in real time, without Spark and a broker.

One thread does the work of all threads of an engine, one reading after the other: messages to columns, decoding, key
and packing; the round of the step; encoding and handing the commands to a producer. The broker is part of librdkafka,
in threads of its own, whose time does not count. Other work of the machine hardly changes these times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from benchmarks.command import option, run_command
from benchmarks.processes import EXAMPLE
from benchmarks.report import print_facts
from benchmarks.wire import decode_commands, reading_messages, setting_message
from benchmarks.workload import Commands, Readings, Rooms, expected_commands, mismatch
from penstock.bindings.types import KafkaBinding
from penstock.jobs.job_loader import load_job
from penstock.realtime.exchange import Exchange
from penstock.realtime.inbox import Inbox
from penstock.realtime.intake import Intake
from penstock.realtime.interval_meter import IntervalMeter
from penstock.realtime.messages import now_ms
from penstock.realtime.slot_rounds import RoundLinks, SlotRounds
from penstock.realtime.slot_turns import SlotTurns
from penstock.records.wire_formats import format_of
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.writer import Writer, WriterTask
from penstock.sinks.kafka_sink import KafkaSink
from penstock.sources.chunk_times import times_of
from penstock.sources.gathered_messages import GatheredMessages, WantedParts
from penstock.state.kept_slots import SlotCache
from penstock.streams.graph import SinkNode, SourceNode
from penstock.testing.memory_entries import MemoryStates

__all__ = ["Sizes", "measure"]

_SHARE: Final = 0.45
# So many times nothing is measured; the first brings the settings.
_WARM_UP: Final = 100
_PARTITION: Final = "00000"


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement."""

    readings: int = 20_000
    sensors: int = option(5, "how many sensors send readings in turn")
    at_once: int = option(1, "how many readings come at once")
    pause_ms: float = option(0.0, "how long nothing comes before each, as when 30 come in a second: 33")


class _Encoder:
    """The format of the commands; it keeps what it has encoded."""

    def __init__(self, node: SinkNode) -> None:
        assert node.protobuf is not None
        self._format: Final = format_of("protobuf", node.record_type, protobuf=node.protobuf)
        self.made: Final[list[pa.Array]] = []

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        self.made.append(self._format.encode(batch))
        return self.made[-1]


class _Fed(Inbox):
    """An inbox that reads what comes next when the slot has nothing to do."""

    def __init__(self, intake: Intake, feed: Callable[[], None]) -> None:
        super().__init__(intake, 0)
        self._feed: Final = feed

    def await_any(self, timeout_s: float | None, *, until_woken: bool) -> bool:
        self._feed()
        return super().await_any(timeout_s, until_woken=until_woken)


class _Feeds:
    """What comes of the streams: all settings, then the readings.

    From the first reading after the warm-up on, `begun_s` is when it came and `spent_s` how long reading has taken, as
    processor time.
    """

    def __init__(
        self, plan: JobPlan, steps: list[tuple[str, list[Message]]], warm_up: int, pause_ms: float
    ) -> None:
        sources = {node.name: node for node in plan.graph.sources()}
        self._readers: Final = {name: _reader(plan, node) for name, node in sources.items()}
        self.names: Final = sorted(sources)
        self._steps: Final = iter(steps)
        self._warm_up = warm_up
        self._pause_s: Final = pause_ms / 1000
        self._is_over = False
        self.exchange: Exchange | None = None
        self.begun_s = self.spent_s = 0.0

    def feed(self) -> None:
        """Read what comes next."""
        self._warm_up -= 1
        if self._warm_up < 0 and self._pause_s:
            time.sleep(self._pause_s)
        begun_s = time.thread_time()
        if self._warm_up == -1:
            self.begun_s, self.spent_s = begun_s, 0.0
        assert self.exchange is not None
        stream, messages = next(self._steps, ("", []))
        if messages:
            self._read(self.exchange, stream, messages)
        elif not self._is_over:
            self._is_over = True
            for name in self.names:
                self.exchange.end_read(name, 0)
        self.spent_s += time.thread_time() - begun_s

    def _read(self, exchange: Exchange, stream: str, messages: list[Message]) -> None:
        gathered = GatheredMessages(_PARTITION, WantedParts())
        chunks = [*gathered.add(messages), *gathered.rest()]
        at_ms = now_ms()
        rows = self._readers[stream].rows(chunks, at_ms)
        exchange.send_read(stream, 0, rows, times_of(chunks, at_ms))


def _reader(plan: JobPlan, node: SourceNode) -> StreamReader:
    assert node.protobuf is not None
    return StreamReader(plan, node, format_of("protobuf", node.record_type, protobuf=node.protobuf))


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:  # noqa: ARG001  # nothing is written
    """Run the temperature-control job on readings that come alone, and check its commands."""
    rooms = Rooms(sizes.sensors, _SHARE)
    count = sizes.readings + _WARM_UP * sizes.at_once
    readings = rooms.alternating(-(-count // sizes.sensors))
    job = load_job(str(EXAMPLE / "job.py")).job
    names = [node.name for node in job.graph.sources()]
    (sink,) = job.graph.sinks()
    plan = JobPlan(
        job.graph, job.key_groups, frozenset(names), frozenset({sink.name}), strict=False, in_real_time=True
    )
    feeds = _Feeds(plan, list(_steps(rooms, readings, sizes.at_once)), _WARM_UP, sizes.pause_ms)
    encoder = _Encoder(sink)
    # The client starts a broker of its own.
    client = {"test.mock.num.brokers": "1", "allow.auto.create.topics": "true", "linger.ms": "0"}
    binding = KafkaBinding(sink.name, "", "127.0.0.1:9", sink.name, client=client)
    writer = Writer(
        plan, {sink.name: (KafkaSink(binding, encoder), sink.record_type, plan.sink_schema(sink))}, "single"
    )
    intake = Intake(plan.waiting_bytes)
    inbox = _Fed(intake, feeds.feed)
    with _exchange(plan, inbox) as exchange:
        feeds.exchange = exchange
        links = RoundLinks(exchange.send_emitted, exchange.end_level, lambda _: None)
        rounds = SlotRounds(plan, 0, feeds.names, inbox, intake, links, SlotCache())
        meter = IntervalMeter(writer, 0)
        (slot,) = plan.slot_of.values()
        rounds.open(0, MemoryStates({}, 0), slot, meter, wakes=False)
        task = WriterTask(writer, 0, 0, 0, meter)
        SlotTurns(rounds, inbox, is_alone=True).live(iter(()), task.write)
        whole_s = time.thread_time() - feeds.begun_s
        begun_s = time.thread_time()
        task.write(row for row in rounds.cut(goes_on=False) if row is not None)
        stored_s = time.thread_time() - begun_s
        task.finish()
    commands = _commands(encoder.made)
    if differs := mismatch(commands, expected_commands(rooms, [readings])):
        raise SystemExit(f"The commands differ from the fold: {differs}")
    measured = len(readings) - (_WARM_UP - 1) * sizes.at_once
    each = 1e6 / measured
    return {
        "readings": measured,
        "storing_ms": 1e3 * stored_s,
        "us": {
            "all": whole_s * each,
            "reading": feeds.spent_s * each,
            "rounds and sinks": (whole_s - feeds.spent_s) * each,
        },
    }


@contextmanager
def _exchange(plan: JobPlan, inbox: Inbox) -> Iterator[Exchange]:
    exchange = Exchange(plan, 0, inbox, "127.0.0.1", "secret")
    try:
        yield exchange
    finally:
        exchange.close()


def _steps(rooms: Rooms, readings: Readings, at_once: int) -> Iterator[tuple[str, list[Message]]]:
    """Yield what comes at once: all settings, then readings."""
    settings = [setting_message(i, desired, rooms.delta) for i, desired in enumerate(rooms.desired)]
    yield "settings", _messages("settings", settings, 0)
    values = reading_messages(readings.sensor_id.tolist(), readings.temperature)
    for begin in range(0, len(values), at_once):
        yield "readings", _messages("readings", values[begin : begin + at_once], begin)


def _messages(topic: str, values: list[bytes], first: int) -> list[Message]:
    timestamp = (1, now_ms())
    return [
        Message(topic=topic, partition=0, offset=first + i, key=None, value=value, timestamp=timestamp)
        for i, value in enumerate(values)
    ]


def _commands(made: list[pa.Array]) -> Commands:
    return Commands.in_order(*decode_commands([value for batch in made for value in batch.to_pylist()]))


def _show(found: dict[str, Any]) -> None:
    facts = {name: f"{us:,.1f} us" for name, us in found["us"].items()}
    facts["storing the state at the end, once"] = f"{found['storing_ms']:,.0f} ms"
    print_facts(f"{found['readings']:,} readings: processor time of each", facts)


if __name__ == "__main__":
    run_command(Sizes, measure, _show)
