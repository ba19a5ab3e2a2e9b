"""Upserts into Delta Lake and Iceberg beside `merge` of delta-rs and `upsert` of pyiceberg, on equal tables, in turns.

A table has some rows, of which a micro-batch replaces a tenth, and to which it adds as many. penstock also puts the
changes on disk first, so that a replay has them, and notes the number of the micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.lake_sink import READING, blocks_of, count_of, iceberg_binding
from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.jobs.job_sinks import open_sink
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.sinks.base import Sink, TaskContext

_KEY: Final = "sensor"


def sink_of(lake: str, folder: Path) -> Sink:
    """Return a sink that replaces rows by their sensor."""
    uri = (
        f"delta:{folder}?upsert_by={_KEY}"
        if lake == "delta"
        else f"iceberg:bench.rows?catalog={folder}.db&warehouse={folder}&upsert_by={_KEY}"
    )
    return open_sink(parse_binding("rows", uri, "sink"), READING, None)


def by_penstock(sink: Sink, rows: pa.Table, batch: int) -> None:
    """Write rows as a micro-batch of one task, with its commit."""
    task = sink.task(TaskContext(batch, 0, 0, "bench"), READING)
    for block in rows.to_batches():
        task.write(block, None)
    sink.commit(batch, [task.finish()])


def by_delta_rs(folder: Path, rows: pa.Table) -> None:
    """Merge the rows with the library of Delta Lake."""
    merger = DeltaTable(folder).merge(
        rows, f"old.{_KEY} = new.{_KEY}", source_alias="new", target_alias="old", streamed_exec=False
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def by_pyiceberg(folder: Path, rows: pa.Table) -> None:
    """Upsert the rows with the library of Iceberg."""
    open_existing_table(iceberg_binding(folder, ())).upsert(rows, join_cols=[_KEY])


def turn(lake: str, who: str, held: pa.Table, changed: pa.Table) -> tuple[float, float]:
    """Make a table, change it, and return what the change took, by the clock and of processor time."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "table"
        sink = sink_of(lake, folder)
        sink.prepare("bench", "")
        by_penstock(sink, held, 0)
        work: Callable[[], None] = {
            "penstock": lambda: by_penstock(sink, changed, 1),
            "library": lambda: (by_delta_rs if lake == "delta" else by_pyiceberg)(folder, changed),
        }[who]
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        took = time.perf_counter() - begun_s, time.process_time() - cpu_s
        expected = len(held) + len(changed) // 2
        if count_of(lake, folder) != expected:
            raise SystemExit(f"The table of {who} has {count_of(lake, folder)} of {expected} rows.")
    return took


def measure(lake: str, rows: int, changes: int, rounds: int) -> dict[str, Any]:
    """Return changes per second of both, and the median of the ratios of a round, also by processor time."""
    known = pa.Table.from_batches(blocks_of(rows + changes // 2)).sort_by(_KEY)
    held, changed = known.slice(0, rows), known.slice(rows - changes + changes // 2, changes)
    runs = []
    for number in range(rounds):
        runs.append({who: turn(lake, who, held, changed) for who in ("penstock", "library")})
        shown = ", ".join(f"{who} {changes / took[0]:,.0f}/s" for who, took in runs[-1].items())
        note(f"{lake}: round {number + 1} of {rounds}: {shown}")
    return {
        "lake": lake,
        "rows": rows,
        "changes": changes,
        "changes_per_s": {who: statistics.median(changes / run[who][0] for run in runs) for who in runs[0]},
        "ratio": statistics.median(run["library"][0] / run["penstock"][0] for run in runs),
        "ratio_by_processor_time": statistics.median(run["library"][1] / run["penstock"][1] for run in runs),
    }


def main() -> None:
    """Measure both lakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--changes", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lakes", nargs="+", choices=("delta", "iceberg"), default=("delta", "iceberg"))
    options = parser.parse_args()
    results = [measure(lake, options.rows, options.changes, options.rounds) for lake in options.lakes]
    table = [
        [
            result["lake"],
            *(f"{rate:,.0f}" for rate in result["changes_per_s"].values()),
            *(f"{result[name]:.2f}" for name in ("ratio", "ratio_by_processor_time")),
        ]
        for result in results
    ]
    headings = ["table", "penstock", "library", "ratio", "by processor time"]
    print_table("Changes per second", headings, table, left=("table",))
    print_json({"lake_upserts": results})


if __name__ == "__main__":
    main()
