"""Held rows: the records of one side of a join, in memory as columns and stored as one list for each key."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.instants import FIRST_MS, LAST_MS
from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.lists import ListForm, ListState, offsets_of_lengths
from penstock.state.state_spec import StateSpec, record_struct

__all__ = ["HeldRows", "Ints", "Mask", "SideState", "Sides"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_TIME = pa.timestamp("us", "UTC")


class SideState(ListState[Any]):
    """The records of one side that a key still needs, each with its time and, on request, whether it was matched."""

    def __init__(self, name: str, records: RecordType, *, with_matched: bool) -> None:
        self.name = name
        fields = [Field("at", dt.datetime, _TIME, nullable=False)]
        if with_matched:
            fields.append(Field("matched", bool, pa.bool_(), nullable=False))
        fields.append(Field("record", records.python_class, record_struct(records), nullable=False))
        super().__init__(type_of_fields(fields).python_class)
        self._kind = type_of_fields(fields)
        self.name = name

    def spec(self) -> StateSpec:
        """Return how the state is stored: as an Arrow list of rows."""
        kind = self._kind
        item = StateSpec("item", kind.python_class, record_struct(kind), kind)
        return StateSpec(self.name, ListForm(item), pa.list_(item.arrow_type), None)


@dataclass(frozen=True)
class HeldRows:
    """Rows of one side: the slot of the key, the time in milliseconds, the record, and whether it was matched."""

    slots: Ints
    times: Ints
    records: pa.StructArray
    matched: Mask

    @classmethod
    def new(cls, slots: Ints, times: Ints, batch: pa.RecordBatch, kind: RecordType) -> HeldRows:
        """Return rows of records that have just arrived."""
        columns = [batch.column(name) for name in kind.field_names]
        records = pa.StructArray.from_arrays(columns, fields=list(record_struct(kind)))
        return cls(slots, times, records, np.zeros(len(slots), bool))

    @classmethod
    def numbered(cls, batch: pa.RecordBatch, kind: RecordType) -> HeldRows:
        """Return rows that have their numbers as slots and times, for lookups, which need neither."""
        numbers = np.arange(batch.num_rows)
        return cls.new(numbers, numbers, batch, kind)

    @classmethod
    def empty(cls, kind: RecordType) -> HeldRows:
        """Return no rows."""
        none = np.empty(0, np.int64)
        return cls(none, none, pa.nulls(0, record_struct(kind)), np.empty(0, bool))

    @classmethod
    def of_stored(cls, column: pa.Array) -> HeldRows:
        """Return the rows of a stored column, with the row of the key as slot."""
        flat = pc.list_flatten(column)
        names = [field.name for field in flat.type]
        at_us = pc.struct_field(flat, "at").cast(pa.int64()).to_numpy(zero_copy_only=False)
        matched = np.zeros(len(flat), bool)
        if "matched" in names:
            matched = pc.struct_field(flat, "matched").to_numpy(zero_copy_only=False).copy()
        return cls(
            pc.list_parent_indices(column).to_numpy().astype(np.int64),
            at_us // 1000,
            pc.struct_field(flat, "record"),
            matched,
        )

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, rows: Ints) -> HeldRows:
        """Return some of the rows, in that order."""
        return HeldRows(
            self.slots[rows], self.times[rows], self.records.take(pa.array(rows)), self.matched[rows]
        )

    def where(self, keep: Mask) -> HeldRows:
        """Return the rows whose mask is true."""
        return self if keep.all() else self.take(np.flatnonzero(keep))

    def plus(self, more: HeldRows) -> HeldRows:
        """Return these rows, followed by others."""
        if not len(more):
            return self
        if not len(self):
            return more
        return HeldRows(
            np.concatenate([self.slots, more.slots]),
            np.concatenate([self.times, more.times]),
            pa.concat_arrays([self.records, more.records]),
            np.concatenate([self.matched, more.matched]),
        )

    def with_matched(self, matched: Mask) -> HeldRows:
        """Return the same rows with other marks."""
        return dataclasses.replace(self, matched=matched)

    def to_stored(self, keys: int, kind: pa.ListType) -> pa.Array:
        """Return the stored column for this number of keys: the rows of each key by time, then as they came."""
        # A stable sort is fast, since the rows are almost in order.
        order = np.lexsort((self.times, self.slots))
        rows = self if (np.diff(order) == 1).all() else self.take(order)
        at_us = pa.array(np.clip(rows.times, FIRST_MS, LAST_MS) * 1000).cast(_TIME)
        arrays = {"at": at_us, "matched": pa.array(rows.matched), "record": rows.records}
        fields = list(kind.value_type)
        structs = pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
        return pa.ListArray.from_arrays(
            offsets_of_lengths(np.bincount(rows.slots, minlength=keys)), structs, type=kind
        )


Sides: TypeAlias = tuple[HeldRows, HeldRows]
"""The rows of the left and of the right side."""
