"""Differences are those that a plain dictionary would find."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from snapshot_support import EVENTS, LOG, ROOMS, SETTINGS, setting, write_snapshot

from penstock.errors import DamagedSnapshotError
from penstock.snapshots.differences import diff
from penstock.snapshots.snapshot_writer import TableInfo
from penstock.snapshots.table_formats import FORMATS

KEYS = st.sampled_from([f"k{number}" for number in range(8)])
TABLES = st.dictionaries(
    KEYS, st.tuples(st.sampled_from([1.0, 2.0, -0.0, 0.0]), st.sampled_from(["a", "", None]))
)
EVENT_ROWS = st.lists(
    st.fixed_dictionaries({"at": st.integers(0, 2), "tags": st.sampled_from([None, [], ["x"]])}), max_size=8
)


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [setting(key, *value) for key, value in table.items()]


@given(TABLES, TABLES, st.sampled_from(FORMATS), st.sampled_from(FORMATS), st.integers(1, 3))
def test_differences_are_those_of_dictionaries(
    a: dict[str, Any], b: dict[str, Any], one: str, other: str, parts: int
) -> None:
    """For any two tables with keys, in any two formats, in any order and files."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = f"{folder}/a", f"{folder}/b"
        write_snapshot(before, [(SETTINGS, rows_of(a))], file_format=one)
        write_snapshot(after, [(SETTINGS, rows_of(b)[::-1])], file_format=other, parts=parts)
        found = diff(before, after, samples=100)
    changed = {key for key in a.keys() & b.keys() if repr(a[key]) != repr(b[key])}
    (table,) = found.tables
    assert (table.added, table.removed) == (len(b.keys() - a.keys()), len(a.keys() - b.keys()))
    assert (table.changed, table.unchanged) == (len(changed), len(a.keys() & b.keys()) - len(changed))
    seen = {(sample.change, sample.key["key"]) for sample in table.samples}
    expected = {("added", key) for key in b.keys() - a.keys()} | {
        ("removed", key) for key in a.keys() - b.keys()
    }
    assert seen == expected | {("changed", key) for key in changed}
    for sample in table.samples:
        for row, model in ((sample.before, a), (sample.after, b)):
            if row is not None:
                value = row["value"]
                assert repr((float(value["temperature"]), value["mode"])) == repr(model[row["key"]])
    assert found.same == table.same == (not seen)


@examples(25)
@given(EVENT_ROWS, EVENT_ROWS)
def test_without_a_key_whole_rows_are_compared(a: list[Any], b: list[Any]) -> None:
    """Each as often as it is there."""
    left, right = ([(row["at"], repr(row["tags"])) for row in rows] for rows in (a, b))
    common = sum(min(left.count(row), right.count(row)) for row in set(left))
    with tempfile.TemporaryDirectory() as folder:
        write_snapshot(f"{folder}/a", [(EVENTS, a)])
        write_snapshot(f"{folder}/b", [(EVENTS, b)], file_format="arrow", parts=1)
        (table,) = diff(f"{folder}/a", f"{folder}/b", samples=0).tables
    assert (table.removed, table.added, table.changed) == (len(a) - common, len(b) - common, 0)
    assert table.unchanged == common


def test_tables_come_and_go(tmp_path: Path) -> None:
    """And are told by name."""
    write_snapshot(str(tmp_path / "a"), [(SETTINGS, ROOMS)])
    write_snapshot(str(tmp_path / "b"), [(EVENTS, LOG)])
    found = diff(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.tables_added, found.tables_removed) == (("thermostat/events",), ("thermostat/setting",))
    assert found.tables == ()
    assert not found.same


def schema_table(*fields: pa.Field, key: tuple[str, ...] | None = None) -> TableInfo:
    return TableInfo("t", "s", "state", pa.schema(list(fields)), key)


KEY, X, Y = pa.field("key", pa.int64()), pa.field("x", pa.int64()), pa.field("y", pa.string())


def test_schemas_change(tmp_path: Path) -> None:
    """Rows are compared by what both have, and the changes are told in words."""
    a, b, c = (str(tmp_path / name) for name in "abc")
    write_snapshot(a, [(schema_table(KEY, X, Y), [{"key": 1, "x": 1, "y": "a"}, {"key": 2, "x": 2}])])
    wide = pa.field("y", pa.int32())
    write_snapshot(b, [(schema_table(KEY, X, wide), [{"key": 1, "x": 1, "y": 5}, {"key": 2, "x": 3}])])
    (table,) = diff(a, b).tables
    assert table.schema_changes == ("column 'y' was string and is int32",)
    assert (table.changed, table.unchanged, table.added, table.removed) == (1, 1, 0, 0)
    write_snapshot(c, [(schema_table(pa.field("key", pa.string()), X), [{"key": "1", "x": 1}])])
    (table,) = diff(a, c).tables
    assert table.schema_changes == ("column 'y' was removed", "column 'key' was int64 and is string")
    assert (table.removed, table.added) == (2, 1)


def test_a_key_has_several_columns(tmp_path: Path) -> None:
    """Those that begin with `key.`, or those that were named."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    fields = pa.field("key.site", pa.string()), pa.field("key.room", pa.int64()), X
    assert schema_table(*fields).key == ("key.site", "key.room")
    assert schema_table(KEY, X, key=("key", "x")).key == ("key", "x")
    assert schema_table(KEY, pa.field("key_group", pa.int8())).key == ("key",)
    write_snapshot(a, [(schema_table(*fields), [{"key.site": "a", "key.room": n, "x": n} for n in range(3)])])
    write_snapshot(
        b, [(schema_table(*fields), [{"key.site": "a", "key.room": n, "x": 2} for n in range(1, 4)])]
    )
    (table,) = diff(a, b, samples=1).tables
    assert (table.added, table.removed, table.changed, table.unchanged) == (1, 1, 1, 1)
    assert table.samples[0].key == {"key.site": "a", "key.room": 3}
    assert table.samples[2].before == {"key.site": "a", "key.room": 1, "x": 1}


def test_damage_is_no_difference(tmp_path: Path) -> None:
    """It is an error."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    write_snapshot(a, [(SETTINGS, ROOMS)])
    write_snapshot(b, [(SETTINGS, ROOMS[1:])])
    (tmp_path / "b" / "thermostat" / "setting" / "part-00000.csv").write_text("key\n")
    with pytest.raises(DamagedSnapshotError):
        diff(a, b)
