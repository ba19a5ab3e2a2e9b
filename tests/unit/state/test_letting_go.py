"""Tables are freed with their last reference, without the cycle collector, which does not count bytes."""

from __future__ import annotations

import gc
import weakref

import pyarrow as pa

from penstock.state.group_table import GroupTable


def test_a_table_that_nobody_needs_is_gone_at_once() -> None:
    """Its rows are freed too, also after the table was used for lookups."""
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
