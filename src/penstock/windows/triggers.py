"""Window triggers: decide when a window emits, and when its contents are dropped."""
# Overriding methods are as the base class declares them.
# ruff: noqa: ARG002, D102

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, Final

from penstock.base.durations import Duration
from penstock.errors import JobDefinitionError
from penstock.windows.contexts import TriggerContext
from penstock.windows.window import MAX_TIME, Window
from penstock.windows.window_parameters import Parameter

__all__ = [
    "RECORD",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "Trigger",
    "TriggerResult",
]

RECORD: Final = "record"
"""As the `state_type` of a trigger: what it keeps is a record of the stream."""


class TriggerResult(enum.Enum):
    """What a trigger decides: nothing, that the window emits, that its contents are dropped, or both in this order."""

    CONTINUE = "continue"
    FIRE = "fire"
    PURGE = "purge"
    FIRE_AND_PURGE = "fire and purge"


# A global is found faster than a member of an enumeration.
_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE
_FIRE_AND_PURGE: Final = TriggerResult.FIRE_AND_PURGE


class Trigger:
    """When a window emits what it holds. Derive your own from it.

    A trigger is asked at each record that comes into a window, and at each timer that it has registered for the window
    with `ctx`. It is one object for all windows, so what it keeps of a window is `ctx.state`, of the type `state_type`.
    Times are in milliseconds since 1970.

    >>> class OnAlarm(Trigger):
    ...     def on_record(self, record, time_ms, window, ctx):
    ...         return TriggerResult.FIRE if record == "alarm" else TriggerResult.CONTINUE

    Attributes:
        state_type: the type of `ctx.state`, a type or a schema as for `ValueState`, or "record" for a record of the
            stream; None when the trigger keeps nothing.
        can_merge: whether the trigger fits windows that merge (sessions), and so overrides `on_merge`.

    """

    state_type: ClassVar[Any] = None
    can_merge: bool = False

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """A record has come into the window; `time_ms` is the record's own time."""
        raise NotImplementedError

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """A timer by event time is due; also when the window is cleaned up at that time."""
        return _CONTINUE

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """A timer by processing time is due; also when the window is cleaned up at that time."""
        return _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        """Windows have become one, `window`: make its state of `ctx.merged_states`, and register its timers."""
        raise NotImplementedError

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """The window goes, or has become part of another one. Its timers and its state go without this."""


class EventTimeTrigger(Trigger):
    """Fires when the watermark passes the end of the window, and from then on at each record that is not too late.

    With `GlobalWindows`, whose window has no end, it fires when the stream has ended.
    """

    can_merge = True

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp
        if last <= ctx.watermark:
            return _FIRE
        ctx.register_event_timer(last)
        return _CONTINUE

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _FIRE if time_ms == window.max_timestamp else _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        # Behind the watermark the record that has merged the windows fires, and a timer would do so once more.
        if window.max_timestamp > ctx.watermark:
            ctx.register_event_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock passes the end of the window."""

    can_merge = True

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_timer(window.max_timestamp)
        return _CONTINUE

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _FIRE if time_ms == window.max_timestamp else _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        if window.max_timestamp > ctx.processing_time:
            ctx.register_processing_timer(window.max_timestamp)


class CountTrigger(Trigger):
    """Fires at each `count`-th record of a window, and not at its end: an incomplete count is never emitted.

    The contents stay, so the second firing shows the records of the first as well; `PurgingTrigger` drops them.
    """

    state_type = int
    can_merge = True

    def __init__(self, count: int | Parameter) -> None:
        self._count = Parameter.count(count, "the count of a CountTrigger")

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        count = (ctx.state or 0) + 1
        if count >= self._count.value:
            ctx.state = None
            return _FIRE
        ctx.state = count
        return _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        ctx.state = sum(state or 0 for state in ctx.merged_states) or None


class DeltaTrigger(Trigger):
    """Fires at a record that differs by more than `threshold` from the one of the last firing, at first from the first.

    Not for sessions, and not at the end of the window. Purging does not forget the record.

    Args:
        threshold: fires above it.
        delta: a function of the earlier and the later record that says how much they differ.

    """

    state_type = RECORD

    def __init__(self, threshold: float | Parameter, delta: Callable[[Any, Any], float]) -> None:
        if not callable(delta):
            raise JobDefinitionError(
                f"The delta of a DeltaTrigger is a function of two records, not {delta!r}."
            )
        self._threshold = Parameter.number(threshold, "the threshold of a DeltaTrigger")
        self._delta = delta

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = ctx.state
        if last is None:
            ctx.state = record
            return _CONTINUE
        if self._delta(last, record) > self._threshold.value:
            ctx.state = record
            return _FIRE
        return _CONTINUE


class ContinuousEventTimeTrigger(Trigger):
    """Fires at each multiple of `interval` that the watermark passes, and at the end of the window.

    It fires with unchanged contents too, and once for each interval that a watermark jumps over. The first time is the
    next multiple behind the window's first record. Behind the end each record fires that is not too late.
    """

    state_type = int
    can_merge = True

    def __init__(self, interval: Duration | Parameter) -> None:
        self._interval = Parameter.duration(interval, "the interval of a ContinuousEventTimeTrigger")

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp
        if last <= ctx.watermark:
            return _FIRE
        ctx.register_event_timer(last)
        if ctx.state is None:
            interval = self._interval.value
            self._fire_next(_multiple_towards_1970(time_ms, interval) + interval, window, ctx)
        return _CONTINUE

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if time_ms == window.max_timestamp:
            return _FIRE
        if ctx.state != time_ms:
            return _CONTINUE
        if ctx.watermark == MAX_TIME == window.max_timestamp:
            # The stream has ended, and a window without an end would go on until the end of time.
            ctx.state = None
        else:
            self._fire_next(time_ms + self._interval.value, window, ctx)
        return _FIRE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        ctx.state = _earliest(ctx.merged_states)
        if ctx.state is not None:
            ctx.register_event_timer(ctx.state)

    def _fire_next(self, time_ms: int, window: Window, ctx: TriggerContext) -> None:
        ctx.state = next_ms = min(time_ms, window.max_timestamp)
        ctx.register_event_timer(next_ms)


class ContinuousProcessingTimeTrigger(Trigger):
    """Fires at each multiple of `interval` that the clock passes; never at a watermark.

    In windows by processing time it fires at the end of the window as well.
    """

    state_type = int
    can_merge = True

    def __init__(self, interval: Duration | Parameter) -> None:
        self._interval = Parameter.duration(interval, "the interval of a ContinuousProcessingTimeTrigger")

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if ctx.state is None:
            now, interval = ctx.processing_time, self._interval.value
            self._fire_next(_multiple_towards_1970(now, interval) + interval, now, window, ctx)
        return _CONTINUE

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if ctx.state != time_ms:
            return _CONTINUE
        self._fire_next(time_ms + self._interval.value, time_ms + 1, window, ctx)
        return _FIRE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        ctx.state = _earliest(ctx.merged_states)
        if ctx.state is not None:
            ctx.register_processing_timer(ctx.state)

    def _fire_next(self, time_ms: int, now_ms: int, window: Window, ctx: TriggerContext) -> None:
        # The end of a window by event time may lie in the past of the clock, where it bounds nothing.
        if window.max_timestamp >= now_ms:
            time_ms = min(time_ms, window.max_timestamp)
        ctx.state = time_ms
        ctx.register_processing_timer(time_ms)


class PurgingTrigger(Trigger):
    """Does what another trigger does, and drops the contents of the window whenever that one fires."""

    def __init__(self, of: Trigger) -> None:
        if not isinstance(of, Trigger):
            raise JobDefinitionError(f"A PurgingTrigger is made of a trigger, not of {of!r}.")
        self.inner = of
        self.state_type = of.state_type  # type: ignore[misc]  # that of the other one
        self.can_merge = of.can_merge

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        result = self.inner.on_record(record, time_ms, window, ctx)
        return _FIRE_AND_PURGE if result is _FIRE else result

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        result = self.inner.on_event_time(time_ms, window, ctx)
        return _FIRE_AND_PURGE if result is _FIRE else result

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        result = self.inner.on_processing_time(time_ms, window, ctx)
        return _FIRE_AND_PURGE if result is _FIRE else result

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        self.inner.on_merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.inner.clear(window, ctx)


class NeverTrigger(Trigger):
    """Never fires; the trigger of `GlobalWindows` where no other is given."""

    can_merge = True

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        pass


def _multiple_towards_1970(time_ms: int, interval_ms: int) -> int:
    """The multiple of an interval at or next to a time; behind it for times before 1970, as in Flink."""
    return time_ms - (time_ms % interval_ms if time_ms >= 0 else -(-time_ms % interval_ms))


def _earliest(times_ms: tuple[int | None, ...]) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
