"""A snapshot exists with its manifest, and not before; the same content gives the same bytes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from snapshot_support import EVENTS, LOG, ROOMS, SETTINGS, setting, write_snapshot

from penstock.errors import AlreadyThereError, NotThereError, SnapshotError
from penstock.snapshots.snapshot_reader import read_manifest, read_table, verify
from penstock.snapshots.snapshot_writer import Contents, PartEntry, TableInfo, commit, table_path, write_part
from penstock.snapshots.stores import Data, Store, open_store
from penstock.snapshots.table_formats import FORMATS


class CrashError(Exception):
    """The process died."""


class CrashingStore:
    """A store that dies at one write: before it, or behind it."""

    def __init__(self, store: Store, crash_at: int, *, behind: bool) -> None:
        self._store, self._left, self._behind = store, crash_at, behind
        self.writes = 0

    def create(self, path: str, data: Data) -> None:
        self.writes += 1
        if self._left == self.writes and not self._behind:
            raise CrashError
        self._store.create(path, data)
        if self._left == self.writes:
            raise CrashError

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_is_written_is_read(tmp_path: Path, file_format: str) -> None:
    """In every format, with its extra files; and verify finds nothing."""
    written = write_snapshot(str(tmp_path), file_format=file_format)
    store = open_store(str(tmp_path))
    manifest = read_manifest(store)
    assert manifest == written
    rows = [row for batch in read_table(store, manifest, "thermostat/setting") for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row["key"]) == ROOMS
    found = verify(str(tmp_path))
    assert found.sound, found.defects
    assert (found.rows, found.files) == (len(ROOMS) + len(LOG), 7)
    assert store.read("offsets/readings.bin").startswith(b"opaque")


def test_a_dump_is_readable(tmp_path: Path) -> None:
    """Plain CSV with a header, beside its schema, below a folder named like the table."""
    write_snapshot(str(tmp_path))
    text = (tmp_path / "thermostat" / "setting" / "part-00000.csv").read_text()
    assert text.splitlines()[:2] == [
        "key,value.temperature,value.mode,value.since",
        "room-00,20,heat,",
    ]
    schema = json.loads((tmp_path / "thermostat" / "setting" / "schema.json").read_text())
    assert schema["columns"][0] == {"name": "key", "type": "string", "nullable": False}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["positions"] == {"readings": {"0": 17, "1": 4}}
    assert list(manifest)[-1] == "checksum"


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_same_content_gives_the_same_bytes(tmp_path: Path, file_format: str) -> None:
    """Every file, however often it is written."""
    for name in "ab":
        write_snapshot(str(tmp_path / name), file_format=file_format)
    files = open_store(str(tmp_path / "a")).list()
    assert "manifest.json" in files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("behind", [False, True])
def test_a_crash_at_any_write_leaves_no_snapshot(tmp_path: Path, behind: bool) -> None:
    """Until the manifest is there; and the same writes again complete it."""
    counting = CrashingStore(open_store(str(tmp_path / "whole")), 0, behind=False)
    write_snapshot(counting)  # type: ignore[arg-type]
    for crash_at in range(1, counting.writes + 1):
        uri = str(tmp_path / f"at-{crash_at}")
        with pytest.raises(CrashError):
            write_snapshot(CrashingStore(open_store(uri), crash_at, behind=behind))  # type: ignore[arg-type]
        store = open_store(uri)
        if crash_at < counting.writes or not behind:
            with pytest.raises(NotThereError, match="There is no snapshot in"):
                read_manifest(store)
            assert not verify(uri).sound
        write_snapshot(uri)
        assert verify(uri).sound


def test_a_place_takes_one_snapshot(tmp_path: Path) -> None:
    """A second one with other content is refused, and the first stays."""
    first = write_snapshot(str(tmp_path))
    with pytest.raises(AlreadyThereError, match="files of snapshots are never overwritten"):
        write_snapshot(str(tmp_path), name="d-2")
    with pytest.raises(AlreadyThereError, match="part-00000"):
        write_snapshot(str(tmp_path), [(SETTINGS, [setting("x", 1.0)])])
    assert read_manifest(open_store(str(tmp_path))) == first


def test_parts_travel(tmp_path: Path) -> None:
    """Tables, stores and parts go to other processes and come back."""
    store = pickle.loads(pickle.dumps(open_store(str(tmp_path))))
    table = pickle.loads(pickle.dumps(SETTINGS))
    batch = pa.RecordBatch.from_pylist(list(ROOMS), schema=table.schema)
    part = write_part(store, table, 3, [batch], "jsonl")
    assert part.file.path == "thermostat/setting/part-00003.jsonl"
    assert msgspec.json.decode(msgspec.json.encode(part), type=PartEntry) == part


def test_a_table_without_parts_is_empty(tmp_path: Path) -> None:
    """It is listed with its schema."""
    manifest = write_snapshot(str(tmp_path), [(SETTINGS, [])], parts=0)
    assert manifest.table("thermostat/setting").rows == 0
    assert verify(str(tmp_path)).sound
    with pytest.raises(SnapshotError, match="Its tables: 'thermostat/setting'"):
        manifest.table("none")


@pytest.mark.parametrize(
    "name",
    ["a/b", "Ümläut/ß", "a.b", "..", "a b", "x/schema.json", "manifest.json", "%41", "q?*:", "long" * 100],
)
def test_any_name_is_a_safe_path(tmp_path: Path, name: str) -> None:
    """Names of tables come from users."""
    assert not set(table_path(name)) & set(". ?*:\\")
    write_snapshot(str(tmp_path), [(TableInfo(name, "s", "state", SETTINGS.schema), ROOMS)])
    assert verify(str(tmp_path)).sound
    store = open_store(str(tmp_path))
    assert sum(len(batch) for batch in read_table(store, read_manifest(store), name)) == len(ROOMS)


def test_names_do_not_meet() -> None:
    """Two names are two paths, long ones too."""
    names = ["a/b", "a%2Fb", "a.b", "a%2Eb", "é" * 60, "é" * 61, "x" * 300, "x" * 301, "~", "%7E"]
    assert len({table_path(name) for name in names}) == len(names)
    with pytest.raises(SnapshotError, match="none of them empty"):
        table_path("a//b")


def bad_contents(**changes: Any) -> Contents:
    fields = {"kind": "dump", "id": "d", "job": "j", "batch": 1, "key_groups": 8, "format": "csv"}
    return Contents(**{"tables": [SETTINGS], **fields, **changes})


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    """Before a manifest is written."""
    store = open_store(str(tmp_path))
    part = write_part(store, SETTINGS, 0, [], "csv")
    other = write_part(store, EVENTS, 0, [], "csv")
    with pytest.raises(SnapshotError, match="does not belong to a table"):
        commit(store, bad_contents(), [part, other])
    with pytest.raises(SnapshotError, match="occurs twice"):
        commit(store, bad_contents(), [part, part])
    with pytest.raises(SnapshotError, match="two tables of the same name"):
        commit(store, bad_contents(tables=[SETTINGS, SETTINGS]), [])
    with pytest.raises(SnapshotError, match="is not in the format 'parquet'"):
        commit(store, bad_contents(format="parquet"), [part])
    with pytest.raises(SnapshotError, match="A savepoint has the format arrow"):
        commit(store, bad_contents(kind="savepoint"), [part])
    assert not store.exists("manifest.json")
    with pytest.raises(SnapshotError, match="'xml' is not a format of snapshots"):
        write_part(store, SETTINGS, 1, [], "xml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (pa.schema([]), "has no columns"),
        (pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]), "dictionary"),
        (pa.schema([("a", pa.list_(pa.decimal256(40, 1)))]), "decimal256"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "two columns 'a'"),
        (pa.schema([('a"', pa.int8())]), "quotes"),
        (pa.schema([("a", pa.struct([]))]), "struct without fields"),
    ],
)
def test_schemas_that_cannot_be_held_are_refused(schema: pa.Schema, reason: str) -> None:
    """By the table, before anything is written."""
    with pytest.raises(SnapshotError, match=reason):
        TableInfo("t", "s", "state", schema)


def test_rows_that_do_not_fit_are_not_written(tmp_path: Path) -> None:
    """Other columns, and null where there is none."""
    store = open_store(str(tmp_path))
    other = pa.RecordBatch.from_pylist([{"x": 1}])
    with pytest.raises(SnapshotError, match="The rows have the columns x int64"):
        write_part(store, SETTINGS, 0, [other], "csv")
    null = pa.RecordBatch.from_arrays(
        [pa.array(["a", None]), pa.array([None, None], SETTINGS.schema.field("value").type)],
        schema=SETTINGS.schema,
    )
    with pytest.raises(SnapshotError, match="'key' has null in row 2"):
        write_part(store, SETTINGS, 0, [null], "csv")
    assert store.list() == []
    with pytest.raises(SnapshotError, match="has no column 'id' for its key"):
        TableInfo("t", "s", "state", SETTINGS.schema, key=("id",))
