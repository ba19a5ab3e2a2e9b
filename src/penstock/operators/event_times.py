"""Event times: columns of times as datetimes and as milliseconds, and the times that travel beside records."""

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
    "are_beyond",
    "beyond",
    "event_times",
    "largest_so_far",
    "times_column",
    "times_ms",
    "untimed",
]

EVENT_TIME: Final = "__event_time"
"""As the field of event time: no field holds it, and it travels beside the record in a column of that name."""

BEFORE_ALL: Final = -(2**63)
"""The time before all times, in milliseconds since 1970."""


def event_times(column: pa.Array) -> list[dt.datetime | None]:
    """The times of a column of timestamps, or of milliseconds since 1970: the nearest that datetimes can tell."""
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
    """The times of such a column in milliseconds since 1970, and which of them are null."""
    is_missing = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).fill_null(0).to_numpy(), is_missing
    microseconds = _timestamps(column).cast(pa.int64()).fill_null(0).to_numpy()
    return microseconds // 1000, is_missing


def times_column(column: pa.Array) -> pa.Array:
    """The times of such a column as they travel beside records: milliseconds since 1970, or null."""
    milliseconds, is_missing = times_ms(column)
    return pa.array(milliseconds, pa.int64(), mask=is_missing)


def largest_so_far(column: pa.Array, before_ms: int) -> npt.NDArray[np.int64]:
    """For each row the largest event time up to it, in milliseconds since 1970."""
    milliseconds, is_missing = times_ms(column)
    milliseconds = np.where(is_missing, BEFORE_ALL, milliseconds)
    largest: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(milliseconds, before_ms))
    return largest


def are_beyond(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of some times in milliseconds since 1970 no datetime can tell."""
    found: npt.NDArray[np.bool_] = (times_ms < FIRST_MS) | (times_ms > LAST_MS)
    return found


def beyond(time_ms: int) -> str:
    """Why a record with such a time cannot be processed."""
    return f"the event time {time_ms} lies beyond the years 1 to 9999; give a timestamp, or milliseconds since 1970"


def untimed(field: str) -> str:
    """Why a record without an event time cannot be processed, where `field` should have it."""
    if field == EVENT_TIME:
        return (
            "the record has no event time: it was emitted for a timer by the clock, a control record or a command. "
            "Give such records a field with the time, and name it in with_event_time."
        )
    return f"the record has no event time: its field {field!r} is null"
