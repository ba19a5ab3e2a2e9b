"""Timers: callbacks of a key at a time, as user code registers them and as a run fires them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from penstock.state.timeline import Domain

__all__ = ["KeyTimers", "StoredTimer", "Timer", "Timers"]


@dataclass(frozen=True, order=True)
class Timer:
    """A timer that a function has registered, as `on_timer` gets it.

    Attributes:
        at: its time, in UTC.
        name: its name, which distinguishes it from other timers of the key.
        domain: the clock by which it is due, "processing" or "event".

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
        """Register a call of `on_timer` for the current key. Repeated registrations of a timer result in one call.

        A processing-time timer fires in the first micro-batch whose time is not before `at`. If its time has already
        come, it fires in this micro-batch if a command or a control record registers it, and in the next one if data or
        another timer does. An event-time timer fires once the watermark is not before `at`, after the data of the
        micro-batch; if its time has already come, it fires there, too.

        Args:
            at: when the timer is due.
            name: a name that distinguishes timers of the same time and clock.
            domain: the clock: "processing" or "event".

        Raises ValueError if `at` has no time zone or `domain` is unknown, TypeError if `at` is not a datetime or `name`
        is not a text, and StateError for an event-time timer on a stream without watermarks.

        """
        raise NotImplementedError

    def delete(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:
        """Delete a timer of the current key, if it is registered. Raises ValueError and TypeError like `register`."""
        raise NotImplementedError


class KeyTimers(Timers):
    """The timers of the current key, as a run fires them."""

    def take(self, timer: StoredTimer) -> bool:
        """Remove a timer. Returns whether it was registered."""
        raise NotImplementedError

    def due(self, domain: Domain, now_us: int) -> list[StoredTimer]:
        """Return the timers of the current key that are due by one clock, in order."""
        raise NotImplementedError

    @property
    def changed_keys(self) -> list[Any]:
        """The keys whose timers were changed in this run and not yet written back."""
        raise NotImplementedError
