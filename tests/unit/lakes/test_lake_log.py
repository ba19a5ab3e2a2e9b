"""Lake tables as sources: each added row once, in commit order, and identically in a replay."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lake_tables import LAKES, iceberg_binding, lake_sink, lake_uri
from pyiceberg.catalog.sql import SqlCatalog

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding, IcebergBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.lakes import lake_log
from penstock.lakes.committed_files import TableGoneError
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.lakes.lake_log import LakeLog
from penstock.records.schemas import record_type
from penstock.sources.file_source import Keeping
from penstock.sources.found_files import FoundFiles

NUMBER = record_type("number BIGINT NOT NULL, part STRING, day DATE")
DAY = dt.date(2026, 5, 1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_log, "_LOOK_S", {"delta": 0, "iceberg": 0})


class Lake:
    """A table that another writer fills, and a stream that reads it."""

    def __init__(self, lake: str, folder: Path) -> None:
        self.lake = lake
        self.folder = folder
        lake_sink(lake, folder, NUMBER, "part,day").prepare("line", "")

    def append(self, *numbers: int) -> None:
        records = [{"number": n, "part": f"p/{n % 2}", "day": DAY} for n in numbers]
        rows = pa.Table.from_pylist(records, NUMBER.schema)
        if self.lake == "delta":
            write_deltalake(self.folder / "table", rows, mode="append")
        else:
            open_existing_table(iceberg_binding(self.folder)).append(rows)

    def remove(self, number: int) -> None:
        if self.lake == "delta":
            DeltaTable(self.folder / "table").delete(f"number = {number}")
        else:
            open_existing_table(iceberg_binding(self.folder)).delete(f"number == {number}")

    def log(self, query: str = "", *, commands: bool = False, retained: int = 100) -> LakeLog:
        base = lake_uri(self.lake, self.folder)
        binding = parse_binding("numbers", f"{base}{'&' if '?' in base else '?'}{query}".rstrip("?&"), "data")
        assert isinstance(binding, DeltaBinding | IcebergBinding)
        log = LakeLog(binding, self.folder / "numbers.files", Keeping(retained), commands=commands)
        log.check()
        return log


def read(log: LakeLog, start: int, end: int) -> list[int]:
    """Return what workers read, with a log from the driver."""
    worker = pickle.loads(pickle.dumps(log))
    chunks = list(worker.read(log.splits(start, end, 4), NUMBER))
    assert [chunk.partition for chunk in chunks] == sorted(chunk.partition for chunk in chunks)
    assert all(not chunk.bad for chunk in chunks)
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]
    assert all(row == {"number": row["number"], "part": f"p/{row['number'] % 2}", "day": DAY} for row in rows)
    return sorted(row["number"] for row in rows)


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def test_a_stream_reads_the_table_and_then_each_commit_once(lake: Lake) -> None:
    lake.append(1, 2)
    lake.append(3)
    log = lake.log()
    first = log.latest(log.beginning(), limited=True)
    assert read(log, 0, first) == [1, 2, 3]
    lake.append(4, 5)
    lake.append(6)
    # A driver that continues has only the list in the checkpoint.
    again = lake.log()
    second = again.latest(first, limited=True)
    assert read(again, first, second) == [4, 5, 6]
    assert again.latest(second, limited=True) == second
    assert read(again, 0, first) == [1, 2, 3]
    assert again.lag(second)["files"] == 0


def test_a_bounded_run_ends_with_the_version_of_its_start(lake: Lake) -> None:
    lake.append(1)
    log = lake.log()
    log.freeze()
    lake.append(2)
    end = log.latest(0, limited=True)
    assert read(log, 0, end) == [1]
    # The next run continues after it.
    log = lake.log()
    log.freeze()
    assert read(log, end, log.latest(end, limited=True)) == [2]


def test_a_job_may_begin_with_what_comes(lake: Lake) -> None:
    lake.append(1)
    log = lake.log("start=latest")
    begin = log.latest(0, limited=True)
    assert read(log, 0, begin) == []
    lake.append(2)
    log = lake.log("start=latest")
    assert read(log, begin, log.latest(begin, limited=True)) == [2]


def test_an_empty_table_is_read_from_its_first_commit(lake: Lake) -> None:
    log = lake.log("start=latest")
    begin = log.latest(0, limited=True)
    lake.append(1)
    assert read(log, begin, log.latest(begin, limited=True)) == [1]


def test_a_micro_batch_takes_as_many_files_as_its_binding_says(lake: Lake) -> None:
    lake.append(1, 2)
    for number in range(3, 7):
        lake.append(number)
    log = lake.log("max_files_per_batch=2")
    found, position = [], 0
    while (end := log.latest(position, limited=True)) > position:
        assert end - position <= 2
        found += read(log, position, end)
        position = end
    assert found == [1, 2, 3, 4, 5, 6]


def test_a_commit_that_changes_rows_ends_the_run_or_is_left_out(lake: Lake) -> None:
    lake.append(1, 2, 3)
    log = lake.log()
    end = log.latest(0, limited=True)
    lake.remove(2)
    lake.append(4)
    with pytest.raises(ExternalSystemError, match=r"deletes or rewrites rows.*changed=skip"):
        log.latest(end, limited=True)
    log = lake.log("changed=skip")
    assert read(log, end, log.latest(end, limited=True)) == [4]


def test_compaction_adds_nothing(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.append(1)
    lake.append(3)
    log = lake.log()
    end = log.latest(0, limited=True)
    DeltaTable(tmp_path / "table").optimize.compact()
    lake.append(5)
    assert read(log, end, log.latest(end, limited=True)) == [5]
    # Compacted files stay until the table is vacuumed.
    assert read(log, 0, end) == [1, 3]
    DeltaTable(tmp_path / "table").vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ExternalSystemError, match=r"which version \d+ has added, cannot be read"):
        read(log, 0, end)


def test_the_list_does_not_grow_with_history(lake: Lake) -> None:
    log = lake.log(retained=1)
    position = 0
    for number in range(3):
        lake.append(number)
        end = log.latest(position, limited=True)
        assert read(log, position, end) == [number]
        log._compact(log._files(), end)
        position = end
    found = FoundFiles(str(lake.folder / "numbers.files"))
    assert (len(found.files), found.end) == (1, position)
    lake.append(9)
    assert read(lake.log(), position, lake.log().latest(position, limited=True)) == [9]


@pytest.mark.parametrize("whole", [True, False])
def test_a_list_that_a_crash_has_cut_is_completed(lake: Lake, whole: bool) -> None:
    """The cut may be among the files of the start, or of a commit."""
    if not whole:
        lake.log().latest(0, limited=True)
    lake.append(*range(4))
    log = lake.log()
    end = log.latest(0, limited=True)
    path = lake.folder / "numbers.files"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    lake.append(4)
    log = lake.log()
    last = log.latest(0, limited=True)
    assert read(log, 0, last) == [0, 1, 2, 3, 4]
    assert path.read_bytes().splitlines(keepends=True)[: len(lines)] == lines
    assert read(log, 0, end) == [0, 1, 2, 3]


def test_a_table_in_the_place_of_another_is_refused(lake: Lake) -> None:
    lake.append(1)
    lake.log().latest(0, limited=True)
    if lake.lake == "delta":
        (lake.folder / "table").rename(lake.folder / "old")
    else:
        SqlCatalog("default", uri=iceberg_binding(lake.folder).catalog).drop_table("plant.seen")
    other = Lake(lake.lake, lake.folder)
    with pytest.raises(TableGoneError, match="is another table than the one that the checkpoint has read"):
        other.log().latest(0, limited=True)


def gone(lake: Lake) -> None:
    """Remove unread entries from the history of a table."""
    if lake.lake == "delta":
        (lake.folder / "table" / "_delta_log" / f"{2:020}.json").unlink()
    else:
        table = open_existing_table(iceberg_binding(lake.folder))
        table.maintenance.expire_snapshots().by_id(table.snapshots()[1].snapshot_id).commit()


def test_history_that_is_gone_is_a_sentence(lake: Lake) -> None:
    lake.append(1)
    log = lake.log()
    end = log.latest(0, limited=True)
    for number in (2, 3):
        lake.append(number)
    log._commits.newest()
    gone(lake)
    with pytest.raises(TableGoneError, match=r"no longer has .*Start with a new checkpoint"):
        log.latest(end, limited=True)


def test_columns_are_taken_by_name_and_those_that_are_missing_are_null(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    write_deltalake(
        tmp_path / "table",
        pa.table({"number": [1], "part": ["a"], "day": [DAY], "more": [1.5]}),
        mode="append",
        schema_mode="merge",
    )
    log = lake.log()
    wanted = record_type("more DOUBLE, number BIGINT, none STRING")
    (chunk,) = log.read(log.splits(0, log.latest(0, limited=True), 1), wanted)
    assert chunk.batch is not None
    assert chunk.batch.to_pylist() == [{"more": 1.5, "number": 1, "none": None}]


def test_rows_are_commands(tmp_path: Path) -> None:
    command = record_type("id STRING, kind STRING, payload STRING, version BIGINT, at TIMESTAMP")
    lake_sink("iceberg", tmp_path, command).prepare("line", "")
    rows: list[Any] = [{"id": "1", "kind": "set", "payload": '{"a": 1}', "version": None, "at": None}]
    open_existing_table(iceberg_binding(tmp_path)).append(pa.Table.from_pylist(rows, command.schema))
    lake = Lake.__new__(Lake)
    lake.lake, lake.folder = "iceberg", tmp_path
    log = lake.log(commands=True)
    (chunk,) = log.read(log.splits(0, log.latest(0, limited=True), 1), command)
    assert chunk.raw is not None
    assert chunk.raw.to_pylist() == [b'{"id":"1","kind":"set","payload":{"a": 1}}']


@pytest.mark.parametrize("make", [lambda path: f"delta:{path}", lambda path: lake_uri("iceberg", path)])
def test_a_table_that_is_not_there_is_refused(tmp_path: Path, make: Callable[[Path], str]) -> None:
    binding = parse_binding("numbers", make(tmp_path), "data")
    assert isinstance(binding, DeltaBinding | IcebergBinding)
    with pytest.raises(BindingError, match=r"Bind the stream to"):
        LakeLog(binding, tmp_path / "files").check()
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_needs_a_newer_reader_is_refused(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    DeltaTable(tmp_path / "table").alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    with pytest.raises(BindingError, match="needs a reader that knows deletionVectors"):
        lake.log()
