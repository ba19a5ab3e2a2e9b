"""Timers: callbacks of a key at a time, kept as a hidden list state of the key."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from penstock.base.instants import EPOCH
from penstock.errors import StateError
from penstock.state.lists import BoundListState, ListState
from penstock.state.timeline import TIMERS, Domain
from penstock.state.timer import KeyTimers, StoredTimer

__all__ = ["BoundTimers", "TimerState"]


_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FIRST_US: Final = (dt.datetime.min.replace(tzinfo=dt.UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - EPOCH) // _MICROSECOND


class TimerState(ListState[StoredTimer]):
    """The hidden state with the timers of a key, earliest first."""

    def __init__(self) -> None:
        super().__init__(StoredTimer)
        self.name = TIMERS


class BoundTimers(BoundListState, KeyTimers):
    """The timers of a key group at run time."""

    __slots__ = ()

    def register(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:  # noqa: D102  # as declared
        timer = _stored(at, name, domain)
        if domain == "event" and not self._cursor.has_watermarks:
            raise StateError(
                "An event-time timer needs a watermark: declare the stream with event_time= and watermarks=."
            )
        held = self._held() or []
        if timer not in held:
            self._replace(sorted([*held, timer]))

    def delete(self, at: dt.datetime, name: str = "", domain: Domain = "processing") -> None:  # noqa: D102  # as declared
        self.take(_stored(at, name, domain))

    def take(self, timer: StoredTimer) -> bool:  # noqa: D102  # as declared
        held: list[Any] = self._held() or []
        if timer not in held:
            return False
        self._replace([one for one in held if one != timer])
        return True

    def due(self, domain: Domain, now_us: int) -> list[StoredTimer]:  # noqa: D102  # as declared
        now = EPOCH + dt.timedelta(microseconds=min(max(now_us, _FIRST_US), _LAST_US))
        return [timer for timer in self._held() or () if timer.at <= now and timer.domain == domain]

    @property
    def changed_keys(self) -> list[Any]:  # noqa: D102  # as declared
        return list(self._dirty)


# Names are checked at once anyway.
TimerState.run_time = (BoundTimers, BoundTimers)


def _stored(at: dt.datetime, name: str, domain: str) -> StoredTimer:
    if domain not in ("processing", "event"):
        raise ValueError(f"a timer is due by 'processing' or 'event' time, not by {domain!r}")
    if not isinstance(at, dt.datetime) or not isinstance(name, str):
        raise TypeError(f"a timer has a datetime and a name, not {at!r} and {name!r}")
    if at.tzinfo is None:
        raise ValueError(
            f"the time of a timer needs a time zone, and {at!r} has none; add tzinfo=datetime.UTC"
        )
    # A name that cannot be stored raises here, in the code that registers it.
    name.encode()
    return StoredTimer(at.astimezone(dt.UTC), domain, name)
