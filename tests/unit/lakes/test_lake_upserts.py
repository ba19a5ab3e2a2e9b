"""Upserts into tables of both lakes: the last change of each key, once, despite repeated or concurrent commits."""

from __future__ import annotations

import datetime as dt
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from lake_tables import LAKES, iceberg_binding, lake_uri, records_of
from property_examples import examples

from penstock.bindings.parse import parse_binding
from penstock.errors import BindingError
from penstock.jobs.job_sinks import open_sink
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import Sink, TaskContext
from penstock.tables.changes import changelog_type

ROOM = record_type("id INT, part STRING, floor INT")
CHANGES = changelog_type(ROOM)
Row = tuple[Any, ...]


class Table:
    """A lake table and the drivers that write to it; rows are identified by `id` and `part`."""

    def __init__(
        self, lake: str, folder: Path, partition_by: str = "", key: Sequence[str] = ("id", "part")
    ) -> None:
        self.lake, self.folder, self.key = lake, folder, key
        self.uri = lake_uri(lake, folder, partition_by)

    def driver(self, kind: RecordType = CHANGES) -> Sink:
        binding = parse_binding("seen", self.uri, "sink")
        sink = open_sink(binding, kind, None, upsert_key=self.key if kind is CHANGES else None)
        sink.prepare("line", "")
        return sink

    def staged(
        self, sink: Sink, batch_id: int, *tasks: Sequence[Row], kind: RecordType = CHANGES
    ) -> list[bytes]:
        """Stage the changes of each task, one block each, as workers do."""
        found = []
        for partition, changes in enumerate(tasks):
            task = pickle.loads(pickle.dumps(sink)).task(TaskContext(batch_id, partition, 0, "line"), kind)
            for change in changes:
                rows = [dict(zip(kind.field_names, change, strict=True))]
                task.write(pa.RecordBatch.from_pylist(rows, kind.schema), None)
            found.append(task.finish())
        return found

    def rows(self) -> list[Row]:
        found = records_of(self.lake, self.folder).select(ROOM.field_names).to_pylist()
        return sorted(map(tuple, (row.values() for row in found)), key=str)

    def left(self) -> list[Path]:
        """Return staged files that nobody has removed."""
        return list(self.folder.rglob("*.arrow"))


def changed(rows: dict[Row, Row], changes: Sequence[Row]) -> None:
    """Apply changes to rows by key."""
    for number, part, floor, kind in changes:
        if kind == "-D":
            rows.pop((number, part), None)
        elif kind != "-U":
            rows[number, part] = (number, part, floor)


def change(number: int, floor: int, kind: str = "+I", part: str | None = "p") -> Row:
    return (number, part, floor, kind)


@pytest.mark.parametrize("partition_by", ["", "part"])
@pytest.mark.parametrize("lake", LAKES)
def test_the_last_change_of_a_key_stays(lake: str, partition_by: str, tmp_path: Path) -> None:
    """Each micro-batch is one commit; a repetition changes nothing, by this driver or the next."""
    table = Table(lake, tmp_path, partition_by)
    sink = table.driver()
    first = table.staged(
        sink, 0, [change(1, 1), change(2, 2), change(1, 3, "+U")], [change(3, 4, part="q")], []
    )
    assert first[2] == b""
    sink.commit(0, first)
    assert table.rows() == [(1, "p", 3), (2, "p", 2), (3, "q", 4)]
    second = table.staged(
        sink, 1, [change(2, 2, "-D"), change(4, 5), change(9, 9, "-D"), change(3, 6, "+U", "q")]
    )
    sink.commit(1, second)
    expected = [(1, "p", 3), (3, "q", 6), (4, "p", 5)]
    assert table.rows() == expected
    assert table.left() == []
    assert sink.newest("line", "") == 1
    sink.commit(1, second)
    other = table.driver()
    # An older driver's commit arrives after the newest, when it was suspended.
    other.commit(0, table.staged(other, 0, [change(1, 0), change(7, 7)]))
    other.commit(1, table.staged(other, 1, [change(4, 0)]))
    assert table.rows() == expected
    assert table.left() == []


@pytest.mark.parametrize("lake", LAKES)
def test_a_task_that_fails_leaves_nothing(lake: str, tmp_path: Path) -> None:
    """This goes for failures before and after its end."""
    table = Table(lake, tmp_path)
    sink = table.driver()
    for finishes in (False, True):
        task = sink.task(TaskContext(0, 0, 0, "line"), CHANGES)
        rows = [dict(zip(CHANGES.field_names, change(1, 1), strict=True))]
        task.write(pa.RecordBatch.from_pylist(rows, CHANGES.schema), None)
        if finishes:
            task.finish()
        task.abort()
        assert table.left() == []


KEYS = st.tuples(st.integers(1, 4), st.sampled_from(["a", "b", "ä/%", None]))


@examples(36)
@given(st.sampled_from(LAKES), st.booleans(), st.data())
def test_random_changes_leave_what_they_say(lake: str, is_partitioned: bool, data: st.DataObject) -> None:
    """Over micro-batches that are repeated, by new drivers, with compaction and other writers between."""
    one_change = st.tuples(KEYS, st.integers(0, 99), st.sampled_from(["+I", "-U", "+U", "-D"]))
    with tempfile.TemporaryDirectory() as folder:
        table = Table(lake, Path(folder), "part" if is_partitioned else "")
        expected: dict[Row, Row] = {}
        sink = table.driver()
        for batch_id in range(data.draw(st.integers(1, 4))):
            found = data.draw(st.lists(one_change, max_size=8))
            changes = [(*key, floor, kind) for key, floor, kind in found if kind != "-U"]
            # The changes of a key come through one task.
            tasks = [[one for one in changes if one[0] % 2 == number] for number in range(2)]
            messages = table.staged(sink, batch_id, *tasks)
            if data.draw(st.booleans()):
                # Another writer adds rows that the next changes do not touch.
                row = (100 + batch_id, "a", 0)
                add(table, row)
                expected[row[:2]] = row
            sink.commit(batch_id, messages)
            changed(expected, changes)
            if data.draw(st.booleans()):
                sink = table.driver()
                sink.commit(batch_id, table.staged(sink, batch_id, *tasks))
            assert table.rows() == sorted(expected.values(), key=str)
            if lake == "delta" and data.draw(st.booleans()):
                DeltaTable(table.folder / "table").optimize.compact()
        assert table.left() == []


def add(table: Table, row: Row) -> None:
    """Add a row as another writer does."""
    rows = pa.Table.from_pylist([dict(zip(ROOM.field_names, row, strict=True))], ROOM.schema)
    if table.lake == "delta":
        write_deltalake(table.folder / "table", rows, mode="append")
    else:
        open_existing_table(iceberg_binding(table.folder)).append(rows)


@pytest.mark.parametrize("lake", LAKES)
def test_a_commit_that_meets_another_one_is_tried_again(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry uses the other writer's version: it replaces a row that the driver had not seen."""
    from penstock.lakes import delta_sink, iceberg_sink

    table = Table(lake, tmp_path)
    sink = table.driver()
    sink.commit(0, table.staged(sink, 0, [change(1, 1), change(2, 2)]))
    module: Any = delta_sink if lake == "delta" else iceberg_sink
    name = "merge_changes" if lake == "delta" else "_overwrite"
    real, met = getattr(module, name), []

    def disturbed(*arguments: Any) -> Any:
        if not met:
            met.append(True)
            other = Table(lake, tmp_path).driver()
            other._application = "another"  # type: ignore[attr-defined]
            other._line = "another"  # type: ignore[attr-defined]
            other.commit(0, table.staged(other, 0, [change(2, 5, "+U"), change(3, 3)]))
        return real(*arguments)

    monkeypatch.setattr(module, name, disturbed)
    sink.commit(1, table.staged(sink, 1, [change(2, 9, "+U"), change(3, 8, "+U")]))
    assert table.rows() == [(1, "p", 1), (2, "p", 9), (3, "p", 8)]
    assert table.left() == []


@pytest.mark.parametrize("lake", LAKES)
def test_records_replace_the_rows_of_their_keys(lake: str, tmp_path: Path) -> None:
    """This is upsert_by in the URI, without a changelog; an unknown field is refused."""
    table = Table(lake, tmp_path)
    table.uri += ("&" if "?" in table.uri else "?") + "upsert_by=id"
    sink = table.driver(ROOM)
    sink.commit(0, table.staged(sink, 0, [(1, "a", 1), (2, "b", 2), (1, "c", 3)], kind=ROOM))
    sink.commit(1, table.staged(sink, 1, [(2, "d", 4)], kind=ROOM))
    assert table.rows() == [(1, "c", 3), (2, "d", 4)]
    with pytest.raises(BindingError, match="remove upsert_by"):
        table.driver(CHANGES)
    table.uri = table.uri.replace("upsert_by=id", "upsert_by=number")
    with pytest.raises(BindingError, match="upsert_by names number"):
        table.driver(ROOM)


@pytest.mark.parametrize("lake", LAKES)
def test_rows_of_all_key_types_are_found(lake: str, tmp_path: Path) -> None:
    """This includes more rows than are compared one by one."""
    kind = record_type("day DATE, at TIMESTAMP, ok BOOLEAN, number DECIMAL(9, 2), n BIGINT, x DOUBLE")
    names = "day,at,ok,number,n"
    table = Table(lake, tmp_path)
    table.uri += ("&" if "?" in table.uri else "?") + f"upsert_by={names}"
    sink = table.driver(kind)
    day = dt.date(2026, 1, 1)

    def rows(count: int, x: float) -> list[dict[str, Any]]:
        return [
            {
                "day": day + dt.timedelta(days=n),
                "at": dt.datetime(2026, 1, 1, 0, n % 60, tzinfo=dt.UTC),
                "ok": n % 2 == 0,
                "number": n,
                "n": n,
                "x": x,
            }
            for n in range(count)
        ]

    for batch_id, (count, x) in enumerate([(500, 1.0), (3, 2.0), (300, 3.0), (501, 4.0)]):
        task = sink.task(TaskContext(batch_id, 0, 0, "line"), kind)
        task.write(pa.RecordBatch.from_pylist(rows(count, x), kind.schema), None)
        sink.commit(batch_id, [task.finish()])
        found = records_of(lake, tmp_path)
        assert len(found) == max(500, count)
        assert found.column("x").to_pylist().count(x) == count


def test_a_table_that_must_not_change_is_refused(tmp_path: Path) -> None:
    """So is one with columns that a replaced row would lose."""
    write_deltalake(
        tmp_path / "table",
        pa.Table.from_pylist([], ROOM.schema),
        configuration={"delta.appendOnly": "true"},
    )
    with pytest.raises(BindingError, match="only takes rows that are added"):
        Table("delta", tmp_path).driver()
    add_column = Table("iceberg", tmp_path)
    add_column.driver()
    with open_existing_table(iceberg_binding(tmp_path)).update_schema() as update:
        from pyiceberg.types import StringType

        update.add_column("owner", StringType())
    with pytest.raises(BindingError, match="further columns, owner, which rows that are replaced would lose"):
        add_column.driver()


@pytest.mark.parametrize("lake", LAKES)
def test_a_key_that_cannot_be_one_is_refused(lake: str, tmp_path: Path) -> None:
    """The error comes when the sink is opened."""
    with pytest.raises(BindingError, match="x cannot be the key of rows"):
        open_sink(
            parse_binding("seen", lake_uri(lake, tmp_path), "sink"),
            changelog_type(record_type("x DOUBLE")),
            None,
            upsert_key=["x"],
        )
    with pytest.raises(BindingError, match="upserts of one row, which has no key"):
        open_sink(parse_binding("seen", lake_uri(lake, tmp_path), "sink"), CHANGES, None, upsert_key=[])
