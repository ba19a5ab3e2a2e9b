"""Commits of micro-batches to an Iceberg table: each once, whoever repeats it."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_tables import iceberg_binding
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import IntegerType

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import IcebergBinding
from penstock.commands.job_receipts import RECEIPT_TYPE
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.lakes import commit_rest
from penstock.lakes.iceberg_catalog import open_catalog, open_existing_table
from penstock.lakes.iceberg_sink import IcebergSink
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE
from penstock.sinks.base import TaskContext

READING = record_type("sensor STRING, value DOUBLE, at TIMESTAMP")
AT = dt.datetime(2026, 5, 1, 23, 59, 59, 5, tzinfo=dt.UTC)


class Table:
    """A table and the drivers that write to it."""

    def __init__(self, folder: Path, query: str = "", line: str = "line") -> None:
        self.folder = folder
        self.query = query
        self.line = line

    @property
    def binding(self) -> IcebergBinding:
        return iceberg_binding(self.folder, self.query)

    def sink(self, reading: RecordType = READING) -> IcebergSink:
        return IcebergSink(self.binding, reading)

    def driver(self) -> IcebergSink:
        sink = self.sink()
        sink.prepare(self.line, "")
        return sink

    def staged(self, sink: IcebergSink, batch_id: int, *tasks: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Stage the records of each task, as workers do with the driver's sink."""
        found = []
        for partition, records in enumerate(tasks):
            task = pickle.loads(pickle.dumps(sink)).task(
                TaskContext(batch_id, partition, 0, self.line), READING
            )
            for record in records:
                task.write(rows(record), None)
            found.append(task.finish())
        return found

    @property
    def found(self) -> IcebergTable:
        return open_existing_table(self.binding)

    def records(self) -> list[tuple[Any, ...]]:
        table = self.found.scan().to_arrow()
        return sorted(zip(*(table.column(name).to_pylist() for name in READING.field_names), strict=True))

    def files(self) -> set[str]:
        return {f"file://{path}" for path in self.folder.rglob("*.parquet")}

    def named(self) -> set[str]:
        return set(self.found.inspect.files().column("file_path").to_pylist())


def rows(*records: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*records, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, READING.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=READING.schema)


def test_a_micro_batch_is_one_snapshot_with_the_files_of_all_tasks(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.sink().newest("line", "") == -1
    assert list(tmp_path.iterdir()) == []
    sink = table.driver()
    messages = table.staged(sink, 3, [("a", 1.0, AT), ("b", 2.0, AT)], [("c", 3.0, AT)], [])
    assert table.records() == []
    assert messages[2] == b""
    sink.commit(3, messages)
    assert table.records() == [("a", 1.0, AT), ("b", 2.0, AT), ("c", 3.0, AT)]
    assert table.files() == table.named()
    assert len(table.named()) == 2
    (snapshot,) = table.found.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["penstock.batch"] == "3"
    assert snapshot.summary["penstock.line"] == "seen-line"
    assert (sink.newest("line", ""), sink.newest("another", "")) == (3, -1)
    sink.commit(4, table.staged(sink, 4, [], []))
    assert len(table.found.snapshots()) == 1


def test_a_micro_batch_that_is_repeated_adds_nothing(tmp_path: Path) -> None:
    """This holds for the same driver with the same files, for the next one, and after its snapshot has expired."""
    table = Table(tmp_path)
    first = table.driver()
    messages = table.staged(first, 0, [("a", 1.0, AT)])
    first.commit(0, messages)
    first.commit(0, messages)
    next_one = table.driver()
    assert next_one.newest("line", "") == 0
    next_one.commit(0, table.staged(next_one, 0, [("a", 1.0, AT)]))
    assert table.records() == [("a", 1.0, AT)]
    assert table.files() == table.named()
    next_one.commit(1, table.staged(next_one, 1, [("b", 2.0, AT)]))
    table.found.maintenance.expire_snapshots().by_id(table.found.snapshots()[0].snapshot_id).commit()
    next_one.commit(0, table.staged(next_one, 0, [("a", 1.0, AT)]))
    assert table.records() == [("a", 1.0, AT), ("b", 2.0, AT)]


def test_a_zombie_driver_commits_nothing_twice(tmp_path: Path) -> None:
    """It opened the table earlier, and is suspended while its successor works."""
    table = Table(tmp_path)
    zombie = table.driver()
    late = [table.staged(zombie, batch_id, [("a", batch_id, AT)]) for batch_id in range(3)]
    successor = table.driver()
    for batch_id in range(2):
        successor.commit(batch_id, table.staged(successor, batch_id, [("a", batch_id, AT)]))
    for batch_id in range(2):
        zombie.commit(batch_id, late[batch_id])
    assert table.records() == [("a", 0.0, AT), ("a", 1.0, AT)]
    # If it commits first, its successor does not commit again.
    zombie.commit(2, late[2])
    successor.commit(2, table.staged(successor, 2, [("a", 2, AT)]))
    assert table.records() == [("a", 0.0, AT), ("a", 1.0, AT), ("a", 2.0, AT)]
    assert table.files() == table.named()


def overtaking(monkeypatch: pytest.MonkeyPatch, first: Any) -> None:
    """Run an action once, while a commit is on its way to the catalog."""
    commit = SqlCatalog.commit_table

    def overtaken(self: SqlCatalog, *args: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        first()
        return commit(self, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)


def test_of_two_drivers_that_commit_at_once_the_catalog_refuses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have checked that the table lacks the micro-batch when the first commits it."""
    table = Table(tmp_path)
    one, other = table.driver(), table.driver()
    for batch_id in range(2):
        mine, others = (table.staged(sink, batch_id, [("a", batch_id, AT)]) for sink in (one, other))
        overtaking(monkeypatch, lambda number=batch_id, others=others: other.commit(number, others))
        one.commit(batch_id, mine)
    assert table.records() == [("a", 0.0, AT), ("a", 1.0, AT)]
    assert table.files() == table.named()
    assert len(table.found.snapshots()) == 2


def test_other_writers_only_delay_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path)
    sink = table.driver()
    mine = table.staged(sink, 0, [("a", 1.0, AT)])
    overtaking(monkeypatch, lambda: table.found.append(pa.table(rows(("other", 1.0, AT)))))
    sink.commit(0, mine)
    assert table.records() == [("a", 1.0, AT), ("other", 1.0, AT)]
    assert [snapshot.summary["penstock.batch"] for snapshot in table.found.snapshots()] == [None, "0"]  # type: ignore[index]


def test_a_table_that_others_always_change_first_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    sink = table.driver()

    def refused(*args: Any) -> None:
        raise CommitFailedException("it has changed")

    monkeypatch.setattr(SqlCatalog, "commit_table", refused)
    monkeypatch.setattr(commit_rest, "_FIRST_WAIT_S", 0)
    with pytest.raises(ExternalSystemError, match="before micro-batch 0 in each of 30 attempts"):
        sink.commit(0, table.staged(sink, 0, [("a", 1.0, AT)]))


def test_jobs_and_sinks_share_a_table(tmp_path: Path) -> None:
    tables = [Table(tmp_path, line=line) for line in ("one", "two")]
    for table in tables:
        sink = table.driver()
        sink.commit(0, table.staged(sink, 0, [(table.line, 1.0, AT)]))
    assert tables[0].records() == [("one", 1.0, AT), ("two", 1.0, AT)]


def test_manifests_are_merged_so_that_commits_do_not_become_slower(tmp_path: Path) -> None:
    table = Table(tmp_path)
    sink = table.driver()
    with table.found.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for batch_id in range(8):
        sink.commit(batch_id, table.staged(sink, batch_id, [("a", batch_id, AT)]))
    snapshot = table.found.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.found.io)) < 5
    sink.commit(7, table.staged(sink, 7, [("a", 7, AT)]))
    assert len(table.records()) == 8
    assert table.files() == table.named()


def test_files_are_apart_by_the_partition_fields(tmp_path: Path) -> None:
    """Any text can be a value, and a reader that filters by one skips the other files."""
    table = Table(tmp_path, "&partition_by=day(at),sensor,bucket(4,value)")
    with pytest.raises(
        BindingError, match=r"bucket\(4,value\) cannot partition a table, since value is double"
    ):
        table.driver()
    table.query = "&partition_by=day(at),sensor"
    sink = table.driver()
    odd = ["a/b", "50 %", "ü=?#", "..", "x" * 100, "%2F", "", None]
    late = AT + dt.timedelta(days=1)
    messages = table.staged(
        sink, 0, [*((sensor, 1.0, AT) for sensor in odd), ("a/b", 2.0, late), ("a", 3, None)]
    )
    sink.commit(0, messages)
    # A repetition with the same files finds each of them in the table.
    sink.commit(0, messages)
    assert table.files() == table.named()
    assert len(table.named()) == 10
    scan = table.found.scan(row_filter="sensor == 'a/b' and at < '2026-05-02T00:00:00+00:00'")
    assert [task.file.record_count for task in scan.plan_files()] == [1]
    assert scan.to_arrow().column("value").to_pylist() == [1.0]
    # An existing table has its own partitioning.
    table.query = ""
    again = table.driver()
    again.commit(1, table.staged(again, 1, [("a/b", 3.0, AT)]))
    assert table.found.scan(row_filter="sensor == 'a/b'").to_arrow().num_rows == 3


def test_all_transforms_of_iceberg(tmp_path: Path) -> None:
    for number, rule in enumerate(
        ("year(at)", "month(at)", "hour(at)", "bucket(8,sensor)", "truncate(1,sensor)")
    ):
        table = Table(tmp_path / str(number), f"&partition_by={rule}")
        sink = table.driver()
        sink.commit(0, table.staged(sink, 0, [("abc", 1.0, AT), ("bcd", 2.0, AT + dt.timedelta(days=400))]))
        assert len(table.named()) == 2, rule
        assert table.found.scan(row_filter="sensor == 'abc'").to_arrow().column("value").to_pylist() == [1.0]


def test_every_type_of_a_record_comes_back(tmp_path: Path) -> None:
    ddl = (
        "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT NOT NULL, f FLOAT, d DOUBLE, n DECIMAL(10, 2), x STRING, "
        "y BINARY, at TIMESTAMP, day DATE, many ARRAY<STRING>, of MAP<STRING, BIGINT>, r STRUCT<a: INT, at: TIMESTAMP>"
    )
    every = record_type(ddl)
    table = Table(tmp_path)
    sink = table.sink(every)
    sink.prepare("line", "")
    record = {
        **dict(zip("tsil", range(1, 5), strict=True)),
        "b": True,
        "f": 0.5,
        "d": 0.25,
        "n": decimal.Decimal("1.25"),
        "x": "é",
        "y": b"\0",
        "at": AT,
        "day": AT.date(),
        "many": ["a", None],
        "of": [("k", 1)],
        "r": {"a": 1, "at": AT},
    }
    task = sink.task(TaskContext(0, 0, 0, "line"), every)
    empty = dict.fromkeys(record) | {"l": 0}
    task.write(pa.RecordBatch.from_pylist([record, empty], schema=every.schema), None)
    sink.commit(0, [task.finish()])
    found = table.found.scan().to_arrow().to_pylist()
    assert sorted(found, key=lambda row: -row["l"]) == [record, empty]
    # A start checks the table that an earlier start has created.
    table.sink(every).prepare("line", "")


@pytest.mark.parametrize("of_job", [DEAD_LETTER_TYPE, RECEIPT_TYPE])
def test_dead_letters_and_receipts_have_tables_too(tmp_path: Path, of_job: RecordType) -> None:
    """The second start finds the table of the first."""
    for _ in range(2):
        Table(tmp_path).sink(of_job).prepare("line", "")


def test_a_long_value_of_a_partition_field_has_a_folder_with_its_beginning(tmp_path: Path) -> None:
    """File systems refuse names of over 255 bytes, and each start would fail at the record again."""
    table = Table(tmp_path, "&partition_by=sensor")
    sink = table.driver()
    records = [(letter * 300 + "/../%", 1.0, AT) for letter in "a\u00e4"]
    sink.commit(0, table.staged(sink, 0, records))
    assert table.records() == sorted(records)
    assert len(list(table.found.scan(row_filter=f"sensor = '{records[0][0]}'").plan_files())) == 1


def test_a_failed_task_leaves_no_file(tmp_path: Path) -> None:
    table = Table(tmp_path, "&partition_by=sensor")
    sink = table.driver()
    for write in (True, False):
        task = sink.task(TaskContext(0, 0, 0, "line"), READING)
        if write:
            task.write(rows(*((str(number), 1.0, AT) for number in range(70))), None)
        task.abort()
    assert table.files() == set()


@pytest.mark.parametrize(
    ("columns", "query", "message"),
    [
        ("sensor STRING, value DOUBLE", "", r'no column at; it has sensor, value.*update.add_column\("at"'),
        (
            "sensor STRING, value BIGINT, at TIMESTAMP",
            "",
            "has value as long, but the records have it as double",
        ),
        ("sensor STRING NOT NULL, value DOUBLE, at TIMESTAMP", "", r'make_column_optional\("sensor"\)'),
        ("sensor STRING, value DOUBLE, at TIMESTAMP, more INT NOT NULL", "", "needs a value for more"),
        (
            "sensor STRING, value DOUBLE, at TIMESTAMP",
            "&partition_by=day(at)",
            r"is not partitioned, and not by day",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, columns: str, query: str, message: str
) -> None:
    Table(tmp_path).sink(record_type(columns)).prepare("line", "")
    with pytest.raises(BindingError, match=message):
        Table(tmp_path, query).driver()


def test_a_table_of_another_partition_or_version_is_refused(tmp_path: Path) -> None:
    by_value = record_type("sensor STRING, value DOUBLE, at TIMESTAMP, room STRING")
    Table(tmp_path, "&partition_by=room").sink(by_value).prepare("line", "")
    with pytest.raises(
        BindingError, match="is partitioned by room, but the records have only sensor, value, at"
    ):
        Table(tmp_path).driver()
    with pytest.raises(BindingError, match=r"is partitioned by room, and not by hour\(at\)"):
        Table(tmp_path, "&partition_by=hour(at)").driver()
    newer = Table(tmp_path / "newer")
    newer.driver()
    as_of_2 = json.loads(Path(newer.found.metadata_location.removeprefix("file://")).read_text())
    (tmp_path / "v3.metadata.json").write_text(json.dumps({**as_of_2, "format-version": 3, "next-row-id": 0}))
    catalog = open_catalog(newer.binding)
    catalog.drop_table("plant.seen")
    catalog.register_table("plant.seen", f"file://{tmp_path}/v3.metadata.json")
    with pytest.raises(BindingError, match="has the format version 3; penstock writes versions 1 and 2"):
        newer.driver()


def test_a_partition_field_that_is_not_there_makes_no_table(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match="is to be partitioned by room, but the records have only sensor"):
        Table(tmp_path, "&partition_by=room").driver()
    assert list(tmp_path.iterdir()) == []


def test_a_table_may_change_while_the_job_runs(tmp_path: Path) -> None:
    """A new column stays empty; for changed partition fields the micro-batch's files are rewritten."""
    table = Table(tmp_path)
    sink = table.driver()
    with table.found.update_schema() as update:
        update.add_column("more", IntegerType())
    sink.commit(0, table.staged(sink, 0, [("a", 1.0, AT)]))
    assert table.found.scan().to_arrow().column("more").to_pylist() == [None]
    with table.found.update_spec() as spec:
        spec.add_identity("sensor")
    with pytest.raises(ExternalSystemError, match=r"have changed while the job ran\. Start it again"):
        sink.commit(1, table.staged(sink, 1, [("a", 2.0, AT)]))
    again = table.driver()
    again.commit(1, table.staged(again, 1, [("a", 2.0, AT)]))
    assert table.records() == [("a", 1.0, AT), ("a", 2.0, AT)]
    # Columns are matched by id, not by name.
    with table.found.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with pytest.raises(BindingError, match="has no column value"):
        again.commit(2, table.staged(again, 2, [("a", 3.0, AT)]))


def test_a_missing_table_is_made_unless_the_user_says_no(tmp_path: Path) -> None:
    table = Table(tmp_path, "&create_table=false")
    assert table.sink().newest("line", "") == -1
    with pytest.raises(
        PlaceMissingError, match=r"catalog .*/catalog.db has no table plant.seen. Create it, or"
    ):
        table.driver()
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BindingError, match="cannot be written"):
        Table(tmp_path / "file").driver()


def test_a_catalog_in_no_folder_is_refused(tmp_path: Path) -> None:
    """A wrong path would start a second catalog, and create the table again in it."""
    uri = f"iceberg:plant.seen?catalog={tmp_path}/wrong/catalog.db&warehouse={tmp_path}"
    binding = parse_binding("seen", uri, "sink")
    assert isinstance(binding, IcebergBinding)
    with pytest.raises(BindingError, match=r"/wrong is no folder. Correct catalog= in the URI, or make"):
        IcebergSink(binding, READING).prepare("line", "")
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_gone_or_made_anew_is_a_sentence(tmp_path: Path) -> None:
    table = Table(tmp_path)
    sink = table.driver()
    staged = table.staged(sink, 0, [("a", 1.0, AT)])
    open_catalog(table.binding).drop_table("plant.seen")
    with pytest.raises(
        ExternalSystemError, match=r"the Iceberg table plant.seen of the catalog .* cannot be read"
    ):
        sink.commit(0, staged)
    table.driver()
    with pytest.raises(ExternalSystemError, match=r"cannot be read or written"):
        sink.commit(0, staged)


def test_a_missing_library_is_one_sentence_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    sink = Table(tmp_path).sink()
    for step in (sink.newest, sink.prepare):
        with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[iceberg\]'"):
            step("line", "")
