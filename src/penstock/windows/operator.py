"""The window operator: applies the records and timers of a key to the key's windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.base.durations import Duration
from penstock.errors import JobDefinitionError
from penstock.windows.assigners import WindowAssigner
from penstock.windows.contexts import Clock, TriggerContext, WindowContext
from penstock.windows.emissions import Emission, Emitted, LateRecord, SideRecord
from penstock.windows.evictors import Evictor
from penstock.windows.panes import OpenWindows, Pane, TimerKind
from penstock.windows.triggers import Trigger, TriggerResult
from penstock.windows.window import MAX_TIME, MIN_TIME, Window
from penstock.windows.window_functions import WindowContents
from penstock.windows.window_parameters import Parameter

__all__ = ["WindowOperator", "WindowSpec"]

_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE
_PURGE: Final = TriggerResult.PURGE
_FIRE_AND_PURGE: Final = TriggerResult.FIRE_AND_PURGE


@dataclass(frozen=True)
class WindowSpec:
    """The specification of windows.

    Attributes:
        assigner: chooses the windows of a record.
        contents: accumulates the records of a window, and computes its results.
        trigger: decides when a window fires; defaults to the assigner's trigger.
        evictor: drops records before or after a firing; defaults to the assigner's evictor, if any.
        lateness: how long after its end an event-time window still accepts records.
        late_output: whether late records are emitted, instead of dropped and counted.

    """

    assigner: WindowAssigner
    contents: WindowContents
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    lateness: Duration | Parameter = "0s"
    late_output: bool = False

    def __post_init__(self) -> None:
        for name, kind, optional in (
            ("assigner", WindowAssigner, False),
            ("trigger", Trigger, True),
            ("evictor", Evictor, True),
        ):
            given = getattr(self, name)
            if inspect.isclass(given):
                raise JobDefinitionError(
                    f"The {name} of a window is the class {given.__name__}; give an instance: {given.__name__}(...)."
                )
            if not isinstance(given, kind) and not (optional and given is None):
                raise JobDefinitionError(
                    f"The {name} of a window is {given!r}, which is not of type {kind.__name__}."
                )


class WindowOperator:
    """The windows of one step, for any number of keys. Each call receives the open windows of one key.

    A call appends its output to `emitted`, which the caller empties. A call that raises has undone its changes, but a
    timer that raises is used up. The caller commits the key's windows after each call.

    Attributes:
        emitted: the output of the windows, and the number of records by outcome.
        trigger: the trigger of the windows.
        evictor: their evictor, or None.
        folds: whether records are folded into one value as they arrive; else all of them are kept.
        lateness: how long after its end an event-time window still accepts records.
        check: is called with the windows of a key after user code has run, and raises, as if that code did, when they
            cannot be stored. None if that is checked later.

    Raises JobDefinitionError for parts that do not fit together.

    """

    def __init__(self, spec: WindowSpec) -> None:
        self.emitted = Emitted()
        self.check: Callable[[OpenWindows], None] | None = None
        self.trigger = spec.trigger or spec.assigner.default_trigger()
        self.evictor = spec.evictor or spec.assigner.default_evictor()
        self._assigner = spec.assigner
        self._contents = spec.contents
        self.folds = spec.contents.folds and self.evictor is None
        self._event_time = spec.assigner.is_event_time
        self._clock_of_end: TimerKind = "event_timers" if self._event_time else "processing_timers"
        self._merges = spec.assigner.merges
        # Processing-time windows have no lateness: their clock does not wait for records.
        self.lateness = Parameter.duration(
            spec.lateness if self._event_time else "0s", "the allowed lateness of a window", min_ms=0
        )
        self._late_output = spec.late_output
        if self._merges and not self.trigger.can_merge:
            raise JobDefinitionError(
                f"{type(self.trigger).__name__} cannot be the trigger of windows that merge, such as "
                f"{type(spec.assigner).__name__}. Use a trigger with can_merge = True."
            )
        self._contents.check(merges=self._merges, folds=self.folds)
        self._trigger_ctx = TriggerContext(keeps_state=self.trigger.state_type is not None)
        function = spec.contents.function
        self._function_ctx = WindowContext(
            {} if function is None else function.side_outputs,
            keeps_state=function is not None and function.window_state is not None,
        )

    def process(self, windows: OpenWindows, key: Any, time_ms: int, record: Any, clock: Clock) -> None:
        """Put a record into its windows, some of which may fire.

        Args:
            windows: the open windows of the record's key.
            key: the key.
            time_ms: the record's event time in milliseconds, or its arrival time if it has none.
            record: the record.
            clock: watermark and processing time, which do not change during the call.

        """
        mark = len(windows.journal)
        try:
            accepted = self._process(windows, key, time_ms, record, clock)
            if self.check is not None:
                self.check(windows)
        except BaseException:
            windows.roll_back(mark)
            raise
        if accepted:
            self.emitted.in_windows += 1
        elif accepted is None and not self._is_behind(time_ms, clock):
            self.emitted.without_window += 1
        elif self._late_output:
            self.emitted.late.append(LateRecord(key, time_ms, record))
            self.emitted.late_records += 1
        else:
            self.emitted.dropped_late += 1

    def fire_timer(self, kind: TimerKind, windows: OpenWindows, key: Any, clock: Clock) -> None:
        """Fire the first timer of a key by one clock. It must be due: not later than the watermark, or the clock.

        Only fire processing-time timers that are earlier than the clock: a window that ends at that time is closed when
        its timer fires, and a record of the same millisecond would open it again.
        """
        time_ms, window = windows.spend_timer(kind)
        pane = windows.panes.get(window)
        if pane is None:
            return
        if kind == "event_timers":
            at_ms = None if time_ms == MAX_TIME else time_ms
            due = _Due(time_ms, window, pane, self.trigger.on_event_time, self._event_time, at_ms)
        else:
            due = _Due(time_ms, window, pane, self.trigger.on_processing_time, not self._event_time)
        self._on_timer(windows, key, due, clock)

    # --- a record ---

    def _process(
        self, windows: OpenWindows, key: Any, time_ms: int, record: Any, clock: Clock
    ) -> bool | None:
        """Return whether any window accepted the record; None if there is no window for it."""
        event_time, trigger, journal = self._event_time, self.trigger, windows.journal
        assigner = self._assigner
        at_ms = time_ms if event_time else clock.processing_ms
        assigned = assigner.assign(record, at_ms)
        if windows.fitting != assigner.version:
            assigned = self._assign_with_others(windows, assigned, at_ms)
        # In processing time, no record is late.
        late_ms = clock.watermark_ms if event_time else MIN_TIME
        ctx, panes = self._trigger_ctx, windows.panes
        ctx.enter(windows, clock)
        accepted: bool | None = None
        for assigned_window in assigned:
            window = assigned_window
            if self._merges:
                window = self._merge(windows, window, late_ms)
            cleanup_ms = self._cleanup_ms(window)
            if cleanup_ms <= late_ms:
                accepted = accepted or False
                continue
            accepted = True
            pane = panes.get(window)
            if pane is None:
                pane = windows.open(window)
            if pane.cleanup_ms != cleanup_ms:
                self._clean_up_at(windows, window, pane, cleanup_ms)
            contents = pane.contents
            if self.folds:
                journal.append((pane.restore, contents, pane.count))
                pane.contents = self._contents.add(contents, record)
            elif contents is None:
                journal.append((pane.restore, None, 0))
                pane.contents = [(time_ms, record)]
            else:
                contents.append((time_ms, record))
                journal.append((pane.drop_last,))
            pane.count += 1
            ctx.turn_to(window, pane)
            result = trigger.on_record(record, time_ms, window, ctx)
            if result is not _CONTINUE:
                if self._fires(result):
                    self._fire(windows, key, window, pane, clock, time_ms)
                if result is not _FIRE:
                    self._purge(windows, pane)
                self._drop_idle(windows, window, pane)
        return accepted

    def _assign_with_others(
        self, windows: OpenWindows, assigned: Sequence[Window], at_ms: int
    ) -> Sequence[Window]:
        """Return the windows of a record when windows with other parameters may be open."""
        assigner = self._assigner
        others = [window for window in windows.panes if not assigner.fits(window)]
        if others:
            return assigner.assign_with_others(assigned, others, at_ms)
        windows.fitting = assigner.version
        return assigned

    def _merge(self, windows: OpenWindows, window: Window, late_ms: int) -> Window:
        """Merge a window with the open ones that it touches, and return the result, which may be new."""
        touching = windows.touching(window)
        if not touching:
            return window
        first, last = touching[0], touching[-1]
        if first.start <= window.start and window.end <= first.end:
            return first
        merged = Window(min(window.start, first.start), max(window.end, last.end))
        cleanup_ms = self._cleanup_ms(merged)
        if cleanup_ms <= late_ms:
            return merged
        panes = [windows.panes[one] for one in touching]
        pane = windows.open(merged)
        self._clean_up_at(windows, merged, pane, cleanup_ms)
        self._gather(windows, pane, panes)
        trigger, ctx = self.trigger, self._trigger_ctx
        ctx.merged_states = tuple(one.trigger_state for one in panes)
        ctx.turn_to(merged, pane)
        trigger.on_merge(merged, ctx)
        for one, its_pane in zip(touching, panes, strict=True):
            ctx.turn_to(one, its_pane)
            trigger.clear(one, ctx)
            windows.close(one)
        return merged

    def _gather(self, windows: OpenWindows, pane: Pane, merged: list[Pane]) -> None:
        """Combine the contents of windows, the earliest first, into a new one."""
        for one in merged:
            if one.contents is None:
                continue
            if pane.contents is None:
                pane.contents = one.contents
            elif self.folds:
                pane.contents = self._contents.merge(pane.contents, one.contents)
            else:
                # The list is that of the first window, which a rollback must restore.
                held = pane.contents
                windows.journal.append((held.__delitem__, slice(len(held), None)))
                held.extend(one.contents)
            pane.count += one.count

    # --- a timer ---

    def _on_timer(self, windows: OpenWindows, key: Any, due: _Due, clock: Clock) -> None:
        """Call the trigger, and clean up the window when it is time. An exception is raised after that."""
        window, pane = due.window, due.pane
        failed: Exception | None = None
        result = _CONTINUE
        mark = len(windows.journal)
        ctx = self._trigger_ctx
        ctx.enter(windows, clock)
        ctx.turn_to(window, pane)
        try:
            result = self._ask(windows, due, ctx)
            fires = result is not _CONTINUE and self._fires(result)
            # The trigger's changes are kept even if the function raises, so that it continues to fire.
            mark = len(windows.journal)
            if fires:
                self._fire(windows, key, window, pane, clock, due.at_ms)
                if self.check is not None:
                    self.check(windows)
        except Exception as e:
            windows.roll_back(mark)
            failed = e
        if result is _FIRE_AND_PURGE or result is _PURGE:
            self._purge(windows, pane)
        ctx.turn_to(window, pane)
        if due.cleans and due.time_ms >= self._cleanup_ms(window):
            self._clean_up(windows, window)
        elif due.time_ms == pane.cleanup_ms and due.cleans:
            # The lateness has grown since the window was opened.
            self._clean_up_at(windows, window, pane, self._cleanup_ms(window))
        else:
            self._drop_idle(windows, window, pane)
        if failed is not None:
            raise failed

    def _ask(self, windows: OpenWindows, due: _Due, ctx: TriggerContext) -> TriggerResult:
        result = due.ask(due.time_ms, due.window, ctx)
        if self.check is not None:
            self.check(windows)
        return result

    # --- records and timers ---

    def _fires(self, result: TriggerResult) -> bool:
        """Return whether a result fires the window. Raises TypeError if it is not a TriggerResult."""
        if result is _FIRE or result is _FIRE_AND_PURGE:
            return True
        if result is _PURGE or result is _CONTINUE:
            return False
        raise TypeError(f"{type(self.trigger).__name__} returned {result!r}, which is not a TriggerResult")

    def _fire(
        self, windows: OpenWindows, key: Any, window: Window, pane: Pane, clock: Clock, at_ms: int | None
    ) -> None:
        """Emit the results of the contents, if any. `at_ms` is the event time of the record or timer that fires."""
        if pane.contents is None:
            return
        ctx, emitted, journal = self._function_ctx, self.emitted, windows.journal
        ctx.enter(windows, clock)
        ctx.turn_to(window, pane)
        ctx.emitted_aside = []
        if self.evictor is not None:
            results = self._evict(windows, key, pane, self.evictor)
        elif self.folds:
            results = self._contents.results(key, pane.contents, ctx)
        else:
            results = self._contents.results(key, [record for _, record in pane.contents], ctx)
        timestamp_ms = at_ms if window.end == MAX_TIME else window.max_timestamp
        emitted.panes.append(Emission(key, window, results, timestamp_ms))
        journal.append((emitted.panes.pop,))
        for name, record in ctx.emitted_aside:
            emitted.side_outputs.append(SideRecord(key, window, name, record, timestamp_ms))
            journal.append((emitted.side_outputs.pop,))

    def _evict(self, windows: OpenWindows, key: Any, pane: Pane, evictor: Evictor) -> list[Any]:
        """Evict records before and after computing the results, and return these."""
        ctx, contents = self._function_ctx, self._contents
        elements = list(pane.contents)
        kept = list(evictor.evict_before(elements, len(elements), ctx.window, ctx))
        held = contents.fold([record for _, record in kept])
        results = contents.results(key, held, ctx)
        kept = list(evictor.evict_after(kept, len(kept), ctx.window, ctx))
        windows.journal.append((pane.restore, pane.contents, pane.count))
        pane.restore(kept or None, len(kept))
        return results

    def _purge(self, windows: OpenWindows, pane: Pane) -> None:
        if pane.contents is not None:
            windows.journal.append((pane.restore, pane.contents, pane.count))
            pane.restore(None, 0)

    def _drop_idle(self, windows: OpenWindows, window: Window, pane: Pane) -> None:
        """Close a window that is never cleaned up once it is empty."""
        if pane.cleanup_ms == MAX_TIME and pane.contents is None and not self._merges and pane.is_empty():
            windows.close(window)

    # --- cleaning up ---

    def _cleanup_ms(self, window: Window) -> int:
        """Return when a window is cleaned up, in its kind of time; `MAX_TIME` if never."""
        cleanup_ms: int = window.end - 1 + self.lateness.value
        # The last millisecond of the global window is its end, so its sum is one less than MAX_TIME.
        return cleanup_ms if cleanup_ms < MAX_TIME - 1 else MAX_TIME

    def _clean_up_at(self, windows: OpenWindows, window: Window, pane: Pane, cleanup_ms: int) -> None:
        """Schedule the cleanup of a window. An earlier cleanup timer stays, since the trigger may use it too."""
        windows.journal.append((setattr, pane, "cleanup_ms", pane.cleanup_ms))
        pane.cleanup_ms = cleanup_ms
        if cleanup_ms == MAX_TIME:
            return
        windows.add_timer(self._clock_of_end, cleanup_ms, window, pane)

    def _clean_up(self, windows: OpenWindows, window: Window) -> None:
        try:
            self.trigger.clear(window, self._trigger_ctx)
        finally:
            windows.close(window)

    def _is_behind(self, time_ms: int, clock: Clock) -> bool:
        """Return whether a record without a window is too late for any."""
        until_ms: int = min(time_ms + self.lateness.value, MAX_TIME)
        return self._event_time and until_ms <= clock.watermark_ms


class _Due(NamedTuple):
    """A due timer: the trigger's method to call, whether it may clean up the window, and the event time of results."""

    time_ms: int
    window: Window
    pane: Pane
    ask: Callable[[int, Window, TriggerContext], TriggerResult]
    cleans: bool
    at_ms: int | None = None
