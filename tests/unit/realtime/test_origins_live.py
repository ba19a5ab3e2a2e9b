"""Origins in real time: output that is written again after a crash has the same origins as before."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from live_runner import LiveRunner

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, TaskContext
from penstock.sinks.message_parts import ORIGIN_HEADER, headers_of
from penstock.streams.graph import COMMANDS
from penstock.testing.memory_sinks import MemorySink


@dataclass
class Reading:
    sensor: int
    value: int


@dataclass
class Alert:
    sensor: int
    value: int
    total: int


class Sum(ps.ProcessFunction):
    """Emits the sum of a sensor: twice for odd values, not at all for zeros."""

    side_outputs = {"large": Alert}
    total = ps.ValueState(int)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Alert]:
        total = (self.total.get() or 0) + record.value
        self.total.set(total)
        if record.value > 7:
            ctx.side_output("large", Alert(record.sensor, record.value, total))
        for number in range(0 if not record.value else 1 + record.value % 2):
            yield Alert(record.sensor, number, total)

    @ps.on_command("add")
    def add(self, amount: int, ctx: ps.CommandContext) -> Iterator[Alert]:
        self.total.set((self.total.get() or 0) + amount)
        yield Alert(ctx.key, -1, self.total.get() or 0)


class Columns(ps.ProcessFunction):
    """Emits values: odd ones twice, zeros not at all; a batch with a five fails until the five stands alone."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        values = np.asarray(records.column("value"))
        if 5 in values:
            raise ValueError("five")
        rows = np.repeat(np.arange(len(values)), times_emitted(values))
        columns = [records.column(name).take(pa.array(rows)) for name in ("sensor", "value", "value")]
        return pa.RecordBatch.from_arrays(columns, names=["sensor", "value", "total"]), rows


def times_emitted(values: Any) -> Any:
    return np.where(values == 0, 0, 1 + values % 2)


def twice(reading: Reading) -> list[Reading]:
    """Return records with the same offset: one sensor twice, and another in between."""
    return [reading, Reading(reading.sensor + 100, reading.value), reading]


def sums_job(function: ps.ProcessFunction) -> ps.Job:
    job = ps.Job("sums", key_groups=16)
    readings = job.data_stream("readings", schema=Reading).flat_map(twice, output=Reading)
    sums = readings.key_by("sensor").process("sum", function, output=Alert)
    sums.flat_map(lambda one: [one, replace(one, total=-one.total)], output=Alert).sink_to("alerts")
    if isinstance(function, Sum):
        sums.side_output("large").sink_to("large")
    return job


def fold(readings: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the expected numbers and sums of each sensor, as `Sum` emits them."""
    totals: dict[int, int] = {}
    found: dict[int, list[tuple[int, int]]] = {}
    for sensor, value in readings:
        for one in (sensor, sensor + 100, sensor):
            totals[one] = totals.get(one, 0) + value
            for number in range(times_emitted(value)):
                found.setdefault(one, []).extend([(number, totals[one]), (number, -totals[one])])
    return found


def fold_of_columns(readings: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the expected output of each sensor, as `Columns` emits it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for sensor, value in readings:
        for one in (sensor, sensor + 100, sensor):
            for _ in range(0 if value == 5 else times_emitted(value)):
                found.setdefault(one, []).extend([(value, value), (value, -value)])
    return found


class Topic(MemorySink):
    """Receives every message with its origin as soon as a task writes it, whatever happens to the task."""

    def __init__(self) -> None:
        super().__init__(exactly_once=False)
        binding = parse_binding("alerts", "kafka://h:1/t?origin=true", "sink")
        assert isinstance(binding, KafkaBinding)
        self.binding = binding
        self.messages: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    def task(self, context: TaskContext, record_type: RecordType) -> Any:
        return TopicTask(self, context, record_type)


class TopicTask(RejectingTask):
    """A task's writer that publishes at once."""

    def __init__(self, topic: Topic, context: TaskContext, record_type: RecordType) -> None:
        super().__init__()
        self._topic = topic
        self._kind = record_type
        self.context = context
        self.batches: list[Any] = []

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        headers = headers_of(self._topic.binding, batch, self.context, self._origin)
        origins = [one.decode() for one in headers[ORIGIN_HEADER].to_pylist()]
        with self._topic.lock:
            self._topic.messages += zip(origins, self._kind.objects(batch), strict=True)
        self.batches.append((batch, keys))

    def finish(self) -> bytes:
        self._topic.finished.append(self)  # type: ignore[arg-type]  # it has all that a live runner looks at
        return b""

    def abort(self) -> None:
        """Do nothing: what was written cannot be taken back."""


def runner(job: ps.Job, folder: Path, parallelism: int) -> LiveRunner:
    """Return a runner whose sinks are topics."""
    live = LiveRunner(job, folder, parallelism)
    names = frozenset(node.name for node in job.graph.sinks())
    live.change_plan(keyed_sinks=names, origin_sinks=names)
    for node in job.graph.sinks():
        live.sinks[node.name] = (Topic(), node.record_type, live.plan.sink_schema(node))
    return live


def kept_by_numbers(messages: list[tuple[str, Any]]) -> list[Any]:
    """Return what a reader sees that keeps only the largest number of each place."""
    newest: dict[str, tuple[int, ...]] = {}
    kept = []
    for origin, record in messages:
        place, *found = origin.rsplit("/", 3)
        numbers = tuple(map(int, found))
        if numbers > newest.get(place, (-1, -1, -1)):
            newest[place] = numbers
            kept.append(record)
    return kept


def kept_by_names(messages: list[tuple[str, Any]]) -> list[Any]:
    """Return what a reader sees that drops origins it has seen."""
    known: dict[str, Any] = {}
    for origin, record in messages:
        known.setdefault(origin, record)
    return list(known.values())


def by_sensor(alerts: list[Any]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for one in alerts:
        found.setdefault(one.sensor, []).append((one.value, one.total))
    return found


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 6))]
)
def test_a_reader_leaves_out_what_is_written_again(tmp_path: Path, seed: int) -> None:
    """Whether an interval is repeated, or restarted with other rounds, each expected record is there once."""
    made = random.Random(seed)
    function, expected_of = ((Sum, fold), (Columns, fold_of_columns))[seed % 2]
    live = runner(sums_job(function()), tmp_path, made.randint(1, 3))
    readings: list[tuple[int, int]] = []

    def sending() -> None:
        for _ in range(made.randrange(5, 25)):
            readings.append((made.randrange(9), made.randrange(10)))
            live.send("readings", {"sensor": readings[-1][0], "value": readings[-1][1]})
            if made.random() < 0.4:
                time.sleep(0.002)

    def crash() -> None:
        sending()
        if made.random() < 0.7:
            live.await_read()
        live.lose_task()

    with live:
        for event in [*made.choices(["crash", "repeat", "nothing"], k=5), "crash"]:
            if event == "crash":
                with pytest.raises(ExceptionGroup):
                    live.run(crash)
                live.forget()
            elif event == "repeat":
                live.run(sending, commits=False)
                live.forget()
            live.run(sending)
    messages = live.sinks["alerts"][0].messages
    expected = expected_of(readings)
    assert by_sensor(kept_by_numbers(messages)) == expected
    assert by_sensor(kept_by_names(messages)) == expected
    assert len(messages) > sum(map(len, expected.values())), "nothing was written again"
    large = live.sinks.get("large")
    if large is not None:
        kept = kept_by_numbers(large[0].messages)
        assert len(kept) == 3 * sum(value > 7 for _, value in readings)


def test_what_a_command_emits_is_known_again(tmp_path: Path) -> None:
    """This holds for each key that the command reaches, whichever engine has it."""
    live = runner(sums_job(Sum()), tmp_path, 2)
    with live:
        live.send("readings", *({"sensor": sensor, "value": 2} for sensor in range(9)))
        live.run()

        messages = live.sinks["alerts"][0].messages

        def crash() -> None:
            before = len(messages)
            for number, key in enumerate([None, 3]):
                target = {"step": "sum", **({"all": True} if key is None else {"key": key})}
                command = {"id": f"add {number}", "kind": "add", "target": target, "payload": 4}
                live.send(COMMANDS, json.dumps(command).encode())
            live.await_read()
            live.await_until(lambda: len(messages) > before)
            live.lose_task()

        with pytest.raises(ExceptionGroup):
            live.run(crash)
        live.forget()
        live.run()
    own = [(origin, one) for origin, one in messages if one.value == -1 and one.total > 0]
    assert len(kept_by_names(own)) == 18 + 1
    assert by_sensor(kept_by_numbers(own)) == by_sensor(kept_by_names(own))
    assert len(own) > 19
