"""Commits of micro-batches to a Delta Lake table: each once, whoever repeats it."""

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
from deltalake import DeltaTable, Field, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.schema import PrimitiveType

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding
from penstock.commands.job_receipts import RECEIPT_TYPE
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.lakes.delta_sink import DeltaSink
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE
from penstock.sinks.base import TaskContext

READING = record_type("sensor STRING, value DOUBLE, day DATE")
DAY = dt.date(2026, 5, 1)


class Table:
    """A table and the drivers that write to it."""

    def __init__(self, folder: Path, query: str = "", line: str = "line") -> None:
        self.folder = folder
        self.query = query
        self.line = line

    def sink(self, reading: Any = READING) -> DeltaSink:
        binding = parse_binding("seen", f"delta:{self.folder}{self.query}", "sink")
        assert isinstance(binding, DeltaBinding)
        return DeltaSink(binding, reading)

    def driver(self) -> DeltaSink:
        sink = self.sink()
        sink.prepare(self.line, "")
        return sink

    def staged(self, sink: DeltaSink, batch_id: int, *tasks: Sequence[tuple[Any, ...]]) -> list[bytes]:
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

    def records(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(self.folder).to_pyarrow_table()
        return sorted(zip(*(table.column(name).to_pylist() for name in READING.field_names), strict=True))

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts}

    def named(self) -> set[Path]:
        return {Path(uri) for uri in DeltaTable(self.folder).file_uris()}


def rows(*records: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*records, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, READING.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=READING.schema)


def test_a_micro_batch_is_one_commit_with_the_files_of_all_tasks(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.driver()
    assert sink.newest("line", "") == -1
    messages = table.staged(sink, 3, [("a", 1.0, DAY), ("b", 2.0, DAY)], [("c", 3.0, DAY)], [])
    assert table.records() == []
    assert messages[2] == b""
    sink.commit(3, messages)
    assert table.records() == [("a", 1.0, DAY), ("b", 2.0, DAY), ("c", 3.0, DAY)]
    assert DeltaTable(table.folder).version() == 1
    assert table.files() == table.named()
    assert len(table.named()) == 2
    assert sink.newest("line", "") == 3
    assert sink.newest("another", "") == -1


def test_a_micro_batch_that_is_repeated_adds_nothing(tmp_path: Path) -> None:
    """This holds for the same driver with the same files, and for the next one with new files."""
    table = Table(tmp_path / "t")
    first = table.driver()
    messages = table.staged(first, 0, [("a", 1.0, DAY)])
    first.commit(0, messages)
    first.commit(0, messages)
    next_one = table.driver()
    assert next_one.newest("line", "") == 0
    next_one.commit(0, table.staged(next_one, 0, [("a", 1.0, DAY)]))
    assert table.records() == [("a", 1.0, DAY)]
    assert table.files() == table.named()
    next_one.commit(1, table.staged(next_one, 1, [("b", 2.0, DAY)]))
    assert table.records() == [("a", 1.0, DAY), ("b", 2.0, DAY)]


def test_an_empty_micro_batch_is_no_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.driver()
    sink.commit(0, table.staged(sink, 0, [], []))
    assert DeltaTable(table.folder).version() == 0


def test_a_zombie_driver_commits_nothing_twice(tmp_path: Path) -> None:
    """It opened the table earlier, and is suspended while its successor works."""
    table = Table(tmp_path / "t")
    zombie = table.driver()
    late = [table.staged(zombie, batch_id, [("a", batch_id, DAY)]) for batch_id in range(3)]
    successor = table.driver()
    for batch_id in range(2):
        successor.commit(batch_id, table.staged(successor, batch_id, [("a", batch_id, DAY)]))
    for batch_id in range(2):
        zombie.commit(batch_id, late[batch_id])
    assert table.records() == [("a", 0.0, DAY), ("a", 1.0, DAY)]
    # If it commits first, its successor does not commit again.
    zombie.commit(2, late[2])
    successor.commit(2, table.staged(successor, 2, [("a", 2, DAY)]))
    assert table.records() == [("a", 0.0, DAY), ("a", 1.0, DAY), ("a", 2.0, DAY)]
    assert table.files() == table.named()


def test_of_two_drivers_that_commit_at_once_the_table_refuses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have checked that the table lacks the micro-batch when the first commits it."""
    table = Table(tmp_path / "t")
    one, other = table.driver(), table.driver()
    mine, others = (table.staged(sink, 0, [("a", 1.0, DAY)]) for sink in (one, other))
    add = DeltaTable.create_write_transaction

    def overtaken(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", add)
        other.commit(0, others)
        add(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    one.commit(0, mine)
    assert table.records() == [("a", 1.0, DAY)]
    assert table.files() == table.named()
    assert DeltaTable(table.folder).version() == 1


def test_other_writers_and_compaction_go_on_beside_the_job(tmp_path: Path) -> None:
    """The number of the micro-batch stays in the table, also through a checkpoint of its log."""
    table = Table(tmp_path / "t")
    sink = table.driver()
    for batch_id in range(3):
        sink.commit(batch_id, table.staged(sink, batch_id, [("a", batch_id, DAY)]))
        write_deltalake(table.folder, pa.table(rows(("other", batch_id, DAY))), mode="append")
        DeltaTable(table.folder).optimize.compact()
    DeltaTable(table.folder).create_checkpoint()
    DeltaTable(table.folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(table.files()) == 1
    sink.commit(2, table.staged(sink, 2, [("a", 2, DAY)]))
    again = table.driver()
    assert again.newest("line", "") == 2
    again.commit(2, table.staged(again, 2, [("a", 2, DAY)]))
    assert table.records() == [(who, value, DAY) for who in ("a", "other") for value in (0.0, 1.0, 2.0)]


def test_jobs_and_sinks_share_a_table(tmp_path: Path) -> None:
    tables = [Table(tmp_path / "t", line=line) for line in ("one", "two")]
    for table in tables:
        sink = table.driver()
        sink.commit(0, table.staged(sink, 0, [(table.line, 1.0, DAY)]))
    assert tables[0].records() == [("one", 1.0, DAY), ("two", 1.0, DAY)]


def test_files_are_apart_by_the_fields_of_the_partition(tmp_path: Path) -> None:
    """Any text can be a value; empty text is null, as for all writers of Delta Lake."""
    table = Table(tmp_path / "t", "?partition_by=sensor,day")
    sink = table.driver()
    odd = ["a/b", "50 %", "ü=?#", "..", "x" * 300, "%2F", None, ""]
    records = [(sensor, 1.0, DAY) for sensor in odd]
    messages = table.staged(sink, 0, [*records, ("a/b", 2.0, None)])
    sink.commit(0, messages)
    # A repetition with the same files finds each of them in the table.
    sink.commit(0, messages)
    assert table.files() == table.named()
    found = DeltaTable(table.folder).to_pyarrow_table().to_pylist()
    expected = [(sensor or None, 1.0, DAY) for sensor in odd] + [("a/b", 2.0, None)]
    key = lambda row: (str(row[0]), row[1])  # noqa: E731
    assert sorted(((row["sensor"], row["value"], row["day"]) for row in found), key=key) == sorted(
        expected, key=key
    )
    assert len(table.named()) == 8
    assert any("/sensor=50%20%25/day=2026-05-01/part-" in str(path) for path in table.files())
    of_one = DeltaTable(table.folder).file_uris(
        file_pruning_predicate=[("sensor", "=", "a/b"), ("day", "=", "2026-05-01")]
    )
    assert len(of_one) == 1
    # An existing table has its own partitioning.
    table.query = ""
    again = table.driver()
    again.commit(1, table.staged(again, 1, [("a/b", 3.0, DAY)]))
    assert len(DeltaTable(table.folder).file_uris(file_pruning_predicate=[("sensor", "=", "a/b")])) == 3


def test_a_task_has_few_files_open_however_many_values_there_are(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", "?partition_by=sensor")
    sink = table.driver()
    task = sink.task(TaskContext(0, 0, 0, "line"), READING)
    batch = rows(*((f"s{number:03}", float(number), DAY) for number in range(150)))
    task.write(batch, None)
    task.write(batch, None)
    sink.commit(0, [task.finish()])
    assert DeltaTable(table.folder).to_pyarrow_table().num_rows == 300
    assert len(DeltaTable(table.folder).partitions()) == 150


def test_the_log_says_what_is_in_a_file(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.driver()
    records = [("x" * 40, 1.5, DAY), (None, -2.0, dt.date(2025, 1, 1))]
    sink.commit(0, table.staged(sink, 0, records, [("y", float("nan"), None)]))
    added = [
        json.loads(json.loads(line)["add"]["stats"])
        for line in (table.folder / "_delta_log" / f"{1:020}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    assert added == [
        {
            "numRecords": 2,
            "minValues": {"sensor": "x" * 32, "value": -2.0, "day": "2025-01-01"},
            "maxValues": {"value": 1.5, "day": "2026-05-01"},
            "nullCount": {"sensor": 1, "value": 0, "day": 0},
        },
        {
            "numRecords": 1,
            "minValues": {"sensor": "y"},
            "maxValues": {"sensor": "y"},
            "nullCount": {"sensor": 0, "value": 0, "day": 1},
        },
    ]


def test_every_type_of_a_record_comes_back(tmp_path: Path) -> None:
    ddl = (
        "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT NOT NULL, f FLOAT, d DOUBLE, n DECIMAL(10, 2), x STRING, "
        "y BINARY, at TIMESTAMP, day DATE, many ARRAY<STRING>, of MAP<STRING, BIGINT>, r STRUCT<a: INT, at: TIMESTAMP>"
    )
    every = record_type(ddl)
    table = Table(tmp_path / "t")
    sink = table.sink(every)
    sink.prepare("line", "")
    at = dt.datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    record = {
        **dict(zip("tsil", range(1, 5), strict=True)),
        "b": True,
        "f": 0.5,
        "d": 0.25,
        "n": decimal.Decimal("1.25"),
        "x": "é",
        "y": b"\0",
        "at": at,
        "day": DAY,
        "many": ["a", None],
        "of": [("k", 1)],
        "r": {"a": 1, "at": at},
    }
    task = sink.task(TaskContext(0, 0, 0, "line"), every)
    empty = dict.fromkeys(record) | {"l": 0}
    task.write(pa.RecordBatch.from_pylist([record, empty], schema=every.schema), None)
    sink.commit(0, [task.finish()])
    found = DeltaTable(table.folder).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: -row["l"]) == [record, empty]
    # A start checks the table that an earlier start has created.
    table.sink(every).prepare("line", "")


@pytest.mark.parametrize("of_job", [DEAD_LETTER_TYPE, RECEIPT_TYPE])
def test_dead_letters_and_receipts_have_tables_too(tmp_path: Path, of_job: RecordType) -> None:
    """The second start finds the table of the first."""
    table = Table(tmp_path / "t")
    for _ in range(2):
        table.sink(of_job).prepare("line", "")
    assert DeltaTable(table.folder).schema() == DeltaSchema.from_arrow(of_job.schema)


def test_a_failed_task_leaves_no_file(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", "?partition_by=sensor")
    sink = table.driver()
    for write in (True, False):
        task = sink.task(TaskContext(0, 0, 0, "line"), READING)
        if write:
            task.write(rows(*((str(number), 1.0, DAY) for number in range(100))), None)
        task.abort()
    assert table.files() == set()


@pytest.mark.parametrize(
    ("columns", "query", "message"),
    [
        ("sensor STRING, value DOUBLE", "", r"no column day; it has sensor, value.*add_columns\(\[Field"),
        ("sensor STRING, value BIGINT, day DATE", "", "has value as long, but the records have it as double"),
        ("sensor STRING NOT NULL, value DOUBLE, day DATE", "", r"drop_column_not_null\(\"sensor\"\)"),
        ("sensor STRING, value DOUBLE, day DATE, more INT NOT NULL", "", "needs a value for more"),
        ("sensor STRING, value DOUBLE, day DATE", "?partition_by=day", "is not partitioned, and not by day"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, columns: str, query: str, message: str
) -> None:
    table = Table(tmp_path / "t", query)
    DeltaTable.create(table.folder, DeltaSchema.from_arrow(record_type(columns).schema))
    with pytest.raises(BindingError, match=message):
        table.driver()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?partition_by=room", "partitioned by room, but the records have only sensor, value, day"),
        ("?partition_by=value", "value cannot partition a table; text, whole numbers"),
    ],
)
def test_partition_fields_are_checked_before_a_table_is_made(
    tmp_path: Path, query: str, message: str
) -> None:
    with pytest.raises(BindingError, match=message):
        Table(tmp_path / "t", query).driver()
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))


def test_a_table_needs_a_column_besides_its_partition_fields(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match="needs a column besides those"):
        Table(tmp_path / "t", "?partition_by=sensor").sink(record_type("sensor STRING")).prepare("line", "")


def test_a_table_with_rules_of_its_own_is_refused(tmp_path: Path) -> None:
    """This holds also if a rule is added while the job runs: then the micro-batch fails, and nothing is
    committed.
    """
    table = Table(tmp_path / "t")
    sink = table.driver()
    DeltaTable(table.folder).alter.add_constraint({"hot": "value > 0"})
    with pytest.raises(BindingError, match=r"has delta\.constraints\.hot, which penstock does not keep"):
        table.driver()
    with pytest.raises(BindingError, match=r"delta\.constraints\.hot"):
        sink.commit(0, table.staged(sink, 0, [("a", -1.0, DAY)]))
    assert table.records() == []


def test_a_column_that_the_records_do_not_have_stays_empty(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.driver()
    DeltaTable(table.folder).alter.add_columns([Field("more", PrimitiveType("integer"))])
    sink.commit(0, table.staged(sink, 0, [("a", 1.0, DAY)]))
    assert DeltaTable(table.folder).to_pyarrow_table().column("more").to_pylist() == [None]


def test_a_table_whose_partition_fields_change_gets_no_files_of_other_ones(tmp_path: Path) -> None:
    """Partition columns are not in the files, so their values would be lost; the next start uses the new ones."""
    table = Table(tmp_path / "t")
    sink = table.driver()
    messages = table.staged(sink, 0, [("a", 1.0, DAY)])
    there = DeltaTable(table.folder).to_pyarrow_table()
    write_deltalake(
        table.folder, there, mode="overwrite", schema_mode="overwrite", partition_by=[READING.field_names[0]]
    )
    with pytest.raises(
        ExternalSystemError, match=r"is now partitioned by .*, and the files of .* by nothing"
    ):
        sink.commit(0, messages)
    again = table.driver()
    again.commit(0, table.staged(again, 0, [("a", 1.0, DAY)]))
    assert table.records() == [("a", 1.0, DAY)]


def test_a_missing_table_is_made_unless_the_user_says_no(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", "?create_table=false")
    assert table.sink().newest("line", "") == -1
    with pytest.raises(PlaceMissingError, match=r"there is no Delta table in .*/t. Create it, or leave"):
        table.driver()
    assert not table.folder.exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file")
    with pytest.raises(BindingError, match="cannot be written"):
        Table(tmp_path / "t" / "x").driver()


def test_a_damaged_log_is_a_sentence(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    table.driver()
    (table.folder / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(ExternalSystemError, match=r"the Delta table .* cannot be read or written"):
        table.driver()


def test_a_missing_library_is_one_sentence_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    sink = Table(tmp_path / "t").sink()
    for step in (sink.newest, sink.prepare):
        with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[delta\]'"):
            step("line", "")
