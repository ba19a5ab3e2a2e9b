"""Tables go with the last who needs them, and do not wait for the collector of cycles, which counts no bytes."""

from __future__ import annotations

import gc
import weakref

import pyarrow as pa

from penstock.state.group_table import GroupTable


def test_a_table_that_nobody_needs_is_gone_at_once() -> None:
    """With the rows that it held, also when it has looked keys up in them."""
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": ["x", "y"]})
    gc.disable()
    try:
        table = GroupTable.of(rows)
        table.upsert(rows)
        assert table.find(pa.array(["b", "c"])).tolist() == [3, -1]
        assert table.all_rows().num_rows == 2
        seen = weakref.ref(table)
        del table
        assert seen() is None
    finally:
        gc.enable()
