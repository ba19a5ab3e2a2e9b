"""Latency: the time from producing a reading to Kafka to consuming its command, at a steady low rate.

Readings are produced at 200 a second, and each causes a command: every sensor is too warm and too cold in turn. A
reading's latency is the time at which a consumer has its command minus the time at which it was produced, on one
clock; the same by the broker's clock is reported next to it. The job runs with the defaults of `penstock run`.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message

from benchmarks.command import option, run_command
from benchmarks.processes import EXAMPLE, end_session, python_process, result_of
from benchmarks.report import Column, print_table
from benchmarks.topics import (
    broker_or_own,
    consumer,
    create_topic,
    load_settings,
    producer,
    reading_message,
    sensor_and_code,
)
from benchmarks.workload import Rooms
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Sizes", "main", "measure"]

_PATIENCE_S: Final = 180.0
_RECURRENCE_S: Final = 60
_LAST_ANSWERS_S: Final = 30.0


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement: the number of records, their rate, and the warm-up records before them.

    Warm-up begins once a command has arrived within `settled_s` of its reading, so that the job has processed the
    records that waited while it started.
    """

    records: int = 3_000
    warm_up: int = option(3_000, "readings before those that count")
    rate_per_s: int = 200
    settled_s: float = 5.0
    partitions: int = 4
    delivery: str = option("at-least-once", choices=("at-least-once", "exactly-once"))
    checkpoint_interval: str = option("0s", "the interval of real time; 0s: micro-batches")
    job: str = option("job.py", "which job of the example", choices=("job.py", "vectorised.py"))
    spark: Sequence[str] = option((), "further Spark settings, NAME=VALUE")

    @property
    def rooms(self) -> Rooms:
        """The number of rooms: enough that a sensor recurs only long after its last command has arrived."""
        return Rooms(self.rate_per_s * _RECURRENCE_S, 0.45)


@dataclass
class _Trip:
    """A reading and its command, with the times at which each was sent or taken, in seconds."""

    produced: float = 0.0
    appended_in: float = 0.0
    appended_out: float = 0.0
    received: float = 0.0
    commands: int = 0


class _Traffic:
    """Traffic that produces readings at a steady rate and matches the returned commands."""

    def __init__(self, broker: KafkaBroker, topics: str, sizes: Sizes) -> None:
        self._broker = broker
        self._topics = topics
        self._sizes = sizes
        self._lock = threading.Lock()
        self._newest: dict[int, _Trip] = {}
        self._ended = threading.Event()
        self.settled = threading.Event()
        self.trips: list[_Trip] = []

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        """Produce readings and take commands within the block."""
        threads = [threading.Thread(target=target, daemon=True) for target in (self._produce, self._consume)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _produce(self) -> None:
        sizes = self._sizes
        # Send as soon as possible: a lingering producer would add to the latency.
        client = producer(self._broker, **{"linger.ms": 0})
        topic = f"{self._topics}-readings"
        rounds = 0
        readings = sizes.rooms.alternating(2)
        pairs = list(zip(readings.sensor_id.tolist(), readings.temperature.tolist(), strict=True))
        start = time.monotonic()
        while not self._ended.is_set():
            sensor, temperature = pairs[rounds % len(pairs)]
            trip = _Trip()
            with self._lock:
                self._newest[sensor] = trip
                self.trips.append(trip)
            value = reading_message(sensor, temperature)
            trip.produced = time.time()
            delivered = functools.partial(_note_append, trip)
            client.produce(topic, value, str(sensor), sensor % sizes.partitions, on_delivery=delivered)
            rounds += 1
            ahead = start + rounds / sizes.rate_per_s - time.monotonic()
            client.poll(max(0.0, ahead))
            time.sleep(max(0.0, start + rounds / sizes.rate_per_s - time.monotonic()))
        client.flush(10)

    def _consume(self) -> None:
        client = consumer(self._broker, f"{self._topics}-heaters")
        while not self._ended.is_set():
            message = client.poll(0.1)
            if message is not None and message.error() is None:
                self._take(message, time.time())
        client.close()

    def _take(self, message: Message, now: float) -> None:
        sensor, _ = sensor_and_code(message)
        with self._lock:
            trip = self._newest[sensor]
        trip.received = now
        trip.appended_out = message.timestamp()[1] / 1000
        trip.commands += 1
        if now - trip.produced < self._sizes.settled_s:
            self.settled.set()


def _note_append(trip: _Trip, error: KafkaError | None, message: Message) -> None:
    """Record whether the broker has taken a reading."""
    if error is not None:
        raise KafkaException(error)
    trip.appended_in = message.timestamp()[1] / 1000


def measure(sizes: Sizes, work: Path, *, broker: KafkaBroker | None = None) -> dict[str, Any]:
    """Start the job, produce readings, and measure the latencies, on the given broker or a new one.

    Topics are named after the folder.
    """
    with broker_or_own(broker) as kafka:
        create_topic(kafka, f"{work.name}-settings", 1)
        create_topic(kafka, f"{work.name}-readings", sizes.partitions)
        create_topic(kafka, f"{work.name}-heaters", sizes.partitions)
        load_settings(kafka, f"{work.name}-settings", sizes.rooms)
        traffic = _Traffic(kafka, work.name, sizes)
        log = work / "stderr.log"
        job = python_process("benchmarks.run_job", _job_arguments(kafka, sizes, work), log)
        try:
            with traffic.flowing():
                begin = _after_warm_up(traffic, job, sizes, log)
                _wait(traffic, job, begin + sizes.records, log)
                trips = traffic.trips[begin : begin + sizes.records]
                _await_answers(trips)
            job.send_signal(signal.SIGINT)
            output, _ = job.communicate(timeout=_PATIENCE_S)
        finally:
            end_session(job)
        return _result(sizes, trips, result_of(job, output, log))


def _job_arguments(broker: KafkaBroker, sizes: Sizes, work: Path) -> list[str]:
    arguments = [str(EXAMPLE / sizes.job), "--checkpoint", str(work / "checkpoint")]
    topics = f"kafka://{broker.bootstrap}/{work.name}"
    bindings = {
        "readings": f"{topics}-readings?format=protobuf",
        "settings": f"{topics}-settings?format=protobuf",
        "heaters": f"{topics}-heaters?format=protobuf&delivery={sizes.delivery}",
    }
    for name, uri in bindings.items():
        arguments += ["-D", f"{name}={uri}"]
    arguments += ["--checkpoint-interval", sizes.checkpoint_interval]
    for setting in sizes.spark:
        arguments += ["--spark", setting]
    return arguments


def _after_warm_up(traffic: _Traffic, job: subprocess.Popen[str], sizes: Sizes, log: Path) -> int:
    """Wait for the end of the warm-up, and return the number of the first reading that counts."""
    deadline = time.monotonic() + _PATIENCE_S
    while not traffic.settled.wait(0.2):
        if job.poll() is not None:
            result_of(job, "", log)
        if time.monotonic() > deadline:
            raise RuntimeError(f"No command came within {sizes.settled_s:.0f} s of its reading.")
    print("the job answers; warming up", file=sys.stderr, flush=True)
    begin = len(traffic.trips) + sizes.warm_up
    _wait(traffic, job, begin, log)
    print("measuring", file=sys.stderr, flush=True)
    return begin


def _wait(traffic: _Traffic, job: subprocess.Popen[str], count: int, log: Path) -> None:
    """Wait until a number of readings was produced."""
    while len(traffic.trips) < count:
        time.sleep(0.1)
        if job.poll() is not None:
            result_of(job, "", log)
            raise RuntimeError("The job ended while readings flowed.")


def _await_answers(trips: list[_Trip]) -> None:
    """Wait until every reading has its command, or no more commands arrive."""
    deadline = time.monotonic() + _LAST_ANSWERS_S
    while time.monotonic() < deadline and not all(trip.commands for trip in trips):
        time.sleep(0.1)


def _result(sizes: Sizes, trips: list[_Trip], run: dict[str, Any]) -> dict[str, Any]:
    answered = [trip for trip in trips if trip.commands == 1]
    end_to_end = [1000 * (trip.received - trip.produced) for trip in answered]
    by_broker = [1000 * (trip.appended_out - trip.appended_in) for trip in answered]
    triggers = [batch["ms"]["triggerExecution"] for batch in run["batches"][-30:]]
    phases = {
        name: float(np.median([batch["ms"].get(name, 0) for batch in run["batches"][-30:]]))
        for name in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    }
    return {
        **_percentiles("", end_to_end),
        **_percentiles("broker_", by_broker),
        "max_ms": round(max(end_to_end), 1),
        "records": len(trips),
        "unanswered": sum(trip.commands == 0 for trip in trips),
        "answered_twice": sum(trip.commands > 1 for trip in trips),
        "rate_per_s": sizes.rate_per_s,
        "delivery": sizes.delivery,
        "batch_ms": float(np.median(triggers)),
        "phases_ms": phases,
    }


def _percentiles(prefix: str, values: list[float]) -> dict[str, float]:
    return {f"{prefix}p{p}_ms": round(float(np.percentile(values, p)), 1) for p in (50, 95, 99)}


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    columns = [Column("clock", left=True), Column("p50 ms"), Column("p95 ms"), Column("p99 ms")]
    rows = [
        [name, *(f"{result[f'{prefix}p{p}_ms']:.0f}" for p in (50, 95, 99))]
        for name, prefix in (("producer to consumer", ""), ("broker to broker", "broker_"))
    ]
    print_table(f"Latency: {result['records']:,} records at {result['rate_per_s']} a second", columns, rows)
    spent = ", ".join(f"{name} {value:.0f}" for name, value in result["phases_ms"].items())
    print(f"A micro-batch takes {result['batch_ms']:.0f} ms ({spent}).")


def main() -> None:
    """Measure, print a table, and with --json the result as the last line."""
    result = run_command(Sizes, measure, show)
    if result["unanswered"] or result["answered_twice"]:
        raise SystemExit("Not every reading had exactly one command.")


if __name__ == "__main__":
    main()
