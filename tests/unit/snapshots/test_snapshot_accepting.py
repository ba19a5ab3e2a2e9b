"""Edits of a dump are taken when every row fits, and told by file, line, column and value when one does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from snapshot_support import EVENTS, ROOMS, SETTINGS, setting, write_snapshot

from penstock.errors import DamagedSnapshotError, SnapshotError
from penstock.snapshots.snapshot_reader import accept, read_manifest, read_table, verify
from penstock.snapshots.stores import open_store
from penstock.snapshots.text_rows import UnfitRowError

FIRST = "thermostat/setting/part-00000"
Edit = Callable[[str], str]


def edit(folder: Path, path: str, change: Edit) -> None:
    file = folder / path
    file.write_bytes(change(file.read_bytes().decode()).encode())


def rooms(uri: str) -> dict[str, tuple[float, str | None]]:
    store = open_store(uri)
    batches = read_table(store, read_manifest(store), "thermostat/setting")
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["key"]: (row["value"]["temperature"], row["value"]["mode"]) for row in rows}


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_good_edit_of_csv_is_taken(tmp_path: Path, bom: str, end: str) -> None:
    """Values changed, rows removed and added, columns in another order; also as Windows writes lines."""
    uri = str(tmp_path)
    before = write_snapshot(uri)
    old = (tmp_path / "manifest.json").read_bytes()
    rows = [
        "value.mode,key,value.since,value.temperature",
        '"a, ""b""\n c",room-00,2024-01-31T12:00:00+01:00,-0.5',
        '"",new,,1e3',
        ",last,2024-01-31,NaN",
    ]
    edit(tmp_path, f"{FIRST}.csv", lambda _: bom + end.join(rows))
    assert not verify(uri).sound
    after = accept(uri)
    assert verify(uri).sound
    assert after == read_manifest(open_store(uri))
    assert after.table("thermostat/setting").rows == 13
    assert after.digest != before.digest
    assert (tmp_path / "manifest.json.before").read_bytes() == old
    found = rooms(uri)
    assert found["room-00"] == (-0.5, 'a, "b"\n c')
    assert found["new"] == (1000.0, "")
    assert found["last"][1] is None


def test_a_good_edit_of_json_lines_is_taken(tmp_path: Path) -> None:
    """Fields that may be null may be left out, and their order is free."""
    uri = str(tmp_path)
    write_snapshot(uri, file_format="jsonl")
    edit(tmp_path, f"{FIRST}.jsonl", lambda _: '{"value": {"temperature": 21}, "key": "only"}\n')
    accept(uri)
    assert verify(uri).sound
    assert rooms(uri)["only"] == (21.0, None)


def test_a_good_edit_of_parquet_is_taken(tmp_path: Path) -> None:
    """Written by another tool."""
    uri = str(tmp_path)
    write_snapshot(uri, file_format="parquet")
    table = pa.Table.from_pylist([setting("only", 3.0)])
    pq.write_table(table, tmp_path / f"{FIRST}.parquet")
    accept(uri)
    assert verify(uri).sound
    assert rooms(uri)["only"] == (3.0, "heat")


def test_accepting_what_was_not_edited_changes_nothing(tmp_path: Path) -> None:
    """Not even the manifest before."""
    before = write_snapshot(str(tmp_path))
    assert accept(str(tmp_path)) == before
    assert not (tmp_path / "manifest.json.before").exists()


CSV_EDITS: list[tuple[str, Edit, str]] = [
    (
        "a text for a number",
        lambda text: text.replace("room-02,20.5", "room-02,warm"),
        r"part-00000.csv, line 3, column 'value.temperature': 'warm' does not fit",
    ),
    (
        "a number too large",
        lambda text: text.replace("room-02,20.5", "room-02,1e999"),
        "line 3, column 'value.temperature': '1e999' does not fit .too large for double",
    ),
    (
        "nothing where there must be something",
        lambda text: text.replace("room-04,21,", "room-04,,"),
        "line 4, column 'value.temperature': the row does not fit .it must not be empty",
    ),
    (
        "no date",
        lambda text: text.replace("room-18,24.5,heat,", "room-18,24.5,heat,yesterday"),
        "line 11, column 'value.since': 'yesterday' does not fit",
    ),
    (
        "a cell too many",
        lambda text: text.replace("room-06,", "room-06,7,"),
        "line 5: 'room-06,7,21.5,heat,' does not fit .*Expected 4 columns, got 5",
    ),
    (
        "a blank line",
        lambda text: text.replace("room-06", "\nroom-06"),
        "line 5: the row does not fit .the line is empty",
    ),
    (
        "an open quote",
        lambda text: text.replace("room-06", '"room-06'),
        "line 5",
    ),
    (
        "a quote inside",
        lambda text: text.replace("room-06,21.5,heat", 'room-06,21.5,5" pipe'),
        "line 5: .*there is a quote inside an unquoted cell",
    ),
    (
        "the earlier of two",
        lambda text: text.replace("room-02,20.5", "room-02,x").replace(
            "room-00,20,heat,", "room-00,20,heat,y"
        ),
        "line 2, column 'value.since': 'y'",
    ),
    ("no header", lambda text: text.split("\n", 1)[1], "line 1.*the header lacks"),
    ("nothing", lambda text: "", "line 1.*there is no header"),
    (
        "a key twice",
        lambda text: text.replace("room-06", "room-02"),
        "line 5, column 'key': .*room-02.* does not fit .another row of the table has this key",
    ),
    (
        "a key of another file",
        lambda text: text.replace("room-06", "room-05"),
        "part-00001.csv, line 4, column 'key': .*room-05",
    ),
]


@pytest.mark.parametrize(("change", "reason"), [it[1:] for it in CSV_EDITS], ids=[it[0] for it in CSV_EDITS])
def test_a_bad_edit_of_csv_is_told(tmp_path: Path, change: Edit, reason: str) -> None:
    """And the manifest stays."""
    write_snapshot(str(tmp_path))
    old = (tmp_path / "manifest.json").read_bytes()
    edit(tmp_path, f"{FIRST}.csv", change)
    with pytest.raises(UnfitRowError, match=reason) as caught:
        accept(str(tmp_path))
    assert str(caught.value).endswith("Correct it, and try again.")
    assert (tmp_path / "manifest.json").read_bytes() == old


def test_a_line_is_counted_behind_cells_of_several_lines(tmp_path: Path) -> None:
    """As an editor shows it."""
    rows = [setting("a", 1.0, "x\ny\nz"), setting("b", 2.0)]
    write_snapshot(str(tmp_path), [(SETTINGS, rows)], parts=1)
    edit(tmp_path, f"{FIRST}.csv", lambda text: text.replace("b,2", "b,two"))
    with pytest.raises(UnfitRowError, match=r"line 5, column 'value.temperature': 'two'"):
        accept(str(tmp_path))


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    """By line and column."""
    write_snapshot(str(tmp_path))
    file = tmp_path / f"{FIRST}.csv"
    file.write_bytes(file.read_bytes().replace(b"room-04", b"room-\xff"))
    with pytest.raises(UnfitRowError, match=r"line 4, column 'key': 'room-\\\\xff'"):
        accept(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("20.5", '"20.5"'), "line 2, column 'value.temperature'.*Expected `float"),
        (lambda text: text.replace('"key":"room-02"', '"kee":"x"'), "line 2.*unknown field `kee`"),
        (lambda text: text.replace('"key":"room-02",', ""), "line 2.*missing required field `key`"),
        (lambda text: text.replace("\n", "\n\n", 1), "line 2.*not exactly one JSON value"),
        (lambda text: text[:-9], "line 10.*Input data was truncated"),
    ],
)
def test_a_bad_edit_of_json_lines_is_told(tmp_path: Path, change: Edit, reason: str) -> None:
    """With the place inside of the value."""
    write_snapshot(str(tmp_path), file_format="jsonl")
    edit(tmp_path, f"{FIRST}.jsonl", change)
    with pytest.raises(UnfitRowError, match=reason):
        accept(str(tmp_path))


def test_a_bad_edit_of_parquet_is_told(tmp_path: Path) -> None:
    """By row and column."""
    write_snapshot(str(tmp_path), [(EVENTS, [])], file_format="parquet", parts=1)
    file = tmp_path / "thermostat" / "events" / "part-00000.parquet"
    pq.write_table(pa.table({"at": ["1", "x"], "tags": pa.array([None, None], pa.list_(pa.string()))}), file)
    with pytest.raises(UnfitRowError, match=r"part-00000.parquet, row 2, column 'at': 'x' does not fit"):
        accept(str(tmp_path))
    pq.write_table(pa.table({"at": [1]}), file)
    with pytest.raises(UnfitRowError, match="the file has the columns at int64"):
        accept(str(tmp_path))
    file.write_bytes(b"no parquet")
    with pytest.raises(SnapshotError, match="cannot be read as parquet"):
        accept(str(tmp_path))


def test_equal_rows_are_fine_where_there_is_no_key(tmp_path: Path) -> None:
    """A table of events may have the same twice."""
    write_snapshot(str(tmp_path), parts=1)
    edit(tmp_path, "thermostat/events/part-00000.csv", lambda text: text + "1,\n1,\n")
    assert accept(str(tmp_path)).table("thermostat/events").rows == 9


def test_only_tables_of_dumps_are_edited(tmp_path: Path) -> None:
    """No savepoints, no files more or less, no schemas, no other files."""
    write_snapshot(str(tmp_path / "savepoint"), file_format="arrow")
    with pytest.raises(SnapshotError, match="is a savepoint, which is never edited"):
        accept(str(tmp_path / "savepoint"))
    folder = tmp_path / "dump"
    write_snapshot(str(folder))
    extra = folder / "thermostat" / "setting" / "part-00002.csv"
    extra.write_text("")
    with pytest.raises(SnapshotError, match=r"part-00002.csv.* is not listed.* Delete it"):
        accept(str(folder))
    extra.unlink()
    for path in ("thermostat/setting/schema.json", "offsets/readings.bin"):
        edit(folder, path, lambda text: text + " ")
        with pytest.raises(DamagedSnapshotError, match=path):
            accept(str(folder))
        edit(folder, path, lambda text: text[:-1])
    (folder / f"{FIRST}.csv").unlink()
    with pytest.raises(SnapshotError, match="leave a file without rows"):
        accept(str(folder))
    assert len(ROOMS) == 20
