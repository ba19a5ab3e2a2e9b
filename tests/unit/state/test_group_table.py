"""The table of a key group holds the newest row of each key, however large its rows are, and copies few rows."""

from __future__ import annotations

import random
from unittest import mock

import pyarrow as pa
import pytest

from penstock.state import group_table
from penstock.state.group_table import GroupTable

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("text", pa.string())])


def rows(found: dict[str, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(found), "text": list(found.values())}, SCHEMA)


@pytest.mark.parametrize("seed", range(8))
def test_a_tail_of_many_batches_is_read_as_one(seed: int) -> None:
    """Rows come in the requested order; missing keys are marked as such."""
    drawn = random.Random(seed)
    few = drawn.choice([5, 60, 4096])
    with (
        mock.patch.object(group_table, "_ONE_BATCH_BYTES", drawn.choice([0, 200])),
        mock.patch.object(group_table, "_FEW", few),
    ):
        table, model = GroupTable(SCHEMA), dict[str, str]()
        for number in range(30):
            keys = [f"k{key}" for key in drawn.sample(range(40), drawn.randrange(1, 9))]
            found = table.rows(table.find(pa.array(keys)))
            assert found.column("text").to_pylist() == [model.get(key) for key in keys]
            changes = {key: drawn.choice([None, f"{number}" * drawn.randrange(1, 30)]) for key in keys}
            table.upsert(rows(changes))
            model = {key: text for key, text in (model | changes).items() if text is not None}
            assert table.keys == len(model)
        all_rows = table.all_rows()
        assert dict(zip(*(column.to_pylist() for column in all_rows.columns), strict=True)) == model


def test_what_is_appended_does_not_copy_all_that_was_appended_before() -> None:
    """Rows are copied once each time the tail has doubled."""
    copied = 0

    def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        nonlocal copied
        copied += sum(batch.nbytes for batch in batches)
        return pa.concat_batches(batches)

    with mock.patch.object(group_table, "pa", wraps=pa) as wrapped:
        wrapped.concat_batches = concat
        table = GroupTable(SCHEMA)
        for number in range(64):
            change = rows({f"k{number}": "x" * 500_000})
            table.find(change.column(0))
            table.upsert(change)
    assert copied <= 6.1 * 64 * 500_000
