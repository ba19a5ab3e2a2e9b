"""Readings in files or in a lake table, and the table of the job's output."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from file_feed import SENSORS, FileFeed
from lake_tables import count_of, iceberg_binding, lake_sink, lake_uri, records_of

from penstock.jobs.settings import RunSettings
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.records.schemas import record_type

__all__ = ["Feed", "LakeFeed"]

READING = record_type("sensor BIGINT NOT NULL, number BIGINT NOT NULL")


class Feed(FileFeed):
    """Readings in files."""

    def __init__(self, folder: Path, lake: str) -> None:
        super().__init__(folder)
        self.folder = folder
        self.lake = lake

    def settings(self, folder: Path, partition_by: str = "", **settings: Any) -> RunSettings:
        bindings = {"readings": self.binding, "seen": lake_uri(self.lake, self.folder, partition_by)}
        return RunSettings(
            bindings=bindings, checkpoint=str(folder / "checkpoint"), parallelism=2, **settings
        )  # type: ignore[arg-type]

    def count(self) -> int:
        """Return how many records the table has; 0 before the job has created it."""
        return count_of(self.lake, self.folder)

    def assert_exactly_once(self) -> None:
        found = records_of(self.lake, self.folder).select(["sensor", "count"])
        assert Counter(zip(*(column.to_pylist() for column in found.columns), strict=True)) == self.expected


class LakeFeed(Feed):
    """Readings in a table, to which another writer appends with the lake's library, without penstock."""

    def __init__(self, folder: Path, lake: str) -> None:
        super().__init__(folder, lake)
        lake_sink(lake, self._source, READING).prepare("feed", "")

    @property
    def _source(self) -> Path:
        return self.folder / "source"

    @property
    def binding(self) -> str:
        return lake_uri(self.lake, self._source)

    def write(self) -> None:
        rows = pa.table({"sensor": range(SENSORS), "number": [self.files] * SENSORS}, schema=READING.schema)
        if self.lake == "delta":
            write_deltalake(self._source / "table", rows, mode="append")
        else:
            open_existing_table(iceberg_binding(self._source)).append(rows)
        self.files += 1
