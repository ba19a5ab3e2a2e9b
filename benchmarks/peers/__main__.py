"""Peers: penstock beside Flink, the temperature-control job from Kafka to Kafka, in turns on the same machine.

Throughput: all readings are on their topic when a job starts, which runs for ever. The steady rate counts the readings
between a tenth and nine tenths of the commands; the first output is counted from the start of the process, by the
broker's clock; memory is the peak of the whole process tree, in which a page that processes share counts once
(`processes.py`). Commands are compared with a fold that applies all settings first.

Latency: readings at a steady rate, each of which causes a command (`benchmarks/probe.py`). Flink has its defaults for
the throughput, and for the latency a buffer timeout of 1 ms and no lingering. Its job is built with Maven.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.command import option, run_command
from benchmarks.peers.contestants import (
    BEFORE,
    FLINK,
    LATENCY,
    THROUGHPUT,
    MissingToolError,
    build_flink,
    contestant,
)
from benchmarks.peers.latency import Load, measure_latency
from benchmarks.peers.throughput import Input, measure_throughput
from benchmarks.report import note, print_markdown
from benchmarks.topics import broker_or_own, create_topic, load_readings, load_settings
from benchmarks.workload import Rooms, expected_commands
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Sizes", "main", "measure"]

_PRESENT: Final = {
    "flink": "Flink, state on the heap",
    "vectorised": "penstock, vectorised",
    "per_record": "penstock, record by record",
    "vectorised_real_time": "penstock in real time, vectorised",
    "per_record_real_time": "penstock in real time, record by record",
    "flink_tuned": "Flink, tuned for latency",
    "real_time": "penstock in real time",
    "real_time_one_slot": "penstock in real time, one slot",
    "micro_batch": "penstock, micro-batches",
}
_LABELS: Final = _PRESENT | {name: f"{_PRESENT[present]}, before" for name, present in BEFORE.items()}


@dataclass(frozen=True)
class Sizes:
    """What is measured, and how much of it. Contestants run in this order, in every round."""

    readings: int = 8_000_000
    sensors: int = 100_000
    partitions: int = 2
    cores: int = 2
    rounds: int = 3
    contestants: Sequence[str] = option(
        THROUGHPUT,
        "whose throughput is measured; none: leave it out",
        choices=(*THROUGHPUT, *(name for name, present in BEFORE.items() if present in THROUGHPUT)),
    )
    latency_contestants: Sequence[str] = option(
        LATENCY,
        "whose latency is measured; none: leave it out",
        choices=(*LATENCY, "flink", *(name for name, present in BEFORE.items() if present in LATENCY)),
    )
    latency_rates: Sequence[int] = option((200, 20_000), "readings a second; default: %(default)s")
    seconds: float = option(60.0, "how long each latency is measured; default: %(default)s")
    warm_up_s: float = 20.0
    checkpoint_interval: str = option("5s", "the interval of real time; default: %(default)s")
    patience_s: float = option(300.0, "after how long a run without all commands fails; default: %(default)s")
    memory_mb: int | None = option(None, "what penstock may use in all; default: as it likes")
    before: str = option("", "another checkout of penstock, for contestants whose names say `before`")

    def small(self) -> Sizes:
        """Return the same in a few minutes."""
        return dataclasses.replace(
            self, readings=1_000_000, rounds=1, latency_rates=(200,), seconds=10.0, warm_up_s=5.0
        )


def measure(
    sizes: Sizes, work: Path, *, small: bool = False, broker: KafkaBroker | None = None
) -> dict[str, Any]:
    """Run all contestants in turns, on the given broker or a new one. Topics are named after the folder."""
    sizes = sizes.small() if small else sizes
    there = [name for name in (*sizes.contestants, *sizes.latency_contestants) if name in BEFORE]
    if there and not Path(sizes.before, ".venv", "bin", "penstock").exists():
        raise MissingToolError(
            f"The contestant `{there[0]}` needs --before CHECKOUT, with a .venv, which {sizes.before!r} has not. "
            "Run `make setup` there."
        )
    if set(FLINK) & {*sizes.contestants, *sizes.latency_contestants}:
        build_flink()
    with broker_or_own(broker) as kafka:
        runs = _throughput(sizes, kafka, work) if sizes.contestants else []
        trips = _latency(sizes, kafka, work) if sizes.latency_contestants else []
    return {**dataclasses.asdict(sizes), "throughput": runs, "latency": trips}


def _throughput(sizes: Sizes, broker: KafkaBroker, work: Path) -> list[dict[str, Any]]:
    rooms = Rooms(sizes.sensors, 0.45)
    readings = rooms.readings(sizes.readings, 0)
    expected = expected_commands(rooms, [readings])
    given = Input(
        f"{work.name}-readings", f"{work.name}-settings", sizes.partitions, sizes.readings, expected
    )
    create_topic(broker, given.settings_topic, 1)
    create_topic(broker, given.readings_topic, sizes.partitions)
    load_settings(broker, given.settings_topic, rooms)
    load_readings(broker, given.readings_topic, sizes.partitions, readings)
    note(f"{sizes.readings:,} readings are on their topic")
    before = Path(sizes.before) if sizes.before else None
    runs = []
    for number in range(sizes.rounds):
        for name in sizes.contestants:
            run = functools.partial(
                measure_throughput,
                contestant(name, sizes.checkpoint_interval, before, sizes.memory_mb),
                broker,
                given,
                work / f"{name}-{number}",
                cores=sizes.cores,
                patience_s=sizes.patience_s,
            )
            runs.append({"contestant": name, "round": number, **_try(run)})
            note(f"round {number + 1}, {_LABELS[name]}: {runs[-1]}")
    return runs


def _latency(sizes: Sizes, broker: KafkaBroker, work: Path) -> list[dict[str, Any]]:
    before = Path(sizes.before) if sizes.before else None
    runs = []
    for number in range(sizes.rounds):
        for rate in sizes.latency_rates:
            for name in sizes.latency_contestants:
                run = functools.partial(
                    measure_latency,
                    contestant(name, sizes.checkpoint_interval, before, sizes.memory_mb),
                    broker,
                    work / f"{name}-{rate}-{number}",
                    Load(rate, sizes.warm_up_s, sizes.seconds, sizes.sensors, sizes.partitions),
                    cores=sizes.cores,
                )
                runs.append({"contestant": name, "round": number, "rate_per_s": rate, **_try(run)})
                note(f"round {number + 1}, {rate:,}/s, {_LABELS[name]}: {runs[-1]}")
    return runs


def _try(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a run has found, or why it failed, since hours of other runs should not be lost with it."""
    try:
        return run()
    except RuntimeError as error:  # a contestant that ended, or one that has not answered in time
        return {"failed": str(error)}


def show(result: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md: medians of the rounds, and ratios to Flink's run of the same round."""
    done = {key: [run for run in result[key] if "failed" not in run] for key in ("throughput", "latency")}
    if done["throughput"]:
        _show_throughput({**result, **done})
    for rate in dict.fromkeys(run["rate_per_s"] for run in done["latency"]):
        _show_latency({**result, **done}, rate)


def _show_throughput(result: dict[str, Any]) -> None:
    columns = ["", "steady readings/s", "ratio", "first output", "ratio", "memory", "ratio", "CPU"]
    rows = []
    for name in dict.fromkeys(run["contestant"] for run in result["throughput"]):
        runs = [run for run in result["throughput"] if run["contestant"] == name]
        ratios = {key: _ratio(result["throughput"], runs, "flink", key) for key in _COMPARED}
        expected = statistics.median(run["commands"] + run["missing"] - run["extra"] for run in runs)
        missing = max(run["missing"] for run in runs)
        rows.append(
            [
                _LABELS[name],
                f"{_median(runs, 'steady_per_s'):,.0f}",
                ratios["steady_per_s"],
                f"{_median(runs, 'first_output_s'):.1f} s",
                ratios["first_output_s"],
                f"{_median(runs, 'memory_mb') / 1024:.2f} GB",
                ratios["memory_mb"],
                f"{_median(runs, 'resident_mb') / 1024:.2f} GB",
                f"{_median(runs, 'cpu_s'):.0f} s",
                f"{missing / expected:.2%}" if missing else "none",
            ]
        )
    title = f"Kafka to Kafka, {result['readings']:,} readings, {result['cores']} cores, medians of {result['rounds']}"
    print_markdown(title, [*columns, "commands missing"], rows, left=("",))


_COMPARED: Final = ("steady_per_s", "first_output_s", "memory_mb")


def _show_latency(result: dict[str, Any], rate: int) -> None:
    percentiles = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    columns = ("", "p50", "ratio", "p95", "ratio", "p99", "longest", "cores used", "memory")
    at_rate = [run for run in result["latency"] if run["rate_per_s"] == rate]
    rows = []
    for name in dict.fromkeys(run["contestant"] for run in at_rate):
        runs = [run for run in at_rate if run["contestant"] == name]
        p50, p95, p99, longest = (f"{_median(runs, key):,.1f} ms" for key in percentiles)
        ratios = [_ratio(at_rate, runs, "flink_tuned", key) for key in percentiles[:2]]
        row = [_LABELS[name], p50, ratios[0], p95, ratios[1], p99, longest]
        rows.append(
            [*row, f"{_median(runs, 'cores_used'):.2f}", f"{_median(runs, 'memory_mb') / 1024:.2f} GB"]
        )
    title = (
        f"Latency at {rate:,} readings a second for {result['seconds']:.0f} s, medians of {result['rounds']}"
    )
    print_markdown(title, columns, rows, left=("",))


def _median(runs: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _ratio(everyone: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]], peer: str, key: str) -> str:
    """Return the median of the ratios to the peer's run in the same round."""
    peers = {run["round"]: run[key] for run in everyone if run["contestant"] == peer}
    ratios = [run[key] / peers[run["round"]] for run in runs if peers.get(run["round"])]
    return f"{statistics.median(ratios):.2f}x" if ratios else ""


def main() -> None:
    """Measure, print tables, and with -o json the result as the last line."""
    flags = {"small": "1 M readings, one round, 200 readings a second for 10 s"}
    try:
        result = run_command(Sizes, measure, show, flags)
    except MissingToolError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    runs = [*result["throughput"], *result["latency"]]
    for run in runs:
        if "failed" in run:
            print(f"{_LABELS[run['contestant']]}, round {run['round'] + 1}: {run['failed']}", file=sys.stderr)
    if any("failed" in run for run in runs):
        raise SystemExit("Some runs failed.")
    ours = [run for run in runs if run["contestant"] not in FLINK]
    if any(run.get("missing") or run.get("extra") or run.get("unanswered") or run["wrong"] for run in ours):
        raise SystemExit("The commands differ from the fold.")


if __name__ == "__main__":
    main()
