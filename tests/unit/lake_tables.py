"""Tables of both kinds of lakes in a folder, for tests that do the same with each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import IcebergBinding
from penstock.jobs.job_sinks import open_sink
from penstock.lakes.iceberg_catalog import open_existing_table, open_table
from penstock.records.types import RecordType
from penstock.sinks.base import Sink

LAKES = ("delta", "iceberg")


def lake_uri(lake: str, folder: Path, partition_by: str = "") -> str:
    """The URI of a sink of a lake."""
    by = f"partition_by={partition_by}" if partition_by else ""
    if lake == "delta":
        return f"delta:{folder}/table?{by}".rstrip("?")
    return f"iceberg:plant.seen?catalog={folder}/catalog.db&warehouse={folder}&{by}".rstrip("&")


def lake_sink(lake: str, folder: Path, record_type: RecordType, partition_by: str = "") -> Sink:
    return open_sink(parse_binding("seen", lake_uri(lake, folder, partition_by), "sink"), record_type, None)


def iceberg_binding(folder: Path, query: str = "") -> IcebergBinding:
    found = parse_binding("seen", lake_uri("iceberg", folder) + query, "sink")
    assert isinstance(found, IcebergBinding)
    return found


def count_of(lake: str, folder: Path) -> int:
    """How many records a table has; none before it is there."""
    if lake == "iceberg":
        table = open_table(iceberg_binding(folder))
        snapshot = None if table is None else table.current_snapshot()
        return (
            0 if snapshot is None or snapshot.summary is None else int(snapshot.summary["total-records"] or 0)
        )
    if not DeltaTable.is_deltatable(str(folder / "table")):
        return 0
    return sum(pa.table(DeltaTable(folder / "table").get_add_actions()).column("num_records").to_pylist())


def records_of(lake: str, folder: Path) -> pa.Table:
    """What a reader sees, which is not penstock."""
    if lake == "iceberg":
        return open_existing_table(iceberg_binding(folder)).scan().to_arrow()
    return DeltaTable(folder / "table").to_pyarrow_table()
