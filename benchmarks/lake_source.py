"""Tables of Delta Lake and Iceberg as sources beside delta-rs and pyiceberg, which read the same rows, in turns.

Both make Arrow columns of a table that several commits have made, in one process. penstock also writes the list of
files by which a replay reads the same, and gives each row its place; it reads as one task of a micro-batch. Times are
those of the processor.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.decoding_turns import measure, print_found
from benchmarks.lake_sink import READING, blocks_of
from benchmarks.report import print_json
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding, IcebergBinding
from penstock.lakes.iceberg_sink import IcebergSink
from penstock.lakes.lake_log import LakeLog
from penstock.sources.base import ReplayableLog

_COMMITS: Final = 8


def rows_of(log: ReplayableLog[Any]) -> int:
    """Return how many rows a log has, after one task has read them."""
    begin = log.beginning()
    splits = log.splits(begin, log.latest(begin, limited=False), 1)
    return sum(len(chunk.batch) for chunk in log.read(splits, READING) if chunk.batch is not None)


def pieces_of(rows: int) -> list[pa.Table]:
    """Return rows as tables, one for each commit."""
    table = pa.Table.from_batches(blocks_of(rows))
    size = -(-rows // _COMMITS)
    return [table.slice(first, size) for first in range(0, rows, size)]


def delta(folder: Path, rows: int) -> dict[str, Callable[[], int]]:
    """Return who reads a table of Delta Lake."""
    for piece in pieces_of(rows):
        write_deltalake(folder / "table", piece, mode="append")
    binding = parse_binding("rows", f"delta:{folder / 'table'}", "data")
    assert isinstance(binding, DeltaBinding)
    return {
        "penstock": _by_penstock(binding, folder),
        "delta-rs": lambda: len(DeltaTable(folder / "table").to_pyarrow_table()),
    }


def iceberg(folder: Path, rows: int) -> dict[str, Callable[[], int]]:
    """Return who reads a table of Iceberg, with its catalog in SQLite."""
    uri = f"iceberg:bench.rows?catalog={folder}/catalog.db&warehouse={folder}"
    sink, source = parse_binding("rows", uri, "sink"), parse_binding("rows", uri, "data")
    assert isinstance(sink, IcebergBinding)
    assert isinstance(source, IcebergBinding)
    IcebergSink(sink, READING).prepare("bench", "")

    def table() -> Any:
        return SqlCatalog("default", uri=sink.catalog, warehouse=str(sink.warehouse)).load_table("bench.rows")

    for piece in pieces_of(rows):
        table().append(piece)
    return {"penstock": _by_penstock(source, folder), "pyiceberg": lambda: len(table().scan().to_arrow())}


def _by_penstock(binding: DeltaBinding | IcebergBinding, folder: Path) -> Callable[[], int]:
    numbers = itertools.count()

    def read() -> int:
        log = LakeLog(binding, folder / f"{next(numbers)}.files")
        log.check()
        return rows_of(log)

    return read


_LAKES: Final = {"delta": delta, "iceberg": iceberg}


def measure_lake(lake: str, rows: int, rounds: int) -> dict[str, Any]:
    """Return what `decoding_turns.measure` finds."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(_LAKES[lake](Path(folder), rows), rows, rounds)


def main() -> None:
    """Measure both, and print tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    results = {lake: measure_lake(lake, options.rows, options.rounds) for lake in _LAKES}
    for lake, found in results.items():
        print_found(f"Rows of {lake} per second of processor time", found, "read by", "rows/s")
    print_json({"lake_source": results})


if __name__ == "__main__":
    main()
