"""The state of a key group, used by value or as columns, equals a dict over any number of reloads."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from domains import Colour
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import StateError, UnstorableValueError
from penstock.state.group_state import GroupState, state_schema
from penstock.state.group_table import GroupTable, sorted_by_key
from penstock.state.key_index import key_values
from penstock.state.state_spec import StateSpec
from penstock.state.values import BoundValueState, CheckedValueState, ValueState


@dataclass
class Setting:
    low: float
    name: str
    colour: Colour
    tags: list[int] = field(default_factory=list)
    note: str | None = None
    limit: int | None = None
    table: dict[str, int] = field(default_factory=dict)


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.just(dt.UTC))
DECIMALS = st.decimals(-(10**9), 10**9, places=6)
SETTINGS = st.builds(
    Setting,
    st.floats(allow_nan=False),
    TEXT,
    st.sampled_from(Colour),
    st.lists(INT64, max_size=3),
    st.none() | TEXT,
    st.none() | INT64,
    st.dictionaries(TEXT, INT64, max_size=2),
)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "bool": (bool, st.booleans()),
    "int": (int, INT64),
    "float": (float, st.floats(allow_nan=False)),
    "str": (str, TEXT),
    "bytes": (bytes, st.binary(max_size=6)),
    "time": (dt.datetime, TIMES),
    "date": (dt.date, st.dates()),
    "decimal": (decimal.Decimal, DECIMALS),
    "enum": (Colour, st.sampled_from(Colour)),
    "list": (list[int], st.lists(INT64, max_size=3)),
    "dict": (dict[str, int], st.dictionaries(TEXT, INT64, max_size=3)),
    "record": (Setting, SETTINGS),
}
KEYS = st.integers(0, 5)
PAIR = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)])


def spec_of(name: str, kind: Any) -> StateSpec:
    state: ValueState[Any] = ValueState(kind)
    state.__set_name__(object, name)
    return state.spec()


def table_of(key_type: pa.DataType, specs: list[StateSpec]) -> GroupTable:
    return GroupTable(state_schema(key_type, specs))


def settle(group: GroupState, table: GroupTable) -> bool:
    """Write the changes of a run into the table; return whether there were any."""
    changes = group.changes()
    if changes is not None:
        table.upsert(changes)
    return changes is not None


@examples(8)
@given(data=st.data())
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_values_are_those_of_a_dict(kind: str, data: st.DataObject) -> None:
    """This holds for any sequence of get, set, clear, undo, store and reload, with a second state beside."""
    python_type, values = KINDS[kind]
    specs = [spec_of("it", python_type), spec_of("other", int)]
    table = table_of(pa.int64(), specs)
    model: dict[int, Any] = {}
    other: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        group = GroupState(specs, table)
        if data.draw(st.booleans()):
            group.load_keys(pa.array(range(6)))
            group.materialise()
        states = [BoundValueState(group.columns[spec.name], group.cursor) for spec in specs]
        before = (dict(model), dict(other))
        for _ in range(data.draw(st.integers(0, 8))):
            key = group.cursor.key = data.draw(KEYS)
            action = data.draw(st.sampled_from(["get", "set", "clear", "other", "taken back"]))
            if action == "get":
                assert states[0].get() == model.get(key)
                assert states[1].get() == other.get(key)
            elif action == "set":
                model[key] = data.draw(values)
                states[0].set(model[key])
            elif action == "clear":
                model.pop(key, None)
                states[0].clear()
            elif action == "other":
                other[key] = data.draw(INT64)
                states[1].set(other[key])
            else:
                states[0].set(data.draw(values))
                states[1].clear()
                states[0].clear()
                group.cursor.take_back()
            group.cursor.undo.clear()
        changed = settle(group, table)
        assert changed or (model, other) == before
        assert table.keys == len({*model, *other})
    group = GroupState(specs, table)
    for key in range(6):
        assert group.columns["it"].load(key) == model.get(key)
        assert group.columns["other"].load(key) == other.get(key)


def columns_of(kind: str, values: list[Any]) -> Any:
    """Return values as `put` takes them: enumeration members or their plain values."""
    if kind != "record":
        return _objects(values)
    names = ("low", "name", "colour", "tags", "note", "limit", "table")
    return {name: _objects([getattr(value, name) for value in values]) for name in names}


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@examples(8)
@given(data=st.data())
@pytest.mark.parametrize("key_type", [pa.int64(), PAIR], ids=["one field", "two fields"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_columns_and_values_are_one_state(kind: str, key_type: pa.DataType, data: st.DataObject) -> None:
    """A column that was put is readable value by value, and vice versa; other keys keep theirs."""
    python_type, values = KINDS[kind]
    specs = [spec_of("it", python_type)]
    table = table_of(key_type, specs)
    model: dict[Any, Any] = {}
    keys_of = KEYS if key_type == pa.int64() else st.tuples(KEYS, st.sampled_from("ab"))
    for _ in range(data.draw(st.integers(1, 4))):
        group = GroupState(specs, table)
        state = BoundValueState(group.columns["it"], group.cursor)
        for _ in range(data.draw(st.integers(1, 2))):
            keys = data.draw(st.lists(keys_of, unique=True, max_size=4))
            new = [data.draw(values) for _ in keys]
            if data.draw(st.booleans()):
                slots = group.slots_of(pa.array(keys, key_type))
                assert [key_values(group.keys)[slot] for slot in slots] == keys
                present = state.columns().present
                assert [present[slot] for slot in slots] == [key in model for key in keys]
                state.put(slots, columns_of(kind, new))
            else:
                for key, value in zip(keys, new, strict=True):
                    group.cursor.key = key
                    assert state.get() == model.get(key)
                    state.set(value)
            model.update(zip(keys, new, strict=True))
            group.flush()
            state.refresh()
        settle(group, table)
        assert table.keys == len(model)
    group = GroupState(specs, table)
    assert {key: group.columns["it"].load(key) for key in model} == model


def test_a_column_without_a_change_is_what_it_was() -> None:
    """NaN is a value, not null; keys without a value stay without one."""
    spec = spec_of("it", Setting)
    table = table_of(pa.int64(), [spec])
    group = GroupState([spec], table)
    state = BoundValueState(group.columns["it"], group.cursor)
    for key, limit in ((1, None), (2, 0)):
        group.cursor.key = key
        state.set(Setting(float("nan"), "n", Colour.RED, limit=limit))
    settle(group, table)
    again = GroupState([spec], table)
    slots = again.slots_of(pa.array([3]))
    state = BoundValueState(again.columns["it"], again.cursor)
    state.put(slots, columns_of("record", [Setting(float("nan"), "m", Colour.BLUE, limit=7)]))
    again.slots_of(pa.array([4]))
    settle(again, table)
    column = again.columns["it"]
    assert [(column.load(key).limit, column.load(key).low != column.load(key).low) for key in (1, 2, 3)] == [
        (None, True),
        (0, True),
        (7, True),
    ]
    assert column.load(4) is None


def put_and_flush(group: GroupState, state: BoundValueState, slots: Any, values: Any) -> None:
    state.put(slots, values)
    group.flush()


@dataclass
class Ratio:
    value: float | None


def test_nan_is_not_a_missing_value_in_optional_columns() -> None:
    """Object arrays may hold both."""
    specs = [spec_of("it", Ratio)]
    group = GroupState(specs, table_of(pa.int64(), specs))
    state = BoundValueState(group.columns["it"], group.cursor)
    state.put(group.slots_of(pa.array([1, 2, 3])), {"value": _objects([float("nan"), None, 1.5])})
    group.flush()
    assert [str(group.columns["it"].load(key).value) for key in (1, 2, 3)] == ["nan", "None", "1.5"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"colour": ["green"]}, "'green' is not a valid Colour"),
        ({"name": [None]}, "field 'name' has no value and is not optional"),
        ({"tags": _objects([[None]])}, "field 'tags'"),
        ({"table": _objects([{1: 1}])}, "field 'table'"),
        ({"limit": [2**63]}, "field 'limit'"),
    ],
)
def test_columns_that_could_not_be_read_again_are_refused(wrong: Any, message: str) -> None:
    """They are refused before they are stored, in the checked form at once, with nothing changed."""
    for kind in (BoundValueState, CheckedValueState):
        specs = [spec_of("it", Setting)]
        group = GroupState(specs, table_of(pa.int64(), specs))
        state = kind(group.columns["it"], group.cursor)
        slots = group.slots_of(pa.array([1]))
        good = Setting(1.0, "n", Colour.RED)
        state.put(slots, columns_of("record", [good]))
        with pytest.raises(UnstorableValueError, match="the state 'it' cannot hold a value") as caught:
            put_and_flush(group, state, slots, {**columns_of("record", [good]), **wrong})
        assert message in str(caught.value)
        if kind is CheckedValueState:
            group.flush()
            assert group.columns["it"].load(1) == good


@given(values=st.dictionaries(INT64, st.tuples(SETTINGS, st.none() | TEXT), max_size=6), order=st.randoms())
def test_looking_changes_nothing(values: dict[int, Any], order: Any) -> None:
    """The same history gives the same rows, whatever is read in between; a run without changes gives no rows."""
    specs = [spec_of("it", Setting), spec_of("other", str)]
    tables = []
    for looks in (False, True):
        table = table_of(pa.int64(), specs)
        group = GroupState(specs, table)
        states = [BoundValueState(group.columns[spec.name], group.cursor) for spec in specs]
        for key, (setting, text) in values.items():
            if looks:
                group.cursor.key = order.choice(list(values))
                states[0].get()
            group.cursor.key = key
            states[0].set(setting)
            states[1].set(text)
        settle(group, table)
        tables.append(sorted_by_key(table.all_rows()))
    assert tables[0].equals(tables[1])
    again = GroupState(specs, table)
    again.load_keys(pa.array(list(values), pa.int64()))
    again.materialise()
    assert again.changes() is None
    assert again.settled_keys() == sorted(values)


def test_records_as_columns() -> None:
    """A record's fields are columns by name, and `put` requires all of them."""
    spec = spec_of("it", Setting)
    table = table_of(pa.string(), [spec])
    group = GroupState([spec], table)
    state = BoundValueState(group.columns["it"], group.cursor)
    slots = group.slots_of(pa.array(["a", "b", "a"]))
    assert slots.tolist() == [0, 1, 0]
    nothing = np.array([None], object)
    tags = np.empty(1, object)
    tags[:] = [[1, 2]]
    with pytest.raises(
        ValueError, match=r"takes the columns \['colour', 'limit', 'low', 'name', .*\], not \['low'\]"
    ):
        state.put(slots[:1], {"low": np.array([1.0])})
    state.put(
        slots[1:2],
        {
            "low": [1.5],
            "name": ["n"],
            "colour": ["red"],
            "tags": tags,
            "note": nothing,
            "limit": [3],
            "table": [{}],
        },
    )
    assert state.columns().present.tolist() == [False, True]
    assert state.columns()["low"].tolist() == [0.0, 1.5]
    with pytest.raises(KeyError, match="has no field 'high'"):
        state.columns()["high"]
    with pytest.raises(ValueError, match="read-only"):
        state.columns()["low"][0] = 1
    settle(group, table)
    assert table.keys == 1, "a key that was only looked at holds nothing"
    again = GroupState([spec], table)
    assert again.columns["it"].load("b") == Setting(1.5, "n", Colour.RED, [1, 2], None, 3)
    assert again.columns["it"].load("a") is None


def test_a_value_of_another_type_is_refused() -> None:
    """The error names the state and what is wrong."""
    specs = [spec_of("it", int)]
    group = GroupState(specs, table_of(pa.int64(), specs))
    state = BoundValueState(group.columns["it"], group.cursor)
    with pytest.raises(TypeError, match="the state 'it' was set to 'one': Expected `int`, got `str`"):
        state.set("one")
    with pytest.raises(StateError, match="only while its function processes records"):
        ValueState(int).get()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int64(), [i * 7919 % 3000 - 9 for i in range(9000)]),
        (pa.string(), [f"k{i % 700}" for i in range(5000)]),
    ],
    ids=["integers", "texts"],
)
def test_equal_keys_of_many_records_are_one_object(kind: pa.DataType, keys: list[Any]) -> None:
    """It is the index's key object, also for keys that were not loaded before."""
    table = GroupTable(state_schema(kind, []))
    group = GroupState([], table)
    group.load_keys(pa.array(keys[:1500], kind))
    found = group.objects_of(pa.array(keys, kind))
    assert found == keys
    own = {key: key for key in group.index}
    assert all(key is own[key] for key in found)
    assert group.objects_of(pa.array(keys[:3], kind)) == keys[:3]
