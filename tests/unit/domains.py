"""The three domains of tests: rooms with readings, visits of users, and sales of shops; and functions for any of them.

A test takes its records and functions from here, unless it needs others.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import penstock as ps
from penstock.base.instants import milliseconds_of
from penstock.testing.batch_runner import NOW

__all__ = [
    "Colour",
    "CountRecords",
    "Counted",
    "Limit",
    "Pane",
    "PassOn",
    "Reading",
    "Sale",
    "ShowPanes",
    "TimedReading",
    "Visit",
    "ms_of",
]


@dataclass
class Reading:
    """What was read in a room."""

    room: int
    value: int = 0


@dataclass
class TimedReading:
    """What was read in a room, and when."""

    room: int
    value: int
    at: dt.datetime = NOW


@dataclass
class Limit:
    """A control: what the values of a room are judged by."""

    room: int
    limit: int


@dataclass
class Visit:
    """A user came by, at a time in milliseconds since 1970."""

    user: str
    at: int
    number: int = 0


@dataclass
class Pane:
    """A window of a user that has fired, and the numbers of the visits in it."""

    user: str
    start: int
    end: int
    numbers: list[int]


@dataclass
class Sale:
    """A shop has sold something on a day, for an amount that may not be known."""

    shop: str
    day: int
    amount: float | None
    note: str = ""


@dataclass
class Counted:
    """How many records a key has had."""

    key: int
    count: int


class CountRecords(ps.ProcessFunction):
    """Counts the records of each key."""

    count = ps.ValueState(int)

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Counted]:
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        yield Counted(ctx.key, count)


class PassOn(ps.ProcessFunction):
    """Emits what it gets; its step says what that is."""

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Any]:
        yield record


class ShowPanes(ps.WindowFunction):
    """Emits what a window of visits holds, and keeps how often those of its user have fired."""

    fired = ps.ValueState(int)

    def process(self, key: str, records: Sequence[Visit], ctx: ps.WindowContext) -> Iterator[Pane]:
        self.fired.set((self.fired.get() or 0) + 1)
        yield Pane(key, ctx.window.start, ctx.window.end, [visit.number for visit in records])


class Colour(enum.Enum):
    """An enum whose members are text."""

    RED = "red"
    BLUE = "blue"


def ms_of(at: dt.datetime | None) -> int | None:
    """A time in milliseconds since 1970, if there is one."""
    return None if at is None else milliseconds_of(at)
