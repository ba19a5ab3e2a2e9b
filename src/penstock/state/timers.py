"""Timers: when a key wants to be called again. They are kept as a hidden list state of the key."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import StateError
from penstock.instants import EPOCH
from penstock.state.lists import BoundListState, ListState
from penstock.state.timeline import TIMERS, Domain
from penstock.state.values import BoundState, BoundValueState

__all__ = ["BoundTimers", "StoredTimer", "Timer", "TimerState", "Timers"]

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FIRST_US: Final = (dt.datetime.min.replace(tzinfo=dt.UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - EPOCH) // _MICROSECOND


@dataclass(frozen=True, order=True)
class Timer:
    """A timer that a function has registered: `at` is its time, in UTC, and `name` tells it from others.

    `domain` is "processing" or "event": by which clock it is due.
    """

    at: dt.datetime
    name: str = ""
    domain: Domain = "processing"


@dataclass(frozen=True, order=True)
class StoredTimer:
    """A timer as it is stored."""

    at: dt.datetime
    domain: str
    name: str


class Timers:
    """The timers of the current key, `ctx.timers`."""

    def register(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:
        """Let `on_timer` be called for the current key, once, however often it is registered.

        By processing time that is in the first micro-batch whose time is not before `at`. A timer whose time has come
        already is called in this micro-batch when a command or a control record registers it, in the next one when data
        or another timer does. By event time it is as soon as the watermark is not before `at`, behind the data of the
        micro-batch; one whose time has come already is called there, too.
        ValueError when `at` has no time zone, StateError by event time where the stream has no watermarks.
        """
        raise NotImplementedError

    def delete(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:
        """Take a timer of the current key back, if it is there. ValueError when `at` has no time zone."""
        raise NotImplementedError


class TimerState(ListState[StoredTimer]):
    """The hidden state that holds the timers of a key, the earliest first."""

    def __init__(self) -> None:
        super().__init__(StoredTimer)
        self.name = TIMERS

    def bound(self, kind: type[BoundValueState]) -> type[BoundState]:  # noqa: ARG002  # names are tried at once anyway
        """The class of the state at work."""
        return BoundTimers


class BoundTimers(BoundListState, Timers):
    """The timers of a key group at work."""

    __slots__ = ()

    def register(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:  # noqa: D102  # as declared
        timer = _stored(at, name, domain)
        if domain == "event" and not self._cursor.has_watermarks:
            raise StateError(
                "A timer by event time needs a watermark: declare the stream with event_time= and watermarks=."
            )
        held = self._held() or []
        if timer not in held:
            self._replace(sorted([*held, timer]))

    def delete(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:  # noqa: D102  # as declared
        self.take(_stored(at, name, domain))

    def take(self, timer: StoredTimer) -> bool:
        """Take a timer back; whether it was there."""
        held: list[Any] = self._held() or []
        if timer not in held:
            return False
        self._replace([one for one in held if one != timer])
        return True

    def due(self, domain: Domain, now_us: int) -> list[StoredTimer]:
        """The timers of the current key that are due by one clock, in order."""
        now = EPOCH + dt.timedelta(microseconds=min(max(now_us, _FIRST_US), _LAST_US))
        return [timer for timer in self._held() or () if timer.at <= now and timer.domain == domain]

    @property
    def changed_keys(self) -> list[Any]:
        """The keys whose timers were changed in this run, and not written back yet."""
        return list(self._dirty)


def _stored(at: dt.datetime, name: str, domain: str) -> StoredTimer:
    if domain not in ("processing", "event"):
        raise ValueError(f"a timer is due by processing or event time, not by {domain!r}")
    if not isinstance(at, dt.datetime) or not isinstance(name, str):
        raise TypeError(f"a timer has a datetime and a name, not {at!r} and {name!r}")
    if at.tzinfo is None:
        raise ValueError(
            f"the time of a timer needs a time zone, and {at!r} has none; add tzinfo=datetime.UTC"
        )
    # What cannot be stored raises here, where the code that registers it is to blame.
    name.encode()
    return StoredTimer(at.astimezone(dt.UTC), domain, name)
