"""Values kept open between rounds equal those of the state, and become the same rows."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.base.garbage import no_cyclic_collection
from penstock.errors import UnstorableValueError
from penstock.state import frozen_values, merged_table, slot_tables
from penstock.state.group_state import GroupState, state_schema
from penstock.state.key_groups import key_groups
from penstock.state.open_values import OpenValues, can_stay_open
from penstock.state.slot_tables import CachedSlot, SlotTables
from penstock.state.state_spec import StateSpec, value_spec
from penstock.state.ttl import Ttl
from penstock.testing.memory_entries import MemoryEntries

GROUPS = 4
SPECS = [value_spec("count", int), value_spec("name", str)]
SCHEMA = state_schema(pa.string(), SPECS)
Values = tuple[int | None, str | None]
NOTHING: Values = (None, None)


def groups_of(keys: pa.Array) -> Any:
    return key_groups(keys, GROUPS)


def run_any_round(tables: SlotTables, keys: list[str], made: dict[str, Values]) -> dict[str, Values]:
    """Run a round as a slot does: on open values if the table opens them, else on rows."""
    table = tables.merged(groups_of)
    column = pa.array(keys, pa.string())
    values = table.open(SPECS, [column])
    if values is not None:
        return run_round(values, keys, made)
    table.close()
    rows = GroupState(SPECS, table)
    rows.load_keys(column)
    rows.materialise()
    count, name = rows.columns["count"], rows.columns["name"]
    found = {key: (count.values[key], name.values[key]) for key in keys}
    for key, pair in made.items():
        for state, value in zip((count, name), pair, strict=True):
            state.values[key] = value
            state.dirty[key] = None
    changes = rows.changes()
    if changes is not None:
        table.put(changes)
    return found


def opened(tables: SlotTables, specs: Sequence[StateSpec] = SPECS, keys: Sequence[str] = ()) -> OpenValues:
    values = tables.merged(groups_of).open(specs, [pa.array(keys, pa.string())])
    assert values is not None
    return values


def change(values: OpenValues, state: str, key: str, value: Any) -> None:
    """Set a value as a bound state does."""
    column = values.columns[state]
    column.dirty.setdefault(key, column.values[key])
    column.values[key] = value


def run_round(values: OpenValues, keys: list[str], made: dict[str, Values]) -> dict[str, Values]:
    """Return what a round finds for its keys; then set each value, or remove it where it is None."""
    values.touch(values.untouched(keys))
    count, name = values.columns["count"], values.columns["name"]
    found = {key: (count.values[key], name.values[key]) for key in keys}
    for key, pair in made.items():
        for state, value in zip(("count", "name"), pair, strict=True):
            change(values, state, key, value)
    values.changes()
    return found


def stored(tables: SlotTables) -> dict[str, Values]:
    """Return the rows of all key groups, each checked to be in the group of its key."""
    found: dict[str, Values] = {}
    for group, table in tables.tables.items():
        rows = table.all_rows()
        keys = rows.column(0).to_pylist()
        assert all(number == group for number in groups_of(rows.column(0)).tolist())
        pairs = zip(rows.column(1).to_pylist(), rows.column(2).to_pylist(), strict=True)
        found |= dict(zip(keys, pairs, strict=True))
    return {key: pair for key, pair in found.items() if pair != NOTHING}


keys = st.sampled_from([f"key-{number}" for number in range(8)])
pairs = st.tuples(st.none() | st.integers(0, 9), st.none() | st.sampled_from("ab"))
rounds = st.dictionaries(keys, pairs, min_size=1, max_size=5)
afterwards = st.sampled_from(["", "rows", "read", "put", "settle", "store", "reopen", "keep"])


@examples(80)
@given(st.lists(st.tuples(rounds, afterwards), max_size=12), st.sampled_from([1, 4, 100]), st.integers(2, 9))
def test_rounds_find_what_earlier_rounds_set(
    many: list[tuple[dict[str, Values], str]], most_records: int, most_open: int
) -> None:
    """Larger rounds may work on open values, or on rows, and the rows may be stored and read again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_table, "_MAX_OPEN_RECORDS", most_records)
        patch.setattr(merged_table, "_MAX_OPEN", most_open)
        check_rounds(many)


def check_rounds(many: list[tuple[dict[str, Values], str]]) -> None:
    """Compare what rounds find with a model."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    model: dict[str, Values] = {}
    for made, then in many:
        asked = sorted({*made, "key-0", "key-1"})
        assert run_any_round(tables, asked, made) == {key: model.get(key, NOTHING) for key in asked}
        model |= made
        if then == "rows":
            table = tables.merged(groups_of)
            table.close()
            table.put(pa.record_batch([pa.array(["key-1"]), pa.array([7]), pa.array(["r"])], schema=SCHEMA))
            model["key-1"] = (7, "r")
        elif then == "read":
            rows = tables.merged(groups_of).all_rows()
            held = dict(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))
            assert held == {key: pair[0] for key, pair in model.items() if pair != NOTHING}
        elif then == "put":
            model |= put_row(tables)
        elif then == "settle":
            tables.settle()
        elif then:
            tables.store()
            assert not tables.changed
            if then != "store":
                tables = SlotTables(SCHEMA, entries, tables.keep() if then == "keep" else None)
    tables.settle()
    assert stored(tables) == {key: pair for key, pair in model.items() if pair != NOTHING}


def put_row(tables: SlotTables) -> dict[str, Values]:
    """Write a row as commands do, between rounds."""
    tables.settle()
    row = pa.record_batch([pa.array(["key-2"]), pa.array([8]), pa.array(["p"])], schema=SCHEMA)
    tables.put(int(groups_of(row.column(0))[0]), row)
    return {"key-2": (8, "p")}


def run_after(tables: SlotTables, then: str) -> dict[str, Values]:
    """Do what `then` names between two rounds, and return the values that it sets."""
    if then == "rows":
        table = tables.merged(groups_of)
        table.close()
        table.put(pa.record_batch([pa.array(["key-1"]), pa.array([7]), pa.array(["r"])], schema=SCHEMA))
        return {"key-1": (7, "r")}
    if then == "put":
        return put_row(tables)
    if then == "clock":
        tables.advance_clock((tables.clock_ms or 0) + 1)
    if then == "header":
        tables.put_header((tables.header or b"") + b"x")
    return {}


beside = st.tuples(
    rounds, st.sampled_from(["", "", "rows", "put", "clock", "header", "cut"]), st.integers(0, 9)
)


@examples(60)
@given(st.lists(beside, max_size=10), st.sampled_from([0, 1, 2, 1000]), st.sampled_from([1, 4, 4000]))
def test_an_interval_is_stored_beside_the_rounds_of_the_next(
    many: list[tuple[dict[str, Values], str, int]], most: int, most_records: int
) -> None:
    """However far the storing is, rounds find earlier values, and the bytes equal those of an interval stored
    at once, in a worker that continues from its cache.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_values, "_KEYS_AT_ONCE", 2)
        patch.setattr(frozen_values, "_ROWS_AT_ONCE", 1)
        patch.setattr(frozen_values, "_MANY_KEYS", most % 3)
        patch.setattr(slot_tables, "_GROUPS_AT_ONCE", 1)
        patch.setattr(merged_table, "_MAX_OPEN", 3 + most)
        patch.setattr(merged_table, "_MAX_OPEN_RECORDS", most_records)
        at_once, in_pieces = MemoryEntries({}), MemoryEntries({})
        plain, tables = SlotTables(SCHEMA, at_once), SlotTables(SCHEMA, in_pieces)
        model: dict[str, Values] = {}
        for made, then, pieces in many:
            asked = sorted({*made, "key-0", "key-1"})
            expected = {key: model.get(key, NOTHING) for key in asked}
            assert run_any_round(plain, asked, made) == expected
            assert run_any_round(tables, asked, made) == expected
            model |= made
            run_after(plain, then)
            model |= run_after(tables, then)
            for _ in itertools.islice(tables.pieces(), pieces):
                pass
            if then == "cut" and plain.changed:
                tables.finish()
                assert in_pieces.stored == at_once.stored
                plain.store()
                plain = SlotTables(SCHEMA, at_once, plain.keep())
                tables.freeze()
                tables.go_on(MemoryEntries(in_pieces.stored))
        tables.finish()
        assert in_pieces.stored == at_once.stored
        tables.settle()
        assert stored(tables) == {key: pair for key, pair in model.items() if pair != NOTHING}


def stored_and_kept(tables: SlotTables, schema: pa.Schema, entries: MemoryEntries) -> SlotTables:
    """Return the tables of the next interval, in the same worker."""
    tables.store()
    return SlotTables(schema, entries, tables.keep())


def test_values_stay_open_over_the_end_of_an_interval() -> None:
    """The next interval finds them without rows, and passes them on if it has no changes."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    run_round(opened(tables), ["x", "y"], {"x": (1, "one")})
    tables = stored_and_kept(tables, SCHEMA, entries)
    assert len(opened(tables)) == 2
    kept = tables.keep()
    assert kept.opened is not None
    assert kept.nbytes >= kept.opened.nbytes > 0
    tables = SlotTables(SCHEMA, entries, kept)
    assert run_round(opened(tables), ["x", "y"], {}) == {"x": (1, "one"), "y": NOTHING}


@dataclass(frozen=True)
class Level:
    """A record whose field may be set to a whole number."""

    height: float


@dataclass
class Tank:
    """A mutable record."""

    height: float


class Vessel(msgspec.Struct):
    """Another mutable record."""

    height: float


@pytest.mark.parametrize(("kind", "stays"), [(Tank, False), (Vessel, False), (Level, True)])
def test_what_code_changes_in_place_ends_with_the_interval(kind: Any, stays: bool) -> None:
    """So a run that restarts from stored state behaves like one that continues. Immutable values stay open."""
    specs = [value_spec("level", kind)]
    schema = state_schema(pa.string(), specs)
    entries = MemoryEntries({})
    tables = SlotTables(schema, entries)
    values = opened(tables, specs, ["x"])
    change(values, "level", "x", kind(1.0))
    values.changes()
    for _ in range(2):
        tables = stored_and_kept(tables, schema, entries)
        values = opened(tables, specs)
        assert ("x" in values.index) is stays
        values.touch(values.untouched(["x"]))
        level = values.columns["level"].values["x"]
        assert level.height == 1.0
        if not stays:
            level.height = 7.0


def test_a_record_is_read_as_it_was_stored() -> None:
    """After an interval a field has its declared type, as after a crash; other keys stay open."""
    specs = [value_spec("level", Level)]
    schema = state_schema(pa.string(), specs)
    entries = MemoryEntries({})
    tables = SlotTables(schema, entries)
    for key, number in (("x", 1), ("y", 2)):
        values = opened(tables, specs, ["x", "y"])
        change(values, "level", key, Level(number))
        values.changes()
        tables = stored_and_kept(tables, schema, entries)
    values = opened(tables, specs)
    assert list(values.index) == ["x"]
    values.touch(["y"])
    heights = [values.columns["level"].values[key].height for key in ("x", "y")]
    assert [(type(height), height) for height in heights] == [(float, 1.0), (float, 2.0)]


class Colour(enum.Enum):
    """What a mark may have."""

    RED = "red"


# A class statement would name its types by texts, and pytest may import this module a second time.
Mark: Any = make_dataclass("Mark", [("number", int | None), ("colour", Colour)], frozen=True)


@dataclass(frozen=True)
class Tower:
    """A record with another in it."""

    top: Level
    name: str


@pytest.mark.parametrize(
    ("value", "stays"),
    [
        (Level(1.0), True),
        (Level(1), False),
        (Mark(None, Colour.RED), True),
        (Mark(3, Colour.RED), True),
        (Tower(Level(1), "one"), False),
    ],
    ids=repr,
)
def test_a_record_stays_open_if_its_fields_have_their_types(value: Any, stays: bool) -> None:
    """Others are read anew, and equal those that were set."""
    specs = [value_spec("level", type(value)), value_spec("count", int)]
    schema = state_schema(pa.string(), specs)
    entries = MemoryEntries({})
    tables = SlotTables(schema, entries)
    values = opened(tables, specs, ["x"])
    change(values, "level", "x", value)
    change(values, "count", "x", 7)
    values.changes()
    tables = stored_and_kept(tables, schema, entries)
    values = opened(tables, specs)
    assert ("x" in values.index) is stays
    values.touch(values.untouched(["x"]))
    assert values.columns["level"].values["x"] == value
    assert (values.columns["level"].values["x"] is value) is stays
    assert values.columns["count"].values["x"] == 7


def colours() -> type[enum.Enum]:
    """Return a type as a reloaded job has it."""

    class Shade(enum.Enum):
        RED = "red"

    return Shade


def test_values_of_a_type_that_was_loaded_anew_are_read_again() -> None:
    """Open values are instances of the old class, however alike both are."""
    entries = MemoryEntries({})
    found = []
    kept: CachedSlot | None = None
    for _ in range(2):
        colour = colours()
        specs = [value_spec("colour", colour)]
        schema = state_schema(pa.string(), specs)
        tables = SlotTables(schema, entries, kept)
        values = opened(tables, specs, ["x"])
        found.append(values.columns["colour"].values["x"])
        change(values, "colour", "x", colour("red"))
        values.changes()
        tables.store()
        kept = tables.keep()
    assert found == [None, colour("red")]


def test_only_so_many_values_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged values are closed first; if most are changed, all become rows."""
    monkeypatch.setattr(merged_table, "_MAX_OPEN", 4)
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    for number in range(6):
        run_round(opened(tables), [f"read-{number}"], {})
        assert len(opened(tables)) <= 5
    run_round(opened(tables), ["read-5", "x"], {"x": (1, "one")})
    for number in range(6):
        run_round(opened(tables), [f"read-{number}"], {})
    assert "x" in opened(tables).index
    made = {f"set-{number}": (number, None) for number in range(9)}
    for key, pair in made.items():
        run_round(opened(tables), [key], {key: pair})
        assert len(opened(tables)) <= 5
    assert run_round(opened(tables), [*made, "x"], {}) == {**made, "x": (1, "one")}
    tables.settle()
    assert stored(tables) == {**made, "x": (1, "one")}


def test_a_round_that_cannot_be_stored_leaves_nothing() -> None:
    """Values of earlier rounds stay, and the key can be set again."""
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    values = opened(tables)
    run_round(values, ["x"], {"x": (1, "one")})
    with pytest.raises(UnstorableValueError, match="count"):
        run_round(values, ["x", "y"], {"x": (2, "two"), "y": (1 << 70, "large")})
    assert run_round(values, ["x", "y"], {}) == {"x": (1, "one"), "y": NOTHING}
    tables.settle()
    assert stored(tables) == {"x": (1, "one")}


def test_open_values_are_changes() -> None:
    """A slot with nothing else to store stores them."""
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    run_round(opened(tables), ["x"], {})
    assert not tables.changed
    run_round(opened(tables), ["x"], {"x": (1, None)})
    assert tables.changed


def test_a_key_that_never_had_a_value_is_no_change() -> None:
    """A value that is set and removed before it is stored leaves no row."""
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    run_round(opened(tables), ["x"], {"x": (1, None)})
    run_round(opened(tables), ["x"], {"x": NOTHING})
    tables.settle()
    assert not tables.tables


class Colour(enum.Enum):
    """A type that is stored as text."""

    RED = "red"


@pytest.mark.parametrize(
    ("spec", "stays"),
    [
        (value_spec("x", float), True),
        (value_spec("x", Colour), True),
        (value_spec("x", list[float]), False),
        (value_spec("x", int, Ttl(dt.timedelta(seconds=5))), False),
    ],
)
def test_which_states_stay_open(spec: Any, stays: bool) -> None:
    """They are those whose stored value equals the value that was set, and that do not expire."""
    assert can_stay_open([spec]) is stays


@pytest.mark.parametrize("opens", [True, False])
def test_values_are_freed_without_the_collector(opens: bool) -> None:
    """A slot with many keys makes new ones in each interval, and the collector seldom looks at what is old."""
    keys = pa.array([f"k{number}" for number in range(10)], pa.string())
    table = SlotTables(SCHEMA, MemoryEntries({})).merged(groups_of)
    with no_cyclic_collection():
        values = table.open(SPECS, [keys]) if opens else GroupState(SPECS, table)
        assert values is not None
        for key in keys.to_pylist():
            assert values.columns["count"].load(key) is None
        known = weakref.ref(values)
        del values
        table.close()
        assert known() is None
