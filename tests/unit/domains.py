"""Records that tests of several rooms share: visits of users, and what comes of their windows."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass

from penstock.base.instants import milliseconds_of

__all__ = ["Colour", "Pane", "Visit", "ms_of"]


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


class Colour(enum.Enum):
    """An enum whose members are text."""

    RED = "red"
    BLUE = "blue"


def ms_of(at: dt.datetime | None) -> int | None:
    """A time in milliseconds since 1970, if there is one."""
    return None if at is None else milliseconds_of(at)
