"""Map state: entries keep their insertion order, are rolled back exactly, and are refused when they cannot be
stored.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from bound_state import AtWork, state_at
from domains import Colour

import penstock as ps
from penstock.errors import SchemaError, StateError, UnstorableValueError


@dataclass(frozen=True)
class Point:
    x: int
    name: str | None = None


@dataclass
class Changeable:
    x: int


NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("key_type", "value_type", "entries"),
    [
        (str, int, {"b": 1, "a": 2}),
        (int, str, {3: "x", -1: "", 2: "y"}),
        (bytes, Point, {b"z": Point(1), b"\x00": Point(2, "a")}),
        (Colour, Colour, {Colour.RED: Colour.BLUE, Colour.BLUE: Colour.RED}),
        (Point, list[int], {Point(2): [1, 2], Point(1, "a"): []}),
        (tuple[int, ...], bool, {(2, 1): True, (): False}),
        (dt.datetime, dict[str, int], {NOON: {"a": 1}, NOON - dt.timedelta(1): {}}),
    ],
)
def test_entries_come_back_in_their_order(key_type: Any, value_type: Any, entries: dict[Any, Any]) -> None:
    """This holds for all storable types; an empty mapping counts as no value."""
    work = AtWork(ps.MapState(key_type, value_type))
    work.at(1).set(entries)
    for key, value in reversed(entries.items()):
        work.at(2).put(key, value)
    work.at(3).put_all(entries.items())
    for key in entries:
        work.at(3).remove(key)
    assert work.reload() == 2
    first, second = list(entries.items()), list(reversed(entries.items()))
    assert [work.at(key).items() for key in (1, 2, 3, 4)] == [first, second, [], []]
    assert work.at(1).keys() == list(work.at(1)) == list(entries)
    assert work.at(1).values() == list(entries.values())
    assert [len(work.at(key)) for key in (1, 3)] == [len(entries), 0]
    assert [work.at(key).is_empty() for key in (1, 3)] == [False, True]
    assert all(key in work.at(1) and work.at(1).get(key) == value for key, value in entries.items())


def test_what_is_not_there() -> None:
    """A missing key has the default, and removing it is allowed."""
    state = state_at(1, ps.MapState(str, int))
    assert (state.get("a"), state.get("a", 5), "a" in state) == (None, 5, False)
    state.remove("a")
    state.put("b", 1)
    assert (state.get("a", 5), state.get("b", 5), "a" in state, "b" in state) == (5, 1, False, True)


def test_it_is_stored_as_an_arrow_map() -> None:
    """Entries are in the map's own order, readable by any Arrow reader."""
    work = AtWork(ps.MapState(str, int))
    work.at(1).set({"b": 1, "a": 2})
    work.reload()
    assert pa.types.is_map(work.column.stored.type)
    assert work.column.stored.to_pylist() == [[("b", 1), ("a", 2)]]


def test_what_raises_leaves_every_entry_in_its_place() -> None:
    """This holds for any operations, several records in a row, and an initially empty state."""
    entries = {"a": 1, "b": 2, "c": 3}
    work = AtWork(ps.MapState(str, int))
    work.at(1).set(entries)
    work.reload()
    state = work.at(1)
    state.put("b", 7)
    state.remove("a")
    state.put("a", 8)
    state.remove("c")
    state.put("d", 9)
    state.set({"x": 1})
    state.remove("x")
    state.clear()
    state.put("y", 2)
    assert state.items() == [("y", 2)]
    work.raised()
    assert work.at(1).items() == list(entries.items())
    work.at(2).put("a", 1)
    work.raised()
    assert work.at(2).items() == []
    assert work.reload() == 1


def test_a_removal_is_taken_back_after_other_records() -> None:
    """A copy made for one record is not reused for the next."""
    work = AtWork(ps.MapState(str, int))
    work.at(1).set({"a": 1, "b": 2, "c": 3})
    work.at(1).remove("a")
    work.at(1).remove("b")
    work.raised()
    assert work.at(1).keys() == ["b", "c"]
    state = work.at(1)
    state.remove("b")
    assert len(work.group.cursor.undo) == 1
    state.remove("c")
    assert len(work.group.cursor.undo) == 1, "one copy is enough for a record"
    work.raised()
    assert work.at(1).items() == [("b", 2), ("c", 3)]


def test_a_mapping_of_ones_own_may_be_changed() -> None:
    """Neither the mapping given to `set` nor the one iterated over is the state itself."""
    work = AtWork(ps.MapState(str, int))
    mine = {"a": 1, "b": 2}
    work.at(1).set(mine)
    mine["c"] = 3
    state = work.at(1)
    for key in state:
        state.remove(key)
        state.put(key * 2, 0)
    assert state.keys() == ["aa", "bb"]


@pytest.mark.parametrize("checks", [False, True])
def test_what_is_of_another_type_is_refused(checks: bool) -> None:
    """Nothing is changed, not even partly by `update`."""
    state = state_at(1, ps.MapState(str, float), checks=checks)
    state.put("a", 1)
    for call in (
        lambda: state.put(1, 1.0),
        lambda: state.put("a", "b"),
        lambda: state.put(None, 1.0),
        lambda: state.put_all({"b": 2.0, "c": None}),
        lambda: state.set({"b": "c"}),
    ):
        with pytest.raises(TypeError, match="'kept'"):
            call()
    assert state.items() == [("a", 1.0)]


def test_what_cannot_be_stored_is_found_at_once_when_checked() -> None:
    """All methods check, with nothing changed; unchecked states fail when they are written back."""
    work = AtWork(ps.MapState(str, int), checks=True)
    state = work.at(1)
    state.put("a", 1)
    for call in (
        lambda: state.put("b", 2**70),
        lambda: state.put("\ud800", 1),
        lambda: state.put_all({"c": 1, "b": 2**70}),
        lambda: state.set({"b": 2**70}),
    ):
        with pytest.raises(UnstorableValueError, match="'kept' cannot hold"):
            call()
    assert state.items() == [("a", 1)]
    assert work.reload() == 1
    with pytest.raises(UnstorableValueError, match="'kept' cannot hold"):
        work.state.put(np.array([0]), [{"b": 2**70}])
    late = AtWork(ps.MapState(str, int))
    late.at(1).put("a", 2**70)
    with pytest.raises(UnstorableValueError):
        late.flush()


def test_columns_hold_dicts() -> None:
    """They are in order; an empty one becomes none."""
    work = AtWork(ps.MapState(str, Point))
    for key in (1, 2, 3):
        work.at(key).set({"b": Point(key), "a": Point(0)})
    work.flush()
    columns = work.state.columns()
    assert [list(value) for value in columns.values] == [["b", "a"]] * 3
    assert columns.values[1]["b"] == Point(2)
    work.state.put(np.array([0, 2]), [{"c": Point(7)}, {}])
    work.flush()
    assert [work.at(key).keys() for key in (1, 2, 3)] == [["c"], ["b", "a"], []]
    assert work.reload() == 2


def test_json_sets_it() -> None:
    """An object or an array of pairs sets it, in order; null clears it."""
    state = ps.MapState(int, Changeable)
    assert list(state.value_of(b'{"2": {"x": 1}, "1": {"x": 2}}').items()) == [
        (2, Changeable(1)),
        (1, Changeable(2)),
    ]
    assert state.value_of(b'[[2, {"x": 1}]]') == {2: Changeable(1)}
    assert state.value_of(b"null") is None
    assert ps.MapState(Point, int).value_of(b'[[{"x": 1}, 3]]') == {Point(1): 3}
    for wrong in (b'{"a": {"x": 1}}', b"[1]", b"5"):
        with pytest.raises(msgspec.DecodeError):
            state.value_of(wrong)


@pytest.mark.parametrize("kind", [Changeable, list[int], dict[str, int], "a INT, b STRING"])
def test_a_map_key_must_have_a_hash(kind: Any) -> None:
    """The error comes when the job is described."""
    state = ps.MapState(kind, int)
    state.name = "entries"
    with pytest.raises(SchemaError, match="is not hashable"):
        state.spec()


def test_it_works_only_inside_its_function() -> None:
    """Outside it raises, like every state."""
    state = ps.MapState(int, int)
    state.name = "entries"
    for call in (
        lambda: state.get(1),
        lambda: state.put(1, 1),
        lambda: 1 in state,
        lambda: list(state),
        state.is_empty,
        state.values,
        state.clear,
    ):
        with pytest.raises(StateError, match="'entries' has a value only while"):
            call()
