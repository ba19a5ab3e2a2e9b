"""A block of records, which a custom sink gets at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.records.types import python_values

__all__ = ["Block"]


class Block:
    """Records that a sink writes together, some or thousands.

    Args:
        batch: the records as Arrow columns.
        keys: the key of each record, if its step or message has one (binary).
        ids: an id that tells each record apart, if the sink states "at least once with ids". A record that is written
            again has the same id.

    >>> block = Block(pa.record_batch({"room": [5, 6], "alarm": ["hot", ""]}))
    >>> block.rows
    [{'room': 5, 'alarm': 'hot'}, {'room': 6, 'alarm': ''}]
    >>> block.reject(1, "An alarm needs a text.")
    >>> block.rejected
    {1: 'An alarm needs a text.'}

    """

    def __init__(
        self, batch: pa.RecordBatch, keys: pa.Array | None = None, ids: Sequence[str] | None = None
    ) -> None:
        self.batch = batch
        self.keys = keys
        self.ids = ids
        self.rejected: dict[int, str] = {}
        """The reasons for which rows were rejected, by the number of the row."""

    def __len__(self) -> int:
        return len(self.batch)

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The records as dicts of plain Python values."""
        names = self.batch.schema.names
        columns = [python_values(column) for column in self.batch.columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def reject(self, row: int, reason: str) -> None:
        """Make the record of a row a dead letter. Do not write it; a replay must reject the same."""
        if not 0 <= row < len(self):
            raise IndexError(f"the block has {len(self)} rows, so there is no row {row} to reject")
        self.rejected[row] = reason
