"""Windows: rows per second of tumbling event-time windows of many keys, columnar, record by record, and in Spark.

Readings of random keys come in Parquet files, one per micro-batch, with increasing times that are slightly out of
order. Each contestant computes the mean of each key in each window of 10 s; two more count its different times, both
with the same accuracy. The rate is rows / (end of the last micro-batch with data - end of the first one), by the times
of Spark's own commit files. Contestants take turns, each in its own process; the number of windows, and the sums of
their counts and means, are compared with a fold of the input. The output of PySpark's transformWithState lacks a few
windows in 100,000, for an unknown reason; its tolerance is a thousandth.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.batches import batch_ends
from benchmarks.command import run_command
from benchmarks.input_files import write_parts
from benchmarks.processes import run_module
from benchmarks.report import note, print_table
from benchmarks.running import run_bounded
from benchmarks.window_jobs import ACCURACY, SIZE_MS

__all__ = ["Expected", "Sizes", "check", "fold", "measure", "report", "run", "write_input"]

_JOBS: Final = Path(__file__).with_name("window_jobs.py")
_BOUND_MS: Final = 2000
_ROADS: Final = {"spark": "native", "spark_distinct": "distinct", "pyspark": "python"}
_AS_COLUMNS: Final = ("spark", "columns", "spark_distinct", "distinct")


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement: `files` of `file_rows` readings of `keys` keys, over `span_ms` of event time.

    The contestants that run record by record get the first `slow_files` of them, and the one in PySpark the first
    `peer_files`.
    """

    keys: int = 100_000
    files: int = 20
    file_rows: int = 500_000
    span_ms: int = 100_000
    slow_files: int = 8
    peer_files: int = 2
    rounds: int = 3
    cores: int = 2
    contestants: Sequence[str] = (*_AS_COLUMNS, "records", "custom", "pyspark")


@dataclass(frozen=True)
class Expected:
    """The result of a fold: the number of ended windows, and the sums of their counts, distinct times and means."""

    windows: int
    readings: int
    distinct: int
    means: float


def write_input(folder: Path, sizes: Sizes, files: int) -> Expected:
    """Write the readings; one in the last file ends all windows except its own."""
    random = np.random.default_rng(0)
    parts = []
    for number in range(files):
        begin = number * sizes.span_ms // sizes.files
        end = (number + 1) * sizes.span_ms // sizes.files
        at = np.sort(random.integers(begin, end, sizes.file_rows)) - random.integers(
            0, _BOUND_MS, sizes.file_rows
        )
        readings = pa.table(
            {
                "key": random.integers(0, sizes.keys, sizes.file_rows),
                "at": np.maximum(at, 0),
                "value": random.normal(20.0, 5.0, sizes.file_rows),
            }
        )
        if number == files - 1:
            last = pa.table({"key": [0], "at": [sizes.span_ms + 10 * SIZE_MS], "value": [0.0]})
            readings = pa.concat_tables([readings, last])
        parts.append(readings)
    write_parts(folder, parts)
    return fold(pa.concat_tables(parts).slice(0, files * sizes.file_rows))


def fold(readings: pa.Table) -> Expected:
    """Return the expected result of the windows of these readings."""
    window = pc.divide(readings.column("at"), SIZE_MS)
    grouped = readings.append_column("window", window).group_by(["key", "window"])
    means = grouped.aggregate([("value", "mean"), ("value", "count"), ("at", "count_distinct")])
    return Expected(
        means.num_rows,
        pc.sum(means.column("value_count")).as_py(),
        pc.sum(means.column("at_count_distinct")).as_py(),
        pc.sum(means.column("value_mean")).as_py(),
    )


def run(name: str, readings: Path, work: Path, cores: int) -> tuple[Path, int]:
    """Run a contestant; return the place of its windows, and its peak memory."""
    out = work / "out"
    out.mkdir(parents=True)
    if name in _ROADS:
        arguments = [_ROADS[name], "--data", str(readings), "--output", str(out)]
        arguments += ["--checkpoint", str(work / "checkpoint"), "--cores", str(cores)]
        _, rss_mb = run_module("benchmarks.window_peer", arguments, work / "stderr.log")
        return out, rss_mb
    bindings = {"means": f"parquet:{out}", "readings": f"parquet:{readings}?max_files_per_batch=1"}
    _, rss_mb = run_bounded(f"{_JOBS}:{name}", bindings, ["--cores", str(cores)], work)
    return out, rss_mb


def check(name: str, out: Path, expected: Expected) -> None:
    """Raise RuntimeError if the windows differ from the fold."""
    windows = pa.concat_tables([pq.read_table(path) for path in sorted(out.rglob("*.parquet"))])
    value = next(column for column in ("value", "mean", "distinct") if column in windows.column_names)
    # The last reading, of 0, has its own window, which ends if time ends with the input.
    lasts = 0 if name in _ROADS else 1
    wanted, allowed = expected.means, 1e-3 if name == "pyspark" else 1e-6
    if value == "distinct":
        # The errors of single windows cancel out over all windows.
        wanted, allowed = expected.distinct + lasts, ACCURACY / 3
    found = pc.sum(windows.column(value)).as_py()
    lost = abs(windows.num_rows - expected.windows - lasts) / expected.windows
    if lost > (1e-3 if name == "pyspark" else 0.0) or abs(found - wanted) > allowed * abs(wanted):
        raise RuntimeError(
            f"{name} emitted {windows.num_rows} windows with a {value} of {found} in all, the fold "
            f"{expected.windows + lasts} with {wanted}. See {out}."
        )
    if "count" in windows.column_names:
        readings = pc.sum(windows.column("count")).as_py()
        if readings != expected.readings + lasts:
            raise RuntimeError(f"{name} counted {readings} readings, not those of the fold. See {out}.")


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure each contestant in turn. Raises RuntimeError if an output differs from the fold."""
    inputs = {}
    files_of = dict.fromkeys(sizes.contestants, sizes.slow_files)
    files_of |= {**dict.fromkeys(_AS_COLUMNS, sizes.files), "pyspark": sizes.peer_files}
    for files in sorted({files_of[name] for name in sizes.contestants}):
        inputs[files] = work / f"readings-{files}", write_input(work / f"readings-{files}", sizes, files)
    rates: dict[str, list[float]] = {name: [] for name in sizes.contestants}
    memory: dict[str, int] = {}
    for _ in range(sizes.rounds):
        for name in sizes.contestants:
            files = files_of[name]
            readings, expected = inputs[files]
            place = work / name
            out, rss_mb = run(name, readings, place, sizes.cores)
            check(name, out, expected)
            ends = batch_ends(place / "checkpoint")[:files]
            rates[name].append((files - 1) * sizes.file_rows / (ends[-1] - ends[0]))
            memory[name] = max(rss_mb, memory.get(name, 0))
            note(f"{name}: {rates[name][-1]:,.0f} rows/s")
            shutil.rmtree(place)
    return report(sizes, {name: round(statistics.median(some)) for name, some in rates.items()}, memory)


def report(sizes: Sizes, found: dict[str, int], memory: dict[str, int]) -> dict[str, Any]:
    """Return the result from the rows per second and the peak memory of each contestant."""
    return {
        "keys": sizes.keys,
        "rows": sizes.files * sizes.file_rows,
        "cores": sizes.cores,
        "rows_per_s": found,
        "rss_mb": memory,
        "by_spark": _ratio(found, "spark", 2),
        "by_python": _ratio(found, "pyspark", 1),
    }


def _ratio(found: dict[str, int], peer: str, digits: int) -> float | None:
    """Return how many times as fast as a peer the columnar path is, if both have run."""
    return round(found["columns"] / found[peer], digits) if {"columns", peer} <= found.keys() else None


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    told = {
        "spark": "Spark groupBy(window)",
        "columns": "penstock, statistics",
        "spark_distinct": "Spark approx_count_distinct",
        "distinct": "penstock, distinct",
        "records": "penstock, a function in Python",
        "custom": "penstock, a trigger in Python",
        "pyspark": "PySpark transformWithState",
    }
    rows = [
        [told[name], f"{rate:,}", f"{result['rss_mb'][name]:,}"]
        for name, rate in result["rows_per_s"].items()
    ]
    title = f"Tumbling windows of 10 s: {result['keys']:,} keys, {result['cores']} cores"
    print_table(title, ("contestant", "rows/s", "memory MB"), rows, left=("contestant",))


if __name__ == "__main__":
    run_command(Sizes, measure, show)
