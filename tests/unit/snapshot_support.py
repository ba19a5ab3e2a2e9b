"""Small snapshots for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_writer import Contents, TableInfo, commit, write_file, write_part
from penstock.snapshots.stores import Store, open_store

SETTINGS = TableInfo(
    "thermostat/setting",
    "thermostat",
    "state",
    pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field(
                "value",
                pa.struct(
                    [
                        pa.field("temperature", pa.float64(), nullable=False),
                        pa.field("mode", pa.string()),
                        pa.field("since", pa.timestamp("us", "UTC")),
                    ]
                ),
                nullable=False,
            ),
        ]
    ),
)
EVENTS = TableInfo(
    "thermostat/events",
    "thermostat",
    "operator",
    pa.schema([("at", pa.int64()), ("tags", pa.list_(pa.string()))]),
)
Rows = Sequence[dict[str, Any]]


def setting(key: str, temperature: float, mode: str | None = "heat") -> dict[str, Any]:
    return {"key": key, "value": {"temperature": temperature, "mode": mode, "since": None}}


ROOMS: Rows = [setting(f"room-{number:02}", 20.0 + number / 4) for number in range(20)]
LOG: Rows = [{"at": number % 3, "tags": ["a", None] if number % 2 else None} for number in range(7)]


def write_snapshot(
    place: str | Store,
    tables: Sequence[tuple[TableInfo, Rows]] = ((SETTINGS, ROOMS), (EVENTS, LOG)),
    *,
    file_format: Any = "csv",
    parts: int = 2,
    name: str = "d-1",
) -> Manifest:
    """Write a whole snapshot: a savepoint if its format is arrow."""
    store = open_store(place) if isinstance(place, str) else place
    entries = []
    for table, rows in tables:
        for number in range(parts):
            batch = pa.RecordBatch.from_pylist(list(rows[number::parts]), schema=table.schema)
            entries.append(write_part(store, table, number, [batch], file_format))
    extra = write_file(store, "offsets/readings.bin", b"opaque" * 20)
    contents = Contents(
        kind="savepoint" if file_format == "arrow" else "dump",
        id=name,
        job="climate",
        batch=41,
        key_groups=128,
        format=file_format,
        tables=[table for table, _ in tables],
        files=[extra],
        positions={"readings": {"0": 17, "1": 4}},
        steps={"thermostat": {"version": 3}},
    )
    return commit(store, contents, entries)
