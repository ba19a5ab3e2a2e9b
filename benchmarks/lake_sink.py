"""The sinks of Delta Lake and Iceberg beside delta-rs and pyiceberg, which write and commit the same rows, in turns.

Both write in one process. With a partition field the rows of ten days come mixed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding, IcebergBinding
from penstock.lakes.delta_sink import DeltaSink
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.lakes.iceberg_sink import IcebergSink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING, day STRING")
_BLOCK: Final = 50_000


def blocks_of(rows: int) -> list[pa.RecordBatch]:
    """Return rows of distinct sensors, in blocks."""
    random = np.random.default_rng(1)
    columns = [
        pa.array(random.permutation(rows)),
        pa.array(random.normal(20, 5, rows)),
        pa.array([f"room {number % 100}" for number in range(rows)]),
        pa.array([f"2026-05-{number % 10 + 1:02}" for number in range(rows)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, rows, _BLOCK)]


def by_penstock(folder: Path, blocks: Sequence[pa.RecordBatch], parts: tuple[str, ...]) -> float:
    """Return the seconds that the sink takes for a micro-batch of one task, with its commit."""
    sink = DeltaSink(DeltaBinding("rows", f"delta:{folder}", str(folder), parts), READING)
    sink.prepare("bench", "")
    begun_s = time.perf_counter()
    task = sink.task(TaskContext(0, 0, 0, "bench"), READING)
    for block in blocks:
        task.write(block, None)
    sink.commit(0, [task.finish()])
    return time.perf_counter() - begun_s


def by_delta_rs(folder: Path, blocks: Sequence[pa.RecordBatch], parts: tuple[str, ...]) -> float:
    """Return the seconds that the library takes for the same."""
    table = DeltaTable.create(folder, READING.schema, partition_by=list(parts))
    begun_s = time.perf_counter()
    write_deltalake(table, pa.RecordBatchReader.from_batches(READING.schema, blocks), mode="append")
    return time.perf_counter() - begun_s


def iceberg_binding(folder: Path, parts: tuple[str, ...]) -> IcebergBinding:
    """Return the binding of a table with its catalog in a folder."""
    uri = f"iceberg:bench.rows?catalog={folder}.db&warehouse={folder}"
    binding = parse_binding("rows", uri + (f"&partition_by={','.join(parts)}" if parts else ""), "sink")
    assert isinstance(binding, IcebergBinding)
    return binding


def iceberg_by_penstock(folder: Path, blocks: Sequence[pa.RecordBatch], parts: tuple[str, ...]) -> float:
    """Return the seconds that the sink of Iceberg takes for a micro-batch of one task, with its commit."""
    sink = IcebergSink(iceberg_binding(folder, parts), READING)
    sink.prepare("bench", "")
    begun_s = time.perf_counter()
    task = sink.task(TaskContext(0, 0, 0, "bench"), READING)
    for block in blocks:
        task.write(block, None)
    sink.commit(0, [task.finish()])
    return time.perf_counter() - begun_s


def by_pyiceberg(folder: Path, blocks: Sequence[pa.RecordBatch], parts: tuple[str, ...]) -> float:
    """Return the seconds that pyiceberg takes for the same."""
    binding = iceberg_binding(folder, parts)
    # The same table, made by the sink.
    IcebergSink(binding, READING).prepare("bench", "")
    catalog = SqlCatalog("default", uri=binding.catalog, warehouse=str(binding.warehouse))
    table = catalog.load_table("bench.rows")
    begun_s = time.perf_counter()
    table.append(pa.Table.from_batches(blocks))
    return time.perf_counter() - begun_s


def count_of(lake: str, folder: Path) -> int:
    """Return how many rows a table has."""
    if lake == "delta":
        return DeltaTable(folder).count()
    return open_existing_table(iceberg_binding(folder, ())).scan().count()


def measure(lake: str, rows: int, rounds: int, parts: tuple[str, ...]) -> dict[str, Any]:
    """Return rows per second of both, and the median of the ratios of a round, also by processor time."""
    blocks = blocks_of(rows)
    runs: list[dict[str, float]] = []
    spent: list[dict[str, float]] = []
    for number in range(rounds):
        found: dict[str, float] = {}
        spent.append({})
        for name, write in _WRITERS[lake]:
            with tempfile.TemporaryDirectory() as folder:
                begun_s = time.process_time()
                found[name] = rows / write(Path(folder) / "table", blocks, parts)
                spent[-1][name] = time.process_time() - begun_s
                count = count_of(lake, Path(folder) / "table")
                if count != rows:
                    raise SystemExit(f"{name} has written {count} of {rows} rows.")
        runs.append(found)
        shown = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in found.items())
        note(f"round {number + 1} of {rounds}: {shown}")
    return {
        "lake": lake,
        "partition_by": parts,
        "rows": rows,
        "rows_per_s": {name: statistics.median(run[name] for run in runs) for name in runs[0]},
        "ratio": statistics.median(run["penstock"] / run["library"] for run in runs),
        "ratio_by_processor_time": statistics.median(run["library"] / run["penstock"] for run in spent),
    }


_WRITERS: Final = {
    "delta": (("penstock", by_penstock), ("library", by_delta_rs)),
    "iceberg": (("penstock", iceberg_by_penstock), ("library", by_pyiceberg)),
}


def main() -> None:
    """Measure a table without partition fields, and one with a field of ten values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lakes", nargs="+", choices=list(_WRITERS), default=list(_WRITERS))
    options = parser.parse_args()
    results = [
        measure(lake, options.rows, options.rounds, parts)
        for lake in options.lakes
        for parts in ((), ("day",))
    ]
    table = [
        [
            f"{result['lake']}, {'by day' if result['partition_by'] else 'no partition'}",
            *(f"{rate:,.0f}" for rate in result["rows_per_s"].values()),
            *(f"{result[name]:.2f}" for name in ("ratio", "ratio_by_processor_time")),
        ]
        for result in results
    ]
    headings = ["table", "penstock", "library", "ratio", "by processor time"]
    print_table("Rows per second", headings, table, left=("table",))
    print_json({"lake_sink": results})


if __name__ == "__main__":
    main()
