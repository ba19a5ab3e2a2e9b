"""Jobs that upsert into a lake table: each table version is one that the model had, whatever is killed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from file_feed import SENSORS
from lake_feed import Feed
from lake_tables import LAKES
from reliability import noting
from s3_server import S3Server
from sink_kills import BUSY_S, KilledSink, interrupt_briefly, victims

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import IcebergBinding
from penstock.jobs.settings import RunSettings
from penstock.lakes.iceberg_catalog import open_existing_table

JOB = Path(__file__).parent / "changing_hits.sql"
# The number of kills of each.
VICTIMS = {"driver": 7, "JVM": 7, "worker": 6}
NAMES = {"delta": "Delta Lake", "iceberg": "Iceberg"}


class UpsertFeed(Feed):
    """Readings in files, and the versions of the table, in a folder or a bucket of a server."""

    def __init__(self, folder: Path, lake: str, server: S3Server | None = None) -> None:
        super().__init__(folder, lake)
        self._options: dict[str, str] | None = None
        self._lake = str(folder)
        if server is not None:
            server.put(f"upserts-{lake}", "there", b"")
            self._options = {**server.environment, "AWS_ALLOW_HTTP": "true"}
            self._lake = f"s3://upserts-{lake}/{folder.name}"

    @property
    def uri(self) -> str:
        if self.lake == "delta":
            return f"delta:{self._lake}/table"
        return f"iceberg:plant.seen?catalog={self.folder}/catalog.db&warehouse={self._lake}"

    def settings(self, folder: Path, partition_by: str = "", **settings: object) -> RunSettings:
        found = super().settings(folder, partition_by, **settings)
        return dataclasses.replace(found, bindings={**found.bindings, "seen": self.uri})

    def versions(self) -> Iterator[dict[int, int]]:
        """Return the rows of each version by key, oldest version first."""
        for table in self._tables():
            rows = list(
                zip(table.column("sensor").to_pylist(), table.column("hits").to_pylist(), strict=True)
            )
            found = dict(rows)
            assert len(found) == len(rows), rows
            yield found

    def _tables(self) -> Iterator[pa.Table]:
        if self.lake == "delta":
            place = f"{self._lake}/table"
            newest = DeltaTable(place, storage_options=self._options).version()
            for version in range(newest + 1):
                yield DeltaTable(place, version, storage_options=self._options).to_pyarrow_table()
        else:
            binding = parse_binding("seen", self.uri, "sink")
            assert isinstance(binding, IcebergBinding)
            table = open_existing_table(binding)
            for snapshot in table.snapshots():
                yield table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()

    def assert_once_in_each_version(self) -> int:
        """Check that no version has a row twice, a deleted row, or an older count than the version before;
        return how many.

        The newest must have what the model computes from all readings.
        """
        highest: dict[int, int] = {}
        rows: dict[int, int] = {}
        count = 0
        for count, rows in enumerate(self.versions(), 1):
            for sensor, hits in rows.items():
                assert hits % 3, (count, sensor, hits)
                assert hits >= highest.get(sensor, 0), (count, sensor, hits, highest[sensor])
                highest[sensor] = hits
        assert rows == (dict.fromkeys(range(SENSORS), self.files) if self.files % 3 else {})
        return count


def survive(feed: UpsertFeed, victims: list[str], interval_ms: int, server: S3Server | None = None) -> None:
    """Kill one victim after another, and check all versions of the table."""
    seed = (14 if interval_ms else 13) + (2 if server else 0)
    place = (
        f"{NAMES[feed.lake]}{' on S3' if server else ''} in {'real time' if interval_ms else 'micro-batches'}"
    )
    command = f"-k kills_of_a_job_that_upserts_into_a_lake{'_on_s3' if server else ''}"
    settings = partial(feed.settings, feed.folder, checkpoint_interval_ms=interval_ms)
    interrupt = None if server is None else partial(interrupt_briefly, server)
    with noting("lake upserts", command, str(seed)) as injected:
        KilledSink(feed.folder, feed, settings, interrupt, JOB, BUSY_S).survive(
            victims,
            random.Random(f"{seed} {feed.lake} {victims[0]}"),
            lambda victim: injected.add(f"{victim} of a job that upserts into {place}"),
        )
        assert feed.assert_once_in_each_version() > 3


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("victim", list(VICTIMS))
@pytest.mark.parametrize("lake", LAKES)
def test_kills_of_a_job_that_upserts_into_a_lake(
    tmp_path: Path, lake: str, victim: str, interval_ms: int
) -> None:
    """Twenty kills in each mode, under load, with a changelog of inserts, updates and deletes."""
    feed = UpsertFeed(tmp_path, lake)
    feed.write()
    survive(feed, [victim] * VICTIMS[victim], interval_ms)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("lake", LAKES)
def test_kills_of_a_job_that_upserts_into_a_lake_on_s3(
    tmp_path: Path, lake: str, interval_ms: int, s3: S3Server
) -> None:
    """Ten kills in each mode, some of them of the server that has the files."""
    feed = UpsertFeed(tmp_path, lake, s3)
    feed.write()
    survive(feed, victims("server", 10), interval_ms, s3)
