"""A merged table equals a dict, and hands its changes to the right key groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.state.key_groups import key_groups
from penstock.state.row_cache import RowCache
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

SCHEMA = pa.schema([("key", pa.string()), ("a", pa.int64()), ("b", pa.int64())])
GROUPS = 4
Model = dict[str, tuple[int | None, int | None]]


def groups_of(keys: pa.Array) -> np.ndarray[Any, Any]:
    return key_groups(keys, GROUPS)


def rows(changes: Model) -> pa.RecordBatch:
    columns = [list(changes), [a for a, _ in changes.values()], [b for _, b in changes.values()]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def read(tables: SlotTables, keys: list[str]) -> Model:
    """Return what a round finds for keys. A key has a row if one of its values is not null."""
    held, found = tables.merged(groups_of).lookup(pa.array(keys, pa.string()))
    pairs = list(zip(found.column(1).to_pylist(), found.column(2).to_pylist(), strict=True))
    assert held.tolist() == [pair != (None, None) for pair in pairs]
    return dict(zip(keys, pairs, strict=True))


def stored(tables: SlotTables) -> dict[int, Model]:
    """Return what the tables of the key groups hold."""
    found: dict[int, Model] = {}
    for group, table in tables.tables.items():
        model = by_key(table.all_rows())
        if model:
            found[group] = model
    return found


def by_key(batch: pa.RecordBatch) -> Model:
    """Return the values of each key."""
    pairs = zip(batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True)
    return dict(zip(batch.column(0).to_pylist(), pairs, strict=True))


keys = st.sampled_from([f"key-{number}" for number in range(12)])
values = st.none() | st.integers(0, 9)
changes = st.dictionaries(keys, st.tuples(values, values), min_size=1, max_size=6)


@examples(60)
@given(
    st.lists(
        st.tuples(changes, st.sampled_from(["", "settle", "store", "keep", "reopen", "command"])), max_size=12
    )
)
def test_rounds_find_what_earlier_rounds_put(rounds: list[tuple[Model, str]]) -> None:
    """This holds after the changes went to the key groups, to the store and back, and after commands changed
    rows.

    A worker may or may not keep the tables, and the rows it has read, when it stores them.

    Rounds look up one key, a few, and many.
    """
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    model: Model = {}
    for made, then in rounds:
        asked = sorted({*made, *model, "key-0"})
        for some in (asked[:1], asked[-3:], asked):
            assert read(tables, some) == {key: model.get(key, (None, None)) for key in some}
        tables.merged(groups_of).put(rows(made))
        model |= made
        model = {key: pair for key, pair in model.items() if pair != (None, None)}
        assert by_key(tables.merged(groups_of).all_rows()) == model
        if then == "settle":
            tables.settle()
        elif then in ("store", "keep", "reopen"):
            tables.store()
            if then != "store":
                tables = SlotTables(SCHEMA, entries, tables.keep() if then == "keep" else None)
        elif then == "command":
            tables.settle()
            group = int(groups_of(pa.array(["key-3"]))[0])
            tables.put(group, rows({"key-3": (7, 7)}))
            model["key-3"] = (7, 7)
    tables.settle()
    expected: dict[int, Model] = {}
    for key, pair in model.items():
        expected.setdefault(int(groups_of(pa.array([key]))[0]), {})[key] = pair
    assert stored(tables) == expected


def test_a_full_cache_starts_anew() -> None:
    """All rows are found afterwards, old ones included."""
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    model: Model = {f"key-{number}": (number, None) for number in range(300)}
    tables.merged(groups_of).put(rows(model))
    tables.settle()
    cache = RowCache(SCHEMA, tables.tables, max_bytes=2_000)
    names = list(model)
    for begin in [*range(0, 300, 20), 0]:
        wanted = names[begin : begin + 20]
        found = cache.rows(cache.find(pa.array(wanted), groups_of))
        assert by_key(found) == {name: model[name] for name in wanted}
        assert cache.nbytes < 5_000


def test_small_tables_are_read_as_a_whole() -> None:
    """After one lookup, all keys of the key group are found without the table; later changes are seen."""
    tables = SlotTables(SCHEMA, MemoryEntries({}))
    model: Model = {f"key-{number}": (number, None) for number in range(40)}
    tables.merged(groups_of).put(rows(model))
    tables.settle()
    left = dict(tables.tables)
    cache = RowCache(SCHEMA, left)
    group = int(groups_of(pa.array(["key-0"]))[0])
    cache.find(pa.array(["key-0"]), groups_of)
    left.clear()
    together = [key for key in model if int(groups_of(pa.array([key]))[0]) == group]
    assert len(together) > 1
    model["key-0"] = (99, 99)
    cache.put(rows({"key-0": (99, 99)}))
    found = cache.rows(cache.find(pa.array(together), groups_of))
    assert by_key(found) == {key: model[key] for key in together}


def test_changes_are_stored_without_settling() -> None:
    """A slot whose merged table has changes reports them, and stores them."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    assert not tables.changed
    tables.merged(groups_of).put(rows({"x": (1, 2)}))
    assert tables.changed
    tables.store()
    assert not tables.changed
    assert read(SlotTables(SCHEMA, entries), ["x"]) == {"x": (1, 2)}
