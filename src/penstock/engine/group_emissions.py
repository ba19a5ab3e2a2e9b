"""Group emissions: the records emitted for a key group, and the row or timer that emitted each."""

from __future__ import annotations

import datetime as dt
import heapq
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.instants import EPOCH
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.step import StepCore
from penstock.errors import SchemaError
from penstock.operators.error_reasons import misfit_reason
from penstock.operators.event_times import times_column
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.records.schemas import VERSION_FIELD
from penstock.records.types import RecordType
from penstock.state.timeline import TIMERS
from penstock.state.timer import StoredTimer

__all__ = [
    "DueTimers",
    "EmittedByTimers",
    "EmittedRecords",
    "FiredTimers",
    "Stamps",
    "conform_batch",
    "row_times",
    "split_fitting",
]


class FiredTimers:
    """The timers that fire in one run, with their keys; `found` has those already called, in order."""

    def __init__(self, step: str, due: list[tuple[StoredTimer, Any]], watermark_us: int = 0) -> None:
        self._step: Final = step
        self._known: Final[set[tuple[Any, ...]]] = set()
        self.waiting: Final[list[tuple[tuple[Any, ...], StoredTimer, Any]]] = []
        self.watermark_us: Final = watermark_us
        self.found: Final[list[tuple[StoredTimer, Any]]] = []
        self.expect(due)

    def next(self) -> tuple[StoredTimer, Any]:
        """Remove and return the earliest waiting timer."""
        place, timer, key = heapq.heappop(self.waiting)
        self._known.remove(place)
        self.found.append((timer, key))
        return timer, key

    def expect(self, more: list[tuple[StoredTimer, Any]]) -> None:
        """Add timers, unless they are already waiting."""
        for timer, key in more:
            place = (timer.at, timer.name, key)
            if place not in self._known:
                self._known.add(place)
                heapq.heappush(self.waiting, (place, timer, key))

    def dead_letter(self, row: int, reason: str) -> DeadLetter:
        """Return the dead letter of a timer."""
        timer, key = self.found[row]
        raw = msgspec.json.encode({"key": key, "at": timer.at, "name": timer.name, "domain": timer.domain})
        return DeadLetter(reason, TIMERS, self._step, "", 0, raw)


def _due_ms(timer: StoredTimer) -> int | None:
    """Return the first watermark at which an event-time timer is due; None for a processing-time timer."""
    return -((EPOCH - timer.at) // dt.timedelta(milliseconds=1)) if timer.domain == "event" else None


def row_times(block: Block | FiredTimers, core: StepCore) -> pa.Array:
    """Return the event times of records emitted for each row of a block, or for each timer."""
    if isinstance(block, FiredTimers):
        return pa.array([_due_ms(timer) for timer, _ in block.found], pa.int64())
    field = core.inputs[block.input].time
    if field is None:
        return pa.nulls(block.batch.num_rows, pa.int64())
    return times_column(block.batch.column(field))


@dataclass(frozen=True)
class Stamps:
    """The control versions of the rows of a block; `noted` has those of the emitted records, if already known."""

    keys: list[Any]
    times: list[dt.datetime | None] | None
    noted: list[int] | None = None

    def stamp(self, batch: pa.RecordBatch, rows: Sequence[int], instance: FunctionInstance) -> pa.RecordBatch:
        """Return the emitted records with the version under which each was made."""
        cursor = instance.cursor
        if self.noted is not None:
            return batch.append_column(VERSION_FIELD, pa.array(self.noted, pa.int64()))
        versions = []
        for row in rows:
            cursor.key = self.keys[row]
            cursor.time = None if self.times is None else self.times[row]
            versions.append(instance.version())
        cursor.time = None
        return batch.append_column(VERSION_FIELD, pa.array(versions, pa.int64()))


class EmittedRecords:
    """The records emitted so far for the rows of a block.

    The current row is derived from the number of remaining keys, so the innermost loop need not track it.
    """

    def __init__(self, count: int, keys_left: Iterator[Any]) -> None:
        self.records: list[Any] = []
        self.rows: list[int] = []
        self.side: list[tuple[int, str, Any]] = []
        self.versions: list[int] = []
        self._count = count
        self._keys_left = keys_left

    def current_row(self) -> int:
        """Return the row whose record is being processed."""
        return self._count - operator.length_hint(self._keys_left) - 1

    def side_output(self, name: str, record: Any) -> None:
        """Emit a record to a side output."""
        self.side.append((self.current_row(), name, record))

    def forget(self, row: int) -> None:
        """Discard the records emitted for a row, which must be the last one."""
        while self.rows and self.rows[-1] == row:
            self.rows.pop()
        del self.records[len(self.rows) :]
        del self.versions[len(self.rows) :]
        while self.side and self.side[-1][0] == row:
            self.side.pop()


class EmittedByTimers(EmittedRecords):
    """The records emitted so far by timers; the current row is the last timer called."""

    def __init__(self, fired: FiredTimers) -> None:
        super().__init__(0, iter(()))
        self._fired = fired

    def current_row(self) -> int:
        """Return the last timer called."""
        return len(self._fired.found) - 1


class DueTimers(NamedTuple):
    """The keys of a key group that may have due timers, by processing time and by event time.

    `event` is None while more data of the micro-batch follows, when it is too early for event-time timers.
    """

    processing: pa.Array
    event: pa.Array | None


def split_fitting(
    output_type: RecordType, records: Sequence[Any], rows: Sequence[int]
) -> tuple[list[Any], list[int], list[tuple[int, str]]]:
    """Return the emitted records that fit the output type, with their rows, and the rows of others with the reason."""
    kept: list[tuple[Any, int]] = []
    misfits: list[tuple[int, str]] = []
    for record, row in zip(records, rows, strict=True):
        try:
            output_type.batch([record])
            kept.append((record, row))
        except SchemaError as e:
            misfits.append((row, misfit_reason(record, output_type, e)))
    return [record for record, _ in kept], [row for _, row in kept], misfits


def conform_batch(
    output_type: RecordType, batch: pa.RecordBatch, rows: npt.NDArray[np.int64] | None, count: int
) -> pa.RecordBatch:
    """Convert the batch returned for `count` records to its declared type. Raises ValueError if it does not fit."""
    if rows is None and batch.num_rows != count:
        raise ValueError(
            f"process_batch got {count} records but returned {batch.num_rows}; return (batch, rows) with the "
            "input row of each"
        )
    missing = [name for name in output_type.field_names if name not in batch.schema.names]
    if missing:
        raise ValueError(f"process_batch returned no column {missing[0]!r}, but {output_type!r} is declared")
    if rows is not None and len(rows) != batch.num_rows:
        raise ValueError(f"process_batch returned {batch.num_rows} records but the rows of {len(rows)}")
    columns = [batch.column(f.name).cast(f.arrow_type) for f in output_type.fields]
    for f, column in zip(output_type.fields, columns, strict=True):
        f.check(column)
    return pa.RecordBatch.from_arrays(columns, schema=output_type.schema)
