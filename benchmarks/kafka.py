"""Kafka to Kafka: readings per second from a topic through the temperature-control job to a topic.

Settings of all sensors and all readings, as protobuf, are on their topics when the job starts, and 45 % of the readings
cause a command. The rate counts all readings over the time from the first to the last command, by the broker's clock;
the steady rate excludes the first micro-batch, which starts workers and reads the settings. Every committed command is
compared with a fold that applies all settings first.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.batches import batch_ends
from benchmarks.command import option, run_command
from benchmarks.processes import EXAMPLE
from benchmarks.report import note, print_table
from benchmarks.running import run_bounded
from benchmarks.topics import broker_or_own, create_topic, load_readings, load_settings, read_commands
from benchmarks.workload import Commands, Rooms, expected_commands, mismatch
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Sizes", "main", "measure"]

FORMS: Final = {"per_record": "job.py", "vectorised": "vectorised.py"}
DELIVERIES: Final = ("at-least-once", "exactly-once")


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement. Without `batch_records` a micro-batch has penstock's own limit."""

    readings: int = 8_000_000
    sensors: int = 100_000
    partitions: int = 4
    emit_share: float = option(0.45, "commands for each reading")
    cores: int = 2
    batch_records: int | None = option(None, "the most readings in a micro-batch (penstock's default)")
    forms: Sequence[str] = option(tuple(FORMS), "forms of the job", choices=tuple(FORMS))
    deliveries: Sequence[str] = option(DELIVERIES, "how commands are delivered", choices=DELIVERIES)
    spark: Sequence[str] = option((), "further Spark settings, NAME=VALUE")


def measure(sizes: Sizes, work: Path, *, broker: KafkaBroker | None = None) -> dict[str, Any]:
    """Run each form of the job with each delivery, on the given broker or a new one.

    Topics are named after the folder.
    """
    rooms = Rooms(sizes.sensors, sizes.emit_share)
    readings = rooms.readings(sizes.readings, 0)
    expected = expected_commands(rooms, [readings])
    with broker_or_own(broker) as kafka:
        create_topic(kafka, f"{work.name}-settings", 1)
        create_topic(kafka, f"{work.name}-readings", sizes.partitions)
        load_settings(kafka, f"{work.name}-settings", rooms)
        load_readings(kafka, f"{work.name}-readings", sizes.partitions, readings)
        note(f"{sizes.readings:,} readings are on their topic")
        runs = [
            _run(kafka, form, delivery, sizes, expected, work / f"{form}-{delivery}")
            for form in sizes.forms
            for delivery in sizes.deliveries
        ]
    return {
        "readings": sizes.readings,
        "sensors": sizes.sensors,
        "partitions": sizes.partitions,
        "cores": sizes.cores,
        "emit_share": round(len(expected) / sizes.readings, 4),
        "runs": runs,
    }


def _run(
    broker: KafkaBroker, form: str, delivery: str, sizes: Sizes, expected: Commands, work: Path
) -> dict[str, Any]:
    work.mkdir(parents=True)
    topics = work.parent.name
    output = f"{topics}-{work.name}"
    create_topic(broker, output, sizes.partitions)
    limit = f"&max_records_per_batch={sizes.batch_records}" if sizes.batch_records else ""
    bindings = {
        "readings": f"kafka://{broker.bootstrap}/{topics}-readings?format=protobuf&start=earliest{limit}",
        "settings": f"kafka://{broker.bootstrap}/{topics}-settings?format=protobuf",
        "heaters": f"kafka://{broker.bootstrap}/{output}?format=protobuf&delivery={delivery}",
    }
    options = ["--cores", str(sizes.cores), *(word for one in sizes.spark for word in ("--spark", one))]
    result, rss_mb = run_bounded(str(EXAMPLE / FORMS[form]), bindings, options, work)
    found = read_commands(broker, output)
    differs = mismatch(found.commands, expected)
    ends = batch_ends(work / "checkpoint")
    accounts = result["batches"]
    after_first = sizes.readings - accounts[0]["rows"][0]
    rate = sizes.readings / (found.last_s - found.first_s) if found.last_s > found.first_s else 0.0
    report = {
        "form": form,
        "delivery": delivery,
        "readings_per_s": round(rate),
        "steady_readings_per_s": round(after_first / (ends[-1] - ends[0])) if len(ends) > 1 else 0,
        "commands": len(found.commands),
        "missing": differs.missing,
        "extra": differs.extra,
        "wrong": differs.wrong,
        "dead_letters": result["dead_letters"],
        "rss_mb": rss_mb,
        "batches": accounts,
    }
    note(f"{form}, {delivery}: {report['readings_per_s']:,} readings/s, {differs}")
    shutil.rmtree(work)
    return report


def show(result: dict[str, Any]) -> None:
    """Print the measurements, and where the time went, as tables."""
    counts = ("commands", "missing", "extra", "wrong")
    runs = ("function", "delivery")
    columns = (*runs, "readings/s", "steady", *counts, "memory MB")
    rows = [
        [run["form"], run["delivery"], f"{run['readings_per_s']:,}", f"{run['steady_readings_per_s']:,}"]
        + [f"{run[name]:,}" for name in counts]
        + [f"{run['rss_mb']:,}"]
        for run in result["runs"]
    ]
    title = f"Kafka to Kafka: {result['readings']:,} readings, {result['sensors']:,} sensors, {result['cores']} cores"
    print_table(title, columns, rows, left=runs)
    phases = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    columns = (*runs, *phases, "state update", "state commit")
    rows = [[run["form"], run["delivery"], *_phases(run, phases)] for run in result["runs"]]
    print_table("Where a micro-batch's time goes: medians without the first, ms", columns, rows, left=runs)


def _phases(run: dict[str, Any], phases: Sequence[str]) -> list[str]:
    """Return medians over the micro-batches; the state's times are sums over its tasks, which run in parallel."""
    batches = run["batches"][1:] or run["batches"]
    found = [[batch["ms"].get(name, 0) for batch in batches] for name in phases]
    found += [
        [sum(state[name] for state in batch["state_ms"]) for batch in batches]
        for name in ("update", "commit")
    ]
    return [f"{statistics.median(values):,.0f}" for values in found]


def main() -> None:
    """Measure, print tables, and with --json the result as the last line."""
    result = run_command(Sizes, measure, show)
    if any(run["missing"] or run["extra"] or run["wrong"] for run in result["runs"]):
        raise SystemExit("The commands differ from the fold.")


if __name__ == "__main__":
    main()
