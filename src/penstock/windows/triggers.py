"""Window triggers: decide when a window emits, and when its contents are dropped."""
# Overriding methods are documented in the base class.
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
"""As the `state_type` of a trigger: its state is a record of the stream."""


class TriggerResult(enum.Enum):
    """The decision of a trigger: nothing, emit the results, drop the contents, or emit and then drop."""

    CONTINUE = "continue"
    FIRE = "fire"
    PURGE = "purge"
    FIRE_AND_PURGE = "fire and purge"


# Access to a global is faster than to a member of an enumeration.
_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE
_FIRE_AND_PURGE: Final = TriggerResult.FIRE_AND_PURGE


class Trigger:
    """A window trigger: decides when a window fires. Derive your own from it.

    A trigger is called for each record put into a window, and for each timer that it has registered for the window with
    `ctx`. One trigger object serves all windows, so it keeps the state of a window in `ctx.state`, of the type
    `state_type`. Times are in milliseconds since 1970.

    >>> class OnAlarm(Trigger):
    ...     def on_record(self, record, time_ms, window, ctx):
    ...         return TriggerResult.FIRE if record == "alarm" else TriggerResult.CONTINUE

    Attributes:
        state_type: the type of `ctx.state`: a type or a schema as for `ValueState`, or "record" for a record of the
            stream; None if the trigger has no state.
        can_merge: whether the trigger supports windows that merge (sessions). It must then override `on_merge`.

    """

    state_type: ClassVar[Any] = None
    can_merge: bool = False

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide after a record was put into the window; `time_ms` is the record's own time."""
        raise NotImplementedError

    def on_event_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide when an event-time timer is due; also called when the window is cleaned up at that time."""
        return _CONTINUE

    def on_processing_time(self, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide when a processing-time timer is due; also called when the window is cleaned up at that time."""
        return _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        """Handle a merge of windows into `window`: set its state from `ctx.merged_states`, and register its timers."""
        raise NotImplementedError

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Handle the removal of a window, or its merge into another. Its timers and state are removed automatically."""


class EventTimeTrigger(Trigger):
    """A trigger that fires when the watermark passes the end of the window, and then at each record not too late.

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
        # If the watermark has passed, the record that merged the windows fires, and a timer would fire once more.
        if window.max_timestamp > ctx.watermark:
            ctx.register_event_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """A trigger that fires when the clock passes the end of the window."""

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
    """A trigger that fires at every `count`-th record of a window, but not at its end: a smaller rest is never emitted.

    The contents are kept, so the second firing includes the records of the first; `PurgingTrigger` drops them.
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
    """A trigger that fires at a record that differs by more than `threshold` from the one of the last firing.

    The first comparison is with the first record. Cannot be used for sessions, and does not fire at the end of the
    window. Purging does not drop the record to compare with.

    Args:
        threshold: the difference above which it fires.
        delta: a function of the earlier and the later record that returns their difference.

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
    """A trigger that fires at each multiple of `interval` that the watermark passes, and at the end of the window.

    It fires even if the contents are unchanged, and once for each interval that a watermark skips. The first firing is
    at the next multiple after the window's first record. After the end, each record that is not too late fires.
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
            # The stream has ended, and a window without an end would keep firing until the end of time.
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
    """A trigger that fires at each multiple of `interval` that the clock passes, never at a watermark.

    In processing-time windows it also fires at the end of the window.
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
        # The end of an event-time window may already have passed on the clock; it is then not a bound.
        if window.max_timestamp >= now_ms:
            time_ms = min(time_ms, window.max_timestamp)
        ctx.state = time_ms
        ctx.register_processing_timer(time_ms)


class PurgingTrigger(Trigger):
    """A trigger that fires like another one, and drops the contents of the window whenever it fires."""

    def __init__(self, of: Trigger) -> None:
        if not isinstance(of, Trigger):
            raise JobDefinitionError(f"A PurgingTrigger takes a trigger, not {of!r}.")
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
    """A trigger that never fires; the default of `GlobalWindows`."""

    can_merge = True

    def on_record(self, record: Any, time_ms: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        pass


def _multiple_towards_1970(time_ms: int, interval_ms: int) -> int:
    """Return the multiple of an interval at or before a time, or at or after it for times before 1970, as in Flink."""
    return time_ms - (time_ms % interval_ms if time_ms >= 0 else -(-time_ms % interval_ms))


def _earliest(times_ms: tuple[int | None, ...]) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
