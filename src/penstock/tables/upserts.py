"""Upserts: the last change of each key, for destinations that keep one record per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.operators.record_blocks import Records
from penstock.records.types import RecordType
from penstock.tables.changes import CHANGE, DELETE, UPDATE_AFTER, change_codes, kinds_column, signs
from penstock.tables.group_keys import group_key

__all__ = ["LastChanges", "UpsertEncoder"]


class LastChanges:
    """The upserts of a changelog whose rows are identified by some fields."""

    def __init__(self, records: RecordType, names: Sequence[str]) -> None:
        self._key: Final = group_key(records, names)

    def of(self, records: Records) -> Records:
        """Return the last change of each key, as `+U` or `-D`, with the fields of the key as message key.

        The row before an update counts as deleted if the row after it does not follow: a condition may have dropped
        that.
        """
        keys = self._key.column(records.batch)
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        _, firsts = np.unique(codes[::-1], return_index=True)
        last = np.sort(len(codes) - 1 - firsts)
        kinds = np.where(signs(change_codes(records.batch)) > 0, UPDATE_AFTER, DELETE)
        names = records.batch.schema.names
        place = names.index(CHANGE)
        batch = records.batch.set_column(place, records.batch.schema.field(place), kinds_column(kinds))
        with_keys = Records(
            batch,
            records.stream,
            records.partition,
            records.offsets,
            records.raw,
            keys.cast(pa.string()).cast(pa.binary()),
            records.times,
            records.origins,
        )
        return with_keys.take(last)


class _Format(Protocol):
    def encode(self, batch: pa.RecordBatch) -> pa.Array: ...


class UpsertEncoder:
    """An encoder of upserts as messages: the row without the kind of the change, or null for a deletion."""

    def __init__(self, rows_format: _Format, rows: RecordType) -> None:
        self._format: Final = rows_format
        self._names: Final = list(rows.field_names)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the messages as a binary column."""
        values = self._format.encode(batch.select(self._names))
        gone = change_codes(batch) == DELETE
        return values.take(pa.array(np.arange(len(values)), mask=gone)) if gone.any() else values
