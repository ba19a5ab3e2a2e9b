"""Slot parts: each is stored when it changes, and objects derived from it are valid only while it is unchanged."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import StateError
from penstock.state.kept_slots import SlotCache
from penstock.state.slot_parts import PartChange
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
CHANGES = st.dictionaries(
    st.sampled_from(["a", "b"]), st.tuples(st.booleans(), st.none() | st.binary(max_size=3)), max_size=2
)


def joined(pieces: list[bytes]) -> list[bytes]:
    """Concatenate the pieces unchanged."""
    return list(pieces)


@examples(100)
@given(
    batches=st.lists(st.tuples(CHANGES, st.booleans()), min_size=1, max_size=10),
    workers=st.lists(st.integers(0, 2), min_size=10, max_size=10),
    fails=st.sets(st.integers(0, 9)),
)
def test_any_worker_has_what_was_stored(batches: Any, workers: list[int], fails: set[int]) -> None:
    """The worker may be cold, up to date, behind, or ahead because its last micro-batch was not committed."""
    stored: dict[str, bytes] = {}
    model: dict[str, list[bytes]] = {}
    memories = [SlotCache() for _ in range(3)]
    for number, (changes, header_moves) in enumerate(batches):
        entries = MemoryEntries(dict(stored))
        memory = memories[workers[number]]
        tables = SlotTables(SCHEMA, entries, memory.take("slot"), memory)
        after = copy.deepcopy(model)
        made = {name: tables.parts.load(name, joined) for name in ("a", "b")}
        assert made == {name: model.get(name, []) for name in ("a", "b")}
        for name, (is_whole, content) in changes.items():
            if is_whole:
                tables.parts.put(name, content)
                after[name] = [] if content is None else [content]
            elif content is not None:
                tables.parts.change(name, partial(PartChange, content, is_whole=False))
                after[name] = [*after.get(name, []), content]
            tables.parts.keep(name, list(after.get(name, [])))
        if header_moves:
            tables.put_header(b"%d" % number)
        if tables.changed:
            tables.store()
        memory.put("slot", tables.keep())
        if number not in fails:
            stored, model = entries.stored, after
    fresh = SlotTables(SCHEMA, MemoryEntries(stored))
    assert {name: fresh.parts.get(name) for name in ("a", "b")} == {
        name: model.get(name, []) for name in ("a", "b")
    }
    left = {name for name in stored if name.startswith("part/")}
    assert len(left) == sum(map(len, model.values())), "nothing that was replaced is left"


def test_a_part_is_read_once_by_a_worker() -> None:
    """It is not read before it is needed; a header that moves makes no difference."""
    entries = MemoryEntries({})
    tables = SlotTables(SCHEMA, entries)
    tables.parts.put("a", b"large")
    tables.store()
    kept = None
    entries.reads = 0
    calls: list[list[bytes]] = []
    for number in range(5):
        tables = SlotTables(SCHEMA, entries, kept)
        if number:
            assert tables.parts.load("a", lambda pieces: calls.append(pieces) or "made") == "made"
        tables.put_header(b"%d" % number)
        tables.store()
        kept = tables.keep()
    assert calls == [[b"large"]]


def test_a_missing_piece_is_an_error_that_names_it() -> None:
    """A part never silently starts empty."""
    stored: dict[str, bytes] = {}
    tables = SlotTables(SCHEMA, MemoryEntries(stored))
    tables.parts.put("a", b"x")
    tables.store()
    del stored["part/a/1"]
    with pytest.raises(StateError, match="part/a/1 of the stored state is missing"):
        SlotTables(SCHEMA, MemoryEntries(stored)).parts.get("a")
