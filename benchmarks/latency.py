"""Latency: the time from producing a reading to Kafka to consuming its command, at a steady low rate.

Readings are produced at 200 a second, and each causes a command (`benchmarks/probe.py`). The job runs with the defaults
of `penstock run`; with `--checkpoint-interval 5s` it runs in real time. `benchmarks/peers` has the same beside Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.command import option, run_command
from benchmarks.probe import Probe, Trips, percentiles, probe_rooms
from benchmarks.processes import EXAMPLE
from benchmarks.report import note, print_table
from benchmarks.running import RunningJob
from benchmarks.topics import Topics, broker_or_own, load_settings
from benchmarks.workload import Rooms
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Sizes", "main", "measure"]

_RECURRENCE_S: Final = 60


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
        return probe_rooms(self.rate_per_s * _RECURRENCE_S)


def measure(sizes: Sizes, work: Path, *, broker: KafkaBroker | None = None) -> dict[str, Any]:
    """Start the job, produce readings, and measure the latencies, on the given broker or a new one.

    Topics are named after the folder.
    """
    with broker_or_own(broker) as kafka:
        topics = Topics.named(kafka, work.name)
        topics.create(kafka, sizes.partitions)
        load_settings(kafka, topics.settings, sizes.rooms)
        job = _run_job(kafka, sizes, work)
        try:
            with Probe(kafka, topics.readings, topics.heaters, sizes.rooms, sizes.partitions) as probe:
                trips = _measure(probe, sizes, job.check)
        finally:
            account = job.end()
        return _result(sizes, trips, account)


def _measure(probe: Probe, sizes: Sizes, check: Callable[[], None]) -> Trips:
    """Send the readings of the warm-up and those that count."""
    probe.await_job(sizes.settled_s, check)
    note("the job answers; warming up")
    probe.send(sizes.warm_up, sizes.rate_per_s, check)
    note("measuring")
    probe.send(sizes.records, sizes.rate_per_s, check)
    probe.await_answers()
    return probe.trips(sizes.warm_up, probe.sent)


def _run_job(broker: KafkaBroker, sizes: Sizes, work: Path) -> RunningJob:
    topics = f"kafka://{broker.bootstrap}/{work.name}"
    bindings = {
        "readings": f"{topics}-readings?format=protobuf",
        "settings": f"{topics}-settings?format=protobuf",
        "heaters": f"{topics}-heaters?format=protobuf&delivery={sizes.delivery}",
    }
    options = ["--checkpoint-interval", sizes.checkpoint_interval]
    options += [word for setting in sizes.spark for word in ("--spark", setting)]
    return RunningJob(work, bindings, options, job=EXAMPLE / sizes.job)


def _result(sizes: Sizes, trips: Trips, run: dict[str, Any]) -> dict[str, Any]:
    triggers = [batch["ms"]["triggerExecution"] for batch in run["batches"][-30:]]
    phases = {
        name: float(np.median([batch["ms"].get(name, 0) for batch in run["batches"][-30:]]))
        for name in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    }
    return {
        **percentiles(trips.latency_ms),
        "records": trips.readings,
        "unanswered": trips.unanswered,
        "wrong": trips.wrong,
        "repeated": trips.repeated,
        "rate_per_s": sizes.rate_per_s,
        "delivery": sizes.delivery,
        "batch_ms": float(np.median(triggers)),
        "phases_ms": phases,
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    names = ("p50", "p95", "p99", "max")
    columns = [f"{name} ms" for name in names]
    rows = [[f"{result[f'{name}_ms']:.1f}" for name in names]]
    print_table(f"Latency: {result['records']:,} records at {result['rate_per_s']} a second", columns, rows)
    spent = ", ".join(f"{name} {value:.0f}" for name, value in result["phases_ms"].items())
    print(f"A micro-batch takes {result['batch_ms']:.0f} ms ({spent}).")


def main() -> None:
    """Measure, print a table, and with --json the result as the last line."""
    result = run_command(Sizes, measure, show)
    if result["unanswered"] or result["wrong"] or result["repeated"]:
        raise SystemExit("Not every reading had one command.")


if __name__ == "__main__":
    main()
