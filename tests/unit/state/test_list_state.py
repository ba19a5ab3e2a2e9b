"""List state: items keep their order, are rolled back exactly, and are refused when they cannot be stored."""

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


@dataclass
class Point:
    x: int
    name: str | None = None


@dataclass
class Alike:
    x: int
    name: str
    more: int = 0


NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("item_type", "items"),
    [
        (bool, [True, False]),
        (int, [1, -(2**63)]),
        (float, [1.5, 0.0]),
        (str, ["a", ""]),
        (bytes, [b"\x00"]),
        (dt.datetime, [NOON]),
        (Colour, [Colour.RED, Colour.BLUE, Colour.RED]),
        (Point, [Point(1, "a"), Point(2)]),
        (list[int], [[1], []]),
        (dict[str, Point], [{"b": Point(1), "c": Point(2)}]),
        (tuple[int, ...], [(1, 2), ()]),
    ],
)
def test_items_come_back_as_they_were(item_type: Any, items: list[Any]) -> None:
    """This holds for all storable types; an empty list counts as no value."""
    work = AtWork(ps.ListState(item_type))
    work.at(1).set(items)
    work.at(2).add_all(items * 2)
    for item in items:
        work.at(3).add(item)
    work.at(4).set([])
    assert work.reload() == 3
    assert [work.at(key).get() for key in (1, 2, 3, 4, 5)] == [items, items * 2, items, [], []]
    assert [len(work.at(key)) for key in (1, 2, 4, 5)] == [len(items), 2 * len(items), 0, 0]
    assert list(work.at(3)) == items


def test_it_is_stored_as_an_arrow_list() -> None:
    """Items that are records become structs, readable by any Arrow reader."""
    work = AtWork(ps.ListState(Point))
    work.at(1).add(Point(3))
    work.reload()
    assert work.column.stored.to_pylist() == [[{"x": 3, "name": None}]]
    assert pa.types.is_list(work.column.stored.type)


def test_a_list_of_ones_own_may_be_changed() -> None:
    """Neither the list from `get` nor the list given to `set` is the state itself."""
    work = AtWork(ps.ListState(int))
    mine = [1, 2]
    work.at(1).set(mine)
    mine.append(3)
    work.at(1).get().append(4)
    assert work.at(1).get() == [1, 2]
    for item in work.at(1):
        work.at(1).add(item)
    assert work.at(1).get() == [1, 2, 1, 2]


def test_what_raises_leaves_the_list_as_it_was() -> None:
    """This holds for any operations, several records in a row, and an initially empty state."""
    work = AtWork(ps.ListState(int))
    work.at(1).set([1, 2])
    work.reload()
    state = work.at(1)
    state.add(3)
    state.set([4])
    state.add(5)
    state.clear()
    state.add_all([6, 7])
    assert state.get() == [6, 7]
    work.raised()
    assert work.at(1).get() == [1, 2]
    work.at(2).add(1)
    work.raised()
    assert work.at(2).get() == []
    work.at(1).add(8)
    assert work.at(1).get() == [1, 2, 8]
    assert work.reload() == 1


def test_adding_notes_only_the_length() -> None:
    """The undo journal is constant in size, so the cost does not depend on the list."""
    work = AtWork(ps.ListState(int))
    work.at(1).set(range(1000))
    state = work.at(1)
    held = work.column.values[1]
    state.add(5)
    assert work.column.values[1] is held
    ((noted, length, _),) = work.group.cursor.undo
    assert noted is held
    assert length == 1000


@pytest.mark.parametrize("checks", [False, True])
def test_an_item_of_another_type_is_refused(checks: bool) -> None:
    """Nothing is changed; compatible records, and whole numbers for floats, are converted."""
    work = AtWork(ps.ListState(float), checks=checks)
    state = work.at(1)
    state.add(1)
    for call in (lambda: state.add("a"), lambda: state.add_all([2.0, None]), lambda: state.set(["a"])):
        with pytest.raises(TypeError, match="'kept'"):
            call()
    assert state.get() == [1.0]
    texts = state_at(1, ps.ListState(str))
    with pytest.raises(TypeError, match="list of items"):
        texts.set("ab")
    points = state_at(1, ps.ListState(Point))
    points.add(Alike(1, "a"))
    assert points.get() == [Point(1, "a")]


def test_what_cannot_be_stored_is_found_at_once_when_checked() -> None:
    """All methods check, with nothing changed; unchecked states fail when they are written back."""
    work = AtWork(ps.ListState(int), checks=True)
    state = work.at(1)
    state.add(1)
    for call in (
        lambda: state.add(2**70),
        lambda: state.add_all([2, 2**70]),
        lambda: state.set([2**70]),
    ):
        with pytest.raises(UnstorableValueError, match="'kept' cannot hold"):
            call()
    assert state.get() == [1]
    assert work.reload() == 1
    with pytest.raises(UnstorableValueError, match="'kept' cannot hold"):
        work.state.put(np.array([0]), [[2**70]])
    late = AtWork(ps.ListState(int))
    late.at(1).add(2**70)
    with pytest.raises(UnstorableValueError):
        late.flush()


def test_columns_hold_lists() -> None:
    """Lists of equal length do not become a table, and an empty list becomes none."""
    work = AtWork(ps.ListState(Point))
    for key in (1, 2, 3):
        work.at(key).set([Point(key), Point(key)])
    work.flush()
    columns = work.state.columns()
    assert columns.values.tolist() == [[Point(key), Point(key)] for key in (1, 2, 3)]
    assert columns.present.tolist() == [True, True, True]
    work.state.put(np.array([0, 2]), [[Point(7)], []])
    work.flush()
    assert [work.at(key).get() for key in (1, 2, 3)] == [[Point(7)], [Point(2), Point(2)], []]
    assert work.reload() == 2


def test_a_value_that_is_a_list_is_no_table_either() -> None:
    """This holds also when all lists have the same length."""
    work = AtWork(ps.ValueState(list[int]))
    for key in (1, 2):
        work.at(key).set([key, key])
    work.flush()
    assert work.state.columns().values.tolist() == [[1, 1], [2, 2]]
    work.state.put(np.array([0, 1]), [[3, 3], [4, 4]])
    work.flush()
    assert [work.at(key).get() for key in (1, 2)] == [[3, 3], [4, 4]]


def test_json_sets_it() -> None:
    """An array sets it; null clears it."""
    state = ps.ListState(Point)
    assert state.value_of(b'[{"x": 1}, {"x": 2, "name": "b"}]') == [Point(1), Point(2, "b")]
    assert state.value_of(b"null") is None
    for wrong in (b'{"x": 1}', b'[{"y": 1}]', b"[null]"):
        with pytest.raises(msgspec.DecodeError):
            state.value_of(wrong)


def test_it_works_only_inside_its_function() -> None:
    """Items must be storable."""
    state = ps.ListState(int)
    state.name = "items"
    for call in (state.get, state.clear, state.columns, lambda: len(state), lambda: list(state)):
        with pytest.raises(StateError, match="'items' has a value only while"):
            call()
    state.name = "key"
    with pytest.raises(SchemaError, match="cannot be named"):
        state.spec()
    with pytest.raises(SchemaError):
        ps.ListState(object).spec()
