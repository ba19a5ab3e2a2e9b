"""Tables: rows per second of totals, first rows, newest rows and moving sums of many groups, and of Spark's totals.

Readings of random keys come in Parquet files, one per micro-batch. Each contestant runs in its own process, in turns,
and writes what its table becomes; that is compared with a fold of the input. The rate is rows / (end of the last
micro-batch with data - end of the first one), by the times of Spark's own commit files.
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
from benchmarks.table_jobs import COUNT

__all__ = ["Sizes", "check", "measure", "show", "write_input"]

_JOBS: Final = Path(__file__).with_name("table_jobs.py")
_SHOWN: Final = {
    "totals": "penstock, group_by and aggregate",
    "spark_totals": "Spark groupBy and agg",
    "top": f"penstock, the first {COUNT} rows of places",
    "newest": "penstock, the newest row",
    "over": f"penstock, sums of {COUNT} rows",
}


@dataclass(frozen=True)
class Sizes:
    """The size of the measurement: `files` of `file_rows` readings of `keys` keys in `places`."""

    keys: int = 100_000
    places: int = 1_000
    files: int = 12
    file_rows: int = 500_000
    rounds: int = 3
    cores: int = 2
    contestants: Sequence[str] = tuple(_SHOWN)


def write_input(folder: Path, sizes: Sizes) -> pa.Table:
    """Write the readings, and return them. Their times are in order but for two seconds, and all differ."""
    random = np.random.default_rng(0)
    rows = sizes.files * sizes.file_rows
    steps = np.arange(rows)
    block = max(min(2_000, sizes.file_rows), 1)
    at = (
        steps - steps % block + random.permuted(np.tile(np.arange(block), (rows // block, 1)), axis=1).ravel()
    )
    keys = random.integers(0, sizes.keys, rows)
    readings = pa.table(
        {"key": keys, "place": keys % sizes.places, "at": at, "value": random.normal(20.0, 5.0, rows)}
    )
    parts = [readings.slice(number * sizes.file_rows, sizes.file_rows) for number in range(sizes.files)]
    write_parts(folder, parts)
    return readings


def check(name: str, found: pa.Table, readings: pa.Table) -> None:
    """Raise RuntimeError if the rows that a contestant has written make another table than the readings do."""
    wanted = _WANTED[name.removeprefix("spark_")](readings)
    table = _table(name, found)
    if table.num_rows != wanted.num_rows:
        raise RuntimeError(f"{name} has {table.num_rows} rows, the fold {wanted.num_rows}.")
    for column in wanted.column_names:
        sums = [pc.sum(one.column(column)).as_py() for one in (table, wanted)]
        if abs(sums[0] - sums[1]) > 1e-9 * abs(sums[1]):
            raise RuntimeError(f"{name} has {column} of {sums[0]} in all, the fold {sums[1]}.")


def _table(name: str, found: pa.Table) -> pa.Table:
    """Return the table that changes or updates make."""
    if name == "over":
        return found
    if name in ("totals", "spark_totals"):
        # The count of a key grows with each update.
        counts = found.column("count").combine_chunks()
        order = pc.sort_indices(counts)
        keys = found.column("key").combine_chunks().take(order).to_numpy()
        _, lasts = np.unique(keys[::-1], return_index=True)
        return found.take(order.take(pa.array(len(keys) - 1 - lasts)))
    adds = pc.is_in(found.column("_change"), pa.array(["+I", "+U"]))
    signed = found.append_column("sign", pc.if_else(adds, 1, -1))
    folded = signed.group_by(["key", "place", "at", "value"]).aggregate([("sign", "sum")])
    return folded.filter(pc.greater(folded.column("sign_sum"), 0))


def _totals(readings: pa.Table) -> pa.Table:
    found = readings.group_by("key").aggregate(
        [("value", "count"), ("value", "sum"), ("value", "mean"), ("value", "max")]
    )
    return found.rename_columns(["key", "count", "sum", "mean", "max"])


def _top(readings: pa.Table) -> pa.Table:
    ordered = readings.sort_by([("place", "ascending"), ("value", "descending")])
    return ordered.filter(pa.array(_ranks(ordered.column("place").to_numpy()) < COUNT))


def _newest(readings: pa.Table) -> pa.Table:
    ordered = readings.sort_by([("key", "ascending"), ("at", "descending")])
    return ordered.filter(pa.array(_ranks(ordered.column("key").to_numpy()) < 1))


def _over(readings: pa.Table) -> pa.Table:
    ordered = readings.sort_by([("key", "ascending"), ("at", "ascending")])
    ranks = _ranks(ordered.column("key").to_numpy())
    values = ordered.column("value").to_numpy()
    sums = np.zeros(len(values))
    for before in range(COUNT):
        sums += np.where(ranks >= before, np.roll(values, before), 0.0)
    return ordered.append_column("sum", pa.array(sums))


def _ranks(keys: np.ndarray) -> np.ndarray:
    """Return the number of each row within its key, from 0, of rows sorted by key."""
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return np.arange(len(keys)) - np.repeat(starts, np.diff(np.append(starts, len(keys))))


_WANTED: Final = {"totals": _totals, "top": _top, "newest": _newest, "over": _over}


def _run(name: str, readings: Path, work: Path, cores: int) -> tuple[pa.Table, int]:
    """Run a contestant; return the rows that it has written, and its peak memory."""
    out = work / "out"
    out.mkdir(parents=True)
    if name == "spark_totals":
        arguments = ["totals", "--data", str(readings), "--output", str(out)]
        arguments += ["--checkpoint", str(work / "checkpoint"), "--cores", str(cores)]
        _, rss_mb = run_module("benchmarks.table_peer", arguments, work / "stderr.log")
    else:
        bindings = {"rows": f"parquet:{out}", "readings": f"parquet:{readings}?max_files_per_batch=1"}
        _, rss_mb = run_bounded(f"{_JOBS}:{name}", bindings, ["--cores", str(cores)], work)
    paths = sorted(out.rglob("*.parquet"))
    return pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths]), rss_mb


def measure(sizes: Sizes, work: Path) -> dict[str, Any]:
    """Measure each contestant in turn. Raises RuntimeError if an output differs from the fold."""
    folder = work / "readings"
    readings = write_input(folder, sizes)
    rates: dict[str, list[float]] = {name: [] for name in sizes.contestants}
    memory: dict[str, int] = {}
    for _ in range(sizes.rounds):
        for name in sizes.contestants:
            place = work / name
            found, rss_mb = _run(name, folder, place, sizes.cores)
            check(name, found, readings)
            ends = batch_ends(place / "checkpoint")[: sizes.files]
            rates[name].append((sizes.files - 1) * sizes.file_rows / (ends[-1] - ends[0]))
            memory[name] = max(rss_mb, memory.get(name, 0))
            note(f"{name}: {rates[name][-1]:,.0f} rows/s")
            shutil.rmtree(place)
    return {
        "keys": sizes.keys,
        "places": sizes.places,
        "rows": sizes.files * sizes.file_rows,
        "cores": sizes.cores,
        "rows_per_s": {name: round(statistics.median(some)) for name, some in rates.items()},
        "rss_mb": memory,
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    rows = [
        [_SHOWN[name], f"{rate:,}", f"{result['rss_mb'][name]:,}"]
        for name, rate in result["rows_per_s"].items()
    ]
    title = f"Tables: {result['keys']:,} keys, {result['places']:,} places, {result['cores']} cores"
    print_table(title, ("contestant", "rows/s", "memory MB"), rows, left=("contestant",))


if __name__ == "__main__":
    run_command(Sizes, measure, show)
