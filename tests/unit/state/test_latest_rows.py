"""The latest rows of a slot equal those of its tables, whatever was stored before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.state.latest_rows import latest_rows
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

PAIR = pa.struct(
    [pa.field("room", pa.string(), nullable=False), pa.field("floor", pa.int64(), nullable=False)]
)
VALUES = st.none() | st.integers(0, 3)
CHANGES = st.dictionaries(st.integers(0, 9), st.tuples(VALUES, VALUES), min_size=1)


def key(number: int, kind: pa.DataType) -> Any:
    return {"room": str(number % 3), "floor": number} if pa.types.is_struct(kind) else str(number)


@pytest.mark.parametrize("kind", [pa.string(), PAIR], ids=["one field", "two fields"])
@examples(60)
@given(st.lists(CHANGES, max_size=8))
def test_rows_are_those_of_the_tables(kind: pa.DataType, versions: list[dict[int, Any]]) -> None:
    """Keys with a value only in an unselected column are included; keys without any value are not."""
    schema = pa.schema([pa.field("key", kind, nullable=False), ("a", pa.int64()), ("b", pa.int64())])
    entries = MemoryEntries({})
    for changes in versions:
        tables = SlotTables(schema, entries)
        for group in sorted({number % 2 for number in changes}):
            rows = [
                {"key": key(number, kind), "a": a, "b": b}
                for number, (a, b) in changes.items()
                if number % 2 == group
            ]
            tables.put(group, pa.RecordBatch.from_pylist(rows, schema=schema))
        tables.store()
    held = SlotTables(schema, entries).tables.values()
    expected = [(row["key"], row["a"]) for table in held for row in table.all_rows().to_pylist()]
    found = latest_rows(schema, entries, ["key", "a"]).to_pylist()
    assert sorted(((row["key"], row["a"]) for row in found), key=str) == sorted(expected, key=str)
