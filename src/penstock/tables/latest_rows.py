"""Latest rows: the first or the last record of each group by arrival, and tables that are given as upserts."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.records.types import RecordType
from penstock.state.ttl import Ttl
from penstock.state.values import ValueState
from penstock.tables.changes import (
    CHANGE,
    DELETE,
    UPDATE_BEFORE,
    change_codes,
    changelog_type,
    diff_rows,
    kinds_column,
)
from penstock.tables.table_step import TableInput, TableResult, TableStep, latest_times
from penstock.tables.value_order import order_codes

__all__ = ["FirstRows", "LatestRows", "first_rows", "latest_rows"]

_SEEN: Final = "seen"
_ROW: Final = "row"


class FirstRows(TableStep):
    """The first record of each group to arrive, as an appending stream."""

    def __init__(self, rows: RecordType) -> None:
        self.output = rows

    def update(self, given: TableInput) -> TableResult:
        """Emit the first record of each group that has none yet."""
        stored = given.stored[_SEEN]
        seen = stored.fill_null(False).to_numpy(zero_copy_only=False)
        slots, firsts = np.unique(given.slots, return_index=True)
        rows = np.sort(firsts[~seen[slots]])
        times = None if given.times_ms is None else given.times_ms[rows]
        batch = given.batch.take(pa.array(rows)) if len(rows) else None
        seen = seen.copy()
        seen[slots] = True
        return TableResult(batch, given.slots[rows], {_SEEN: pa.array(seen, mask=~seen)}, times)


class LatestRows(TableStep):
    """The last record of each group to arrive, as a changelog. Records may be upserts, some of which delete."""

    def __init__(self, rows: RecordType) -> None:
        self._rows: Final = rows
        self.output = changelog_type(rows)

    def update(self, given: TableInput) -> TableResult:
        """Replace the rows of groups by the last records that have come for them."""
        stored = given.stored[_ROW]
        groups = len(stored)
        gone = np.zeros(len(given.slots), bool)
        counts = np.ones(len(given.slots), bool)
        if CHANGE in given.batch.schema.names:
            kinds = change_codes(given.batch)
            # The row before an update does not matter: the one after it replaces it.
            gone, counts = kinds == DELETE, kinds != UPDATE_BEFORE
        chosen = np.arange(groups)
        rows = np.flatnonzero(counts)
        # The last one of a slot wins.
        chosen[given.slots[rows]] = np.where(gone[rows], -1, groups + rows)
        columns = [given.batch.column(name) for name in self._rows.field_names]
        both = pa.concat_arrays([stored, pa.StructArray.from_arrays(columns, fields=list(stored.type))])
        after = both.take(pa.array(chosen, mask=chosen < 0))
        was, is_now = (column.is_valid().to_numpy(zero_copy_only=False) for column in (stored, after))
        pairs = pa.concat_arrays([stored, after])
        codes = [order_codes(column) for column in pairs.flatten()]
        differs = np.logical_or.reduce([code[:groups] != code[groups:] for code in codes])
        slots, has_after, kinds = diff_rows(was, is_now, differs, wants_before=given.wants_before)
        batch = None
        if len(slots):
            found = pairs.take(pa.array(np.where(has_after, slots + groups, slots))).flatten()
            batch = pa.RecordBatch.from_arrays([*found, kinds_column(kinds)], schema=self.output.schema)
        return TableResult(batch, slots, {_ROW: after}, latest_times(given, slots))


def first_rows(rows: RecordType, ttl: Ttl | None) -> FirstRows:
    """Return the function of a step that lets the first record of each group pass."""
    state = ValueState(bool, ttl=ttl)
    state.name = _SEEN
    kind = type("FirstRows", (FirstRows,), {_SEEN: state})
    found: FirstRows = kind(rows)
    return found


def latest_rows(rows: RecordType, ttl: Ttl | None) -> LatestRows:
    """Return the function of a step that keeps the last record of each group."""
    state = ValueState(rows, ttl=ttl)
    state.name = _ROW
    kind = type("LatestRows", (LatestRows,), {_ROW: state})
    found: LatestRows = kind(rows)
    return found
