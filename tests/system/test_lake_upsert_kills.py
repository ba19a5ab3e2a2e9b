"""Jobs that upsert into a table of a lake: each version of it has what a fold had once, whichever process is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from file_feed import SENSORS
from lake_feed import Feed
from lake_tables import LAKES, iceberg_binding, records_of
from reliability import noting
from sink_kills import BUSY_S, KilledSink

from penstock.lakes.iceberg_catalog import existing_table

JOB = Path(__file__).parent / "changing_hits.sql"
# How often each is killed.
VICTIMS = {"driver": 7, "JVM": 7, "worker": 6}
NAMES = {"delta": "Delta Lake", "iceberg": "Iceberg"}


class UpsertFeed(Feed):
    """Readings in files, and the versions of the table."""

    def versions(self) -> Iterator[dict[int, int]]:
        """The rows of each version, by their keys, oldest first."""
        for table in self._tables():
            rows = list(
                zip(table.column("sensor").to_pylist(), table.column("hits").to_pylist(), strict=True)
            )
            found = dict(rows)
            assert len(found) == len(rows), rows
            yield found

    def _tables(self) -> Iterator[object]:
        if self.lake == "delta":
            newest = DeltaTable(self.folder / "table").version()
            for version in range(newest + 1):
                yield DeltaTable(self.folder / "table", version=version).to_pyarrow_table()
        else:
            table = existing_table(iceberg_binding(self.folder))
            for snapshot in table.snapshots():
                yield table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()

    def assert_once_in_each_version(self) -> int:
        """No version has a row twice, one that was deleted, or an older count than a version before; return how many.

        The newest has what a fold of all readings has.
        """
        highest: dict[int, int] = {}
        count = 0
        for count, rows in enumerate(self.versions(), 1):
            for sensor, hits in rows.items():
                assert hits % 3, (count, sensor, hits)
                assert hits >= highest.get(sensor, 0), (count, sensor, hits, highest[sensor])
                highest[sensor] = hits
        newest = records_of(self.lake, self.folder).to_pylist()
        expected = [(sensor, self.files) for sensor in range(SENSORS)] if self.files % 3 else []
        assert sorted((row["sensor"], row["hits"]) for row in newest) == expected
        return count


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
@pytest.mark.parametrize("victim", list(VICTIMS))
@pytest.mark.parametrize("lake", LAKES)
def test_kills_of_a_job_that_upserts_into_a_lake(
    tmp_path: Path, lake: str, victim: str, interval_ms: int
) -> None:
    """Twenty in each mode, under load, of a changelog whose rows come, change and go."""
    seed = 14 if interval_ms else 13
    mode = "real time" if interval_ms else "micro-batches"
    feed = UpsertFeed(tmp_path, lake)
    feed.write()
    settings = partial(feed.settings, tmp_path, checkpoint_interval_ms=interval_ms)
    with noting("lake upserts", "-k kills_of_a_job_that_upserts_into_a_lake", str(seed)) as injected:
        KilledSink(tmp_path, feed, settings, job=JOB, patience_s=BUSY_S).survive(
            [victim] * VICTIMS[victim],
            random.Random(f"{seed} {lake} {victim}"),
            lambda victim: injected.add(f"{victim} of a job that upserts into {NAMES[lake]} in {mode}"),
        )
        assert feed.assert_once_in_each_version() > 3
