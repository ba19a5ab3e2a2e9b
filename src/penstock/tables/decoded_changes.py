"""Decoded changes: the kinds of changes that records of a source give in one of their fields."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.records.types import RecordType, type_of_fields
from penstock.tables.changes import KINDS, changelog_type, kinds_column

__all__ = ["KindField"]


@dataclasses.dataclass(frozen=True)
class KindField:
    """The field of records that tells the kind of a change; None if each inserts. `output` is the changelog's type."""

    field: str | None
    input: RecordType
    output: RecordType

    @classmethod
    def of(cls, records: RecordType, field: str | None) -> KindField:
        """Return the field of a type of records. Raises SchemaError if it cannot tell kinds."""
        if field is not None and not pa.types.is_string(records.field(field).arrow_type):
            raise SchemaError(
                f"the field {field!r} is {records.field(field).arrow_type}; the kind of a change is text: "
                f"{', '.join(KINDS)}."
            )
        rows = type_of_fields([one for one in records.fields if one.name != field])
        return cls(field, records, changelog_type(rows))

    def apply(self, records: Records, name: str) -> tuple[Records, list[DeadLetter]]:
        """Return records as changes, and the dead letters of those with an unknown kind."""
        columns = [records.batch.column(one) for one in self.output.field_names[:-1]]
        if self.field is None:
            kinds = kinds_column(np.zeros(len(records), np.int64))
            return records.with_batch(self._batch([*columns, kinds])), []
        given = records.batch.column(self.field)
        known = pc.is_in(given, value_set=pa.array(KINDS)).to_numpy(zero_copy_only=False)
        letters = [
            records.dead_letter(row, self._reason(given[row].as_py()), self.input, name)
            for row in np.flatnonzero(~known).tolist()
        ]
        if letters:
            kept = np.flatnonzero(known)
            picked = pa.array(kept)
            batch = self._batch([column.take(picked) for column in [*columns, given]])
            return records.take(kept, batch), letters
        return records.with_batch(self._batch([*columns, given])), []

    def _batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self.output.schema)

    def _reason(self, kind: str | None) -> str:
        return f"the field {self.field!r} is {kind!r}, which is not a kind of change; use {', '.join(KINDS)}"
