"""Timers: when a key wants to be called again, as user code registers them and as a run goes through them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from penstock.state.timeline import Domain

__all__ = ["KeyTimers", "StoredTimer", "Timer", "Timers"]


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


class KeyTimers(Timers):
    """The timers of the current key, as a run goes through them."""

    def take(self, timer: StoredTimer) -> bool:
        """Take a timer back; whether it was there."""
        raise NotImplementedError

    def due(self, domain: Domain, now_us: int) -> list[StoredTimer]:
        """The timers of the current key that are due by one clock, in order."""
        raise NotImplementedError

    @property
    def changed_keys(self) -> list[Any]:
        """The keys whose timers were changed in this run, and not written back yet."""
        raise NotImplementedError
