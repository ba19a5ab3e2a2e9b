"""Event times: columns of times as datetimes and as milliseconds, and times in a separate column of a record."""

from __future__ import annotations

import datetime as dt
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.instants import FIRST_MS, LAST_MS

__all__ = [
    "BEFORE_ALL",
    "EVENT_TIME",
    "all_are_in_range",
    "are_out_of_range",
    "event_times",
    "largest_so_far",
    "no_time_reason",
    "out_of_range_reason",
    "times_column",
    "times_ms",
]

EVENT_TIME: Final = "__event_time"
"""As an event-time field: no field of the record holds the event time, but a separate column of this name."""

BEFORE_ALL: Final = -(2**63)
"""The time before all times, in milliseconds since 1970."""


def event_times(column: pa.Array) -> list[dt.datetime | None]:
    """Return the times of a column of timestamps or of milliseconds since 1970, each as the nearest datetime."""
    if pa.types.is_integer(column.type):
        column = pc.min_element_wise(
            pc.max_element_wise(column.cast(pa.int64()), FIRST_MS, skip_nulls=False),
            LAST_MS,
            skip_nulls=False,
        )
    times: list[dt.datetime | None] = _timestamps(column).to_pylist()
    return times


def _timestamps(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms", "UTC"))
    return column.cast(pa.timestamp("us", "UTC"))


def times_ms(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the times of such a column in milliseconds since 1970, and a mask of its nulls."""
    if pa.types.is_integer(column.type):
        return _fill(column.cast(pa.int64()))
    microseconds, is_missing = _fill(_timestamps(column).cast(pa.int64()))
    return microseconds // 1000, is_missing


def _fill(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the numbers of a column, with 0 for null, and a mask of the nulls."""
    if not column.null_count:
        return column.to_numpy(), np.zeros(len(column), bool)
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy(zero_copy_only=False)


def times_column(column: pa.Array) -> pa.Array:
    """Return the times of such a column as the separate time column: milliseconds since 1970, or null."""
    milliseconds, is_missing = times_ms(column)
    return pa.array(milliseconds, pa.int64(), mask=is_missing)


def largest_so_far(column: pa.Array, before_ms: int) -> npt.NDArray[np.int64]:
    """Return for each row the largest event time up to it, at least `before_ms`, in milliseconds since 1970."""
    milliseconds, is_missing = times_ms(column)
    milliseconds = np.where(is_missing, BEFORE_ALL, milliseconds)
    largest: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(milliseconds, before_ms))
    return largest


def are_out_of_range(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of the times, in milliseconds since 1970, a datetime cannot represent."""
    found: npt.NDArray[np.bool_] = (times_ms < FIRST_MS) | (times_ms > LAST_MS)
    return found


def all_are_in_range(times_ms: npt.NDArray[np.int64]) -> bool:
    """Return whether a datetime can represent each of the times, in milliseconds since 1970."""
    return not len(times_ms) or bool(times_ms.min() >= FIRST_MS and times_ms.max() <= LAST_MS)


def out_of_range_reason(time_ms: int) -> str:
    """Return the reason of a dead letter for a record with such a time."""
    return f"the event time {time_ms} lies beyond the years 1 to 9999; give a timestamp, or milliseconds since 1970"


def no_time_reason(field: str) -> str:
    """Return the reason of a dead letter for a record without an event time, which `field` should hold."""
    if field == EVENT_TIME:
        return (
            "the record has no event time: it was emitted for a processing-time timer, a control record or a command. "
            "Give such records a field with the time, and name it in with_event_time."
        )
    return f"the record has no event time: its field {field!r} is null"
