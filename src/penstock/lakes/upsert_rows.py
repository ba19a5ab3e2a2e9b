"""Upsert rows: turn the records of a sink for tables into rows that replace the row of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bindings.types import DeltaBinding, IcebergBinding
from penstock.errors import BindingError
from penstock.records.types import RecordType

__all__ = ["GONE", "Deletions", "UpsertRows", "upsert_rows"]

GONE: Final = "_penstock_gone"
"""The column of staged rows that says whether the row is deleted."""


_GONE_FIELD: Final = pa.field(GONE, pa.bool_(), nullable=False)


@dataclass(frozen=True)
class Deletions:
    """How a record says that its row is deleted: the field with the kind of the change, and that kind."""

    field: str
    kind: str


@dataclass(frozen=True)
class UpsertRows:
    """How records become rows that replace those of their key. `deletions` is None if each record is a row."""

    schema: pa.Schema
    key: tuple[str, ...]
    deletions: Deletions | None = None

    @property
    def staged_schema(self) -> pa.Schema:
        """The columns of staged rows."""
        return self.schema.append(_GONE_FIELD)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as rows, with the column that says whether a row is deleted."""
        gone = np.zeros(len(batch), bool)
        if self.deletions is not None:
            gone = pc.equal(batch.column(self.deletions.field), self.deletions.kind).to_numpy(
                zero_copy_only=False
            )
        columns = [*(batch.column(name) for name in self.schema.names), pa.array(gone, pa.bool_())]
        return pa.RecordBatch.from_arrays(columns, schema=self.staged_schema)


def upsert_rows(
    binding: DeltaBinding | IcebergBinding,
    record_type: RecordType,
    upsert_key: Sequence[str] | None,
    deletions: Deletions,
) -> UpsertRows | None:
    """Return how records become rows that replace others; None if each record is added. Raises BindingError."""
    if upsert_key is None and not binding.upsert_by:
        return None
    if upsert_key is not None and binding.upsert_by:
        raise BindingError(
            f"Sink {binding.stream!r} takes upserts, whose key is known; remove upsert_by from its URI."
        )
    if upsert_key is not None and not upsert_key:
        raise BindingError(
            f"Sink {binding.stream!r} takes the upserts of one row, which has no key in a table. Give the rows a key: "
            'sink_to(..., changes="upserts", key=["id"]).'
        )
    key = tuple(upsert_key or binding.upsert_by)
    names = [name for name in record_type.field_names if upsert_key is None or name != deletions.field]
    unknown = [name for name in key if name not in names]
    if unknown:
        raise BindingError(
            f"Sink {binding.stream!r}: upsert_by names {', '.join(unknown)}, but the records have only "
            f"{', '.join(names)}."
        )
    schema = pa.schema([record_type.schema.field(name) for name in names])
    wrong = [name for name in key if not _is_key_type(schema.field(name).type)]
    if wrong:
        raise BindingError(
            f"Sink {binding.stream!r}: {', '.join(wrong)} cannot be the key of rows; text, whole numbers, dates, "
            "times, decimals and booleans can."
        )
    return UpsertRows(schema, key, None if upsert_key is None else deletions)


def _is_key_type(kind: pa.DataType) -> bool:
    known = (
        pa.types.is_string,
        pa.types.is_integer,
        pa.types.is_temporal,
        pa.types.is_decimal,
        pa.types.is_boolean,
    )
    return any(is_type(kind) for is_type in known)
