"""The in-memory table of one key group: one row per key, one column per declared state.

Rows are stored as Arrow columns. A change appends the new row to a tail, and the index points to the newest row of each
key. When the tail has grown to a certain share of the table, the table is compacted. So the cost of a change depends on
the rows that change, not on the size of the table.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import weakref
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import empty_like
from penstock.state.key_index import ABSENT, KeyIndex, Places
from penstock.state.timeline import Domain, Timeline, TimerColumn

__all__ = ["KEY_COLUMN", "GroupTable", "Held", "Rows", "held_rows", "sorted_by_key"]

KEY_COLUMN: Final = "key"

# The tail is compacted into the base when it has this many rows, or this share of the table's.
_FEW: Final = 4096
_SHARE: Final = 4
# Up to this size the tail is one batch. A larger tail is several, each larger than the next, so that an append
# does not copy the whole tail each time.
_ONE_BATCH_BYTES: Final = 256 << 10
# Tables that grow alike would all be compacted in one micro-batch, so each has a different threshold.
_turns: Final = itertools.count()

Held: TypeAlias = npt.NDArray[np.bool_]
"""A mask of the keys that have a row."""


class Rows(Protocol):
    """Rows by key."""

    @property
    def schema(self) -> pa.Schema:
        """The key, and the columns of the states."""
        ...

    def lookup(self, keys: pa.Array) -> tuple[Held, pa.RecordBatch]:
        """Return a mask of the keys that have a row, and their rows; rows of nulls for the others."""
        ...

    def all_rows(self) -> pa.RecordBatch:
        """Return the rows of all keys."""
        ...


class GroupTable:
    """The rows of one key group. The key is the first column; all other columns are nullable."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema: Final = schema
        self._base = empty_like(schema)
        self._tail: list[pa.RecordBatch] = []
        # Arrow adds up the sizes of all buffers each time it is asked.
        self._tail_sizes: list[int] = []
        self._tail_rows = 0
        self._on_disk = False
        # A weak reference: an unused table must be freed at once, with its rows, not by the cycle collector.
        own = weakref.WeakMethod(self._key_at)
        self._index: Final = KeyIndex(schema.field(KEY_COLUMN).type, lambda places: own()(places))  # type: ignore[misc]  # the table lives while its index is used
        self._turn: Final = 0.5 + 0.5 * (next(_turns) * 0.618 % 1)
        self._timelines: dict[Domain, Timeline] = {}
        self.keys = 0

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> GroupTable:
        """Return a table of rows, which must have distinct keys."""
        table = cls(batch.schema)
        table._base = batch
        table._index.put(batch.column(0), np.arange(batch.num_rows))
        table.keys = batch.num_rows
        return table

    def find(self, keys: pa.Array) -> Places:
        """Return the place of each key's row, or ABSENT."""
        return self._index.find(keys)

    def lookup(self, keys: pa.Array) -> tuple[Held, pa.RecordBatch]:
        """Return a mask of the keys that have a row, and their rows; rows of nulls for the others."""
        places = self.find(keys)
        return places >= 0, self.rows(places)

    def rows(self, places: Places) -> pa.RecordBatch:
        """Return the rows at some places; rows of nulls where a place is ABSENT."""
        if len(places) == 1:
            return self._row(int(places[0]))
        return self._take(pa.array(places, mask=places < 0) if (places < 0).any() else pa.array(places))

    def _row(self, place: int) -> pa.RecordBatch:
        """Return the row at a place, which shares the memory of the table."""
        if place < 0:
            return _null_row(self.schema)
        for part in (self._base, *self._tail):
            if place < part.num_rows:
                return part.slice(place, 1)
            place -= part.num_rows
        raise IndexError(f"the table ends {place} rows before the place")

    def scan(self, code: int, count: int, columns: list[str]) -> tuple[Places, pa.RecordBatch, int | None]:
        """Return the places and some columns of at most `count` rows, in the order of their keys' codes.

        The scan starts at `code`. The third element is the code with which to continue, None at the end.
        """
        places, following = self._index.scan(code, count)
        return places, self._take(pa.array(places), columns), following

    def timeline(self, domain: Domain, column: TimerColumn) -> Timeline:
        """Return the timeline of due timers by one clock. The first call for a clock reads all rows."""
        if domain not in self._timelines:

            def rows_of(keys: pa.Array) -> pa.RecordBatch:
                places = np.unique(self.find(keys))
                return self._take(pa.array(places[places >= 0]), [KEY_COLUMN, column.name])

            def earliest(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], pa.Array]:
                return column.earliest(rows, domain)

            self._timelines[domain] = Timeline(earliest, self.all_rows(), rows_of)
        return self._timelines[domain]

    def all_rows(self) -> pa.RecordBatch:
        """Return the rows of all keys."""
        self._compact()
        return self._base

    def upsert(self, changes: pa.RecordBatch) -> None:
        """Insert or replace rows with distinct keys; a row without any value removes its key."""
        keys = changes.column(0)
        held = held_rows(changes)
        places = np.arange(changes.num_rows) + self._base.num_rows + self._tail_rows
        places[~held] = ABSENT
        # Rows first, since the index reads keys at their places.
        self._append(changes)
        before = self._index.put(keys, places)
        self.keys += int(held.sum()) - int((before >= 0).sum())
        for timeline in self._timelines.values():
            timeline.add(changes)
        if self._tail_rows > self._turn * max(_FEW, self._base.num_rows // _SHARE):
            self._compact()

    def _append(self, changes: pa.RecordBatch) -> None:
        sizes = self._tail_sizes
        sizes.append(changes.nbytes)
        waiting = [changes]
        while self._tail and (sizes[-2] <= sizes[-1] or sizes[-2] + sizes[-1] <= _ONE_BATCH_BYTES):
            waiting.append(self._tail.pop())
            sizes[-2:] = [sizes[-2] + sizes[-1]]
        self._tail.append(pa.concat_batches(waiting[::-1]) if len(waiting) > 1 else changes)
        self._tail_rows += changes.num_rows

    @property
    def nbytes(self) -> int:
        """The approximate memory of the table, in bytes."""
        base = 0 if self._on_disk else self._base.nbytes
        tail = sum(self._tail_sizes)
        timelines = sum(timeline.nbytes for timeline in self._timelines.values())
        return int(base + tail + self._index.nbytes + timelines)

    def spill(self) -> None:
        """Move the rows to disk, where they are read as needed; the index stays in memory."""
        self._compact()
        if self._on_disk or not self._base.num_rows:
            return
        with tempfile.NamedTemporaryFile(prefix="penstock-state-") as file:
            with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, self.schema) as writer:
                writer.write_batch(self._base)
            # The mapping keeps the file open after its name is removed, so nothing is left when the worker ends.
            mapped = pa.memory_map(file.name)
        self._base = pa.ipc.open_file(mapped).get_batch(0)
        self._on_disk = True

    def _compact(self) -> None:
        if not self._tail:
            return
        places = self._index.renumber()
        self._base = self._take(pa.array(places))
        self._tail, self._tail_sizes, self._tail_rows, self._on_disk = [], [], 0, False

    def _key_at(self, places: Places) -> pa.Array:
        return self._take(pa.array(places), [KEY_COLUMN]).column(0)

    def _take(self, places: pa.Array, columns: list[str] | None = None) -> pa.RecordBatch:
        parts = [part for part in (self._base, *self._tail) if part.num_rows] or [self._base]
        if columns is not None:
            parts = [part.select(columns) for part in parts]
        if len(parts) == 1:
            return parts[0].take(places)
        starts = np.cumsum([0, *(part.num_rows for part in parts)])
        if 2 * len(places) >= starts[-1]:
            # Most of the table: copying all of it costs less than finding the part of each row.
            return pa.concat_batches(parts).take(places)
        # A null place is taken from the first part.
        known = places.fill_null(0) if places.null_count else places
        wanted = known.to_numpy(zero_copy_only=False)
        if len(wanted) and not places.null_count:
            first, last = np.searchsorted(starts, [wanted.min(), wanted.max()], side="right") - 1
            if first == last:
                return parts[first].take(pa.array(wanted - starts[first]))
        holders = (np.searchsorted(starts, wanted, side="right") - 1).astype(np.uint16)
        order = np.argsort(holders, kind="stable")
        ends = np.searchsorted(holders[order], np.arange(len(parts) + 1))
        taken = []
        for part, start, low, high in zip(parts, starts, ends, ends[1:], strict=False):
            if low < high:
                taken.append(part.take(pc.subtract(places.take(pa.array(order[low:high])), int(start))))
        if len(taken) < 2:
            return taken[0] if taken else parts[0].take(places)
        # The rows are grouped by part; restore the order of the places.
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(taken).take(pa.array(back))


def held_rows(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that have any value besides the key."""
    held = np.zeros(rows.num_rows, bool)
    for column in rows.columns[1:]:
        if column.null_count == 0:
            return np.ones(rows.num_rows, bool)
        held |= column.is_valid().to_numpy(zero_copy_only=False)
    return held


def sorted_by_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows sorted by key."""
    keys = rows.column(0)
    if pa.types.is_struct(keys.type):
        names = [f"{number}" for number in range(keys.type.num_fields)]
        table = pa.table(dict(zip(names, keys.flatten(), strict=True)))
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    else:
        order = pc.sort_indices(keys)
    return rows.take(order)


@functools.cache
def _null_row(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
