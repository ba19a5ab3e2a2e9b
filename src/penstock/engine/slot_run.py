"""Slot runs: a step on everything that one task has for it in one micro-batch. Commands first, then the key groups."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.base.instants import milliseconds_of
from penstock.control.admitted_commands import AdmittedCommand, SlotCommand
from penstock.control.commands import COMMANDS
from penstock.control.receipts import Report, StepTime, Trace
from penstock.engine.actions import StandingCommands, standing_applier
from penstock.engine.command_execution import CommandExecution, KeptOnce
from penstock.engine.function_instance import Clock, FunctionInstance, SlotContext
from penstock.engine.group_emissions import DueTimers
from penstock.engine.group_run import GroupRun
from penstock.engine.slot import (
    REGISTER,
    SHARED,
    STANDING,
    UNIONS,
    Slot,
    SlotHeader,
    dead_letter_of,
    register_of,
    report_of,
    store_register,
    whole_part,
)
from penstock.engine.step import MAIN, StepCore, StepResult, no_cyclic_collection
from penstock.engine.window_columns import WindowColumnsRun, runs_as_columns
from penstock.engine.window_run import WindowRun
from penstock.errors import UnstorableValueError
from penstock.operators.error_reasons import reason_of
from penstock.operators.functions import Context, PartContext
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.operators.watermarks import END_MS, EventClock, InputWatermarkRule, Progress, WatermarkUpdate
from penstock.state.group_table import GroupTable
from penstock.state.shared import BroadcastState, SharedStates
from penstock.state.slot_tables import SlotTables
from penstock.state.timeline import Domain
from penstock.state.unions import Unions
from penstock.state.values import BoundValueState, CheckedValueState

__all__ = ["BatchTime", "SlotRun"]


_MOST_SETTING_BYTES: Final = 4096
ApplyStanding: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class BatchTime:
    """When a step runs: the time of the micro-batch, how its inputs count for event time, and what they tell."""

    now: dt.datetime
    watermark_rules: Sequence[InputWatermarkRule] = ()
    updates: Sequence[WatermarkUpdate] = ()


class SlotRun:
    """A step in one slot, in one micro-batch. `tables` holds the states of its key groups, and is changed.

    `changed_shared` tells whether settings or broadcast states were changed, `records` counts the data records that
    were processed, and `counts` those of a step with windows by what became of
    them; `dead_letters` has what went wrong before the first of them.
    """

    def __init__(self, core: StepCore, slot: Slot, tables: SlotTables, moment: BatchTime) -> None:
        self._core: Final = core
        self._slot: Final = slot
        self._tables: Final = tables
        self._now: Final = moment.now
        self._moment: Final = moment
        now_ms = milliseconds_of(moment.now)
        self.header = SlotHeader.of(tables.header)
        progress = self.header.progress or Progress()
        has_watermarks = bool(moment.watermark_rules)
        watermark_ms = progress.watermark_ms
        self._clock = Clock(now_ms, tables.clock_ms, watermark_ms, watermark_ms, has_watermarks)
        self.event_clock: EventClock | None = None
        self._shared = tables.parts.made(SHARED, self._shared_of)
        if not self._shared.is_of(core.shared):
            self._read_shared()
        self._unions: Final = Unions(tables.parts.made(UNIONS, whole_part), core.specs)
        self._standing = tables.parts.made(STANDING, _standing_of)
        self._plain: FunctionInstance | None = None
        self._letters: list[DeadLetter] = []
        self._standing_applier: tuple[FunctionInstance | None, ApplyStanding | None] = (None, None)
        self._traced: list[AdmittedCommand] = []
        self._due: dict[int, DueTimers] = {}
        self._begun: set[int] = set()
        self.records = 0
        self.changed_shared = False
        self.counts: Counter[str] = Counter()
        self._runs: Final = self._kind_of_runs()
        self.dead_letters = self._cleared_cache()

    def _kind_of_runs(self) -> type[GroupRun]:
        """How the step is run in each key group."""
        if self._core.windows is None:
            return GroupRun
        # Of which version a row is, is told one by one.
        in_columns = runs_as_columns(self._core.windows) and not self._core.stamped
        return WindowColumnsRun if in_columns else WindowRun

    def _shared_of(self, pieces: list[bytes]) -> SharedStates:
        return SharedStates(self._core.shared, whole_part(pieces))

    def _read_shared(self) -> None:
        """Take the shared states as they are stored, whatever the worker has kept."""
        parts = self._tables.parts
        self._shared = self._shared_of(parts.get(SHARED))
        parts.keep(SHARED, self._shared)

    def _around(self, shared: SharedStates) -> SlotContext:
        return SlotContext(shared, self._unions, self._clock)

    def _cleared_cache(self) -> list[DeadLetter]:
        """Clear the function's cache, should a command have asked for that while this worker did not see the slot."""
        try:
            self._core.catch_up_cache(self.header.cache_generation)
        except Exception as e:  # user code may raise anything
            return [DeadLetter(reason_of(e), COMMANDS, self._core.step, "clear-cache", 0, b"")]
        return []

    def steer(self, commands: Sequence[SlotCommand], blocks: Sequence[Block]) -> CommandExecution:
        """Carry out commands and let broadcast control records take effect, for all key groups of the slot.

        Gives the steering that is done, which has the result and the reports.
        """
        ordered = sorted(blocks, key=lambda block: block.order)
        with no_cyclic_collection():
            try:
                execution = self._steered(commands, ordered, BoundValueState)
            except UnstorableValueError:
                # The first form may have changed them.
                self._read_shared()
                execution = self._steered(commands, ordered, CheckedValueState)
        for group, changes in execution.changes.items():
            self._tables.put(group, changes)
        self._take_over(execution)
        self._traced = execution.traced
        return execution

    def _take_over(self, execution: CommandExecution) -> None:
        """Go on with what the slot keeps once, and store what has changed of it."""
        parts = self._tables.parts
        self.header, self._standing = execution.kept.header, execution.kept.standing
        self._plain = None
        store_register(self._tables, execution.kept.register)
        if self._shared.changed:
            self.changed_shared = True
            parts.put(SHARED, self._shared.dump())
            self._shared.changed = False
        if self._standing.changed:
            parts.put(STANDING, self._standing.dump())
            self._standing.changed = False
            parts.keep(STANDING, self._standing)

    def _steered(
        self,
        commands: Sequence[SlotCommand],
        blocks: Sequence[Block],
        kind: type[BoundValueState],
    ) -> CommandExecution:
        register = self._tables.parts.made(REGISTER, register_of)
        register.take_back()
        kept = KeptOnce(SlotHeader.of(self._tables.header), register, self._standing.copy())
        around = self._around(self._shared)
        execution = CommandExecution(
            FunctionInstance(self._core, around, kind), kept, self._slot, self._tables.table
        )
        execution.expect(commands)
        for admitted in commands:
            execution.command(admitted, self._now)
        for block in blocks:
            execution.broadcast(block)
        execution.finish()
        return execution

    def begin_data(self) -> None:
        """Take note of the watermark updates, and look which keys have timers that are due; `process` calls them."""
        clock = self._clock
        # Windows are done at the end also where there is no event time.
        ends = self._core.windows is not None and any(update.ends for update in self._moment.updates)
        if self._moment.watermark_rules or ends:
            self.event_clock = EventClock(
                self._moment.watermark_rules,
                self.header.progress or Progress(),
                self._moment.updates,
                clock.now_ms,
                paused=self.header.paused,
            )
            if self._moment.watermark_rules:
                self.header.progress = self.event_clock.progress
            self._clock = clock._replace(after_ms=self.event_clock.after_ms, ends=self.event_clock.ends)
        if self._core.timers is None or self.header.paused:
            return
        for group, table in self._tables.tables.items():
            by_processing = table.timeline("processing", self._core.timers).take_due(clock.now_ms * 1000)
            by_event = self._due_by_event(table)
            if len(by_processing) or len(by_event):
                self._due[group] = DueTimers(by_processing, by_event)

    def _due_by_event(self, table: GroupTable) -> pa.Array:
        if self.event_clock is None or not self.event_clock.moved or self._clock.after_ms is None:
            return pa.array([], self._core.key_type)
        assert self._core.timers is not None
        found = table.timeline("event", self._core.timers).take_due(self._clock.after_us)
        if not self._clock.ends or self._core.windows is None or not self._core.windows.is_by_clock:
            return found
        by_clock = table.timeline("processing", self._core.timers).take_due(END_MS)
        return pa.concat_arrays([found, by_clock])

    @property
    def due_groups(self) -> list[int]:
        """The key groups with keys that have timers that are due, and were not processed."""
        return sorted(self._due)

    @property
    def next_timer_ms(self) -> int | None:
        """When the slot must run again, in milliseconds since 1970: for its timers, or since an input falls idle."""
        found: list[int] = []
        if self._core.timers is not None and not self.header.paused:
            found = self._earliest_ms("processing")
            if any(rule.by_arrival for rule in self._moment.watermark_rules):
                # The watermark is one millisecond behind the clock.
                found += [at + 1 for at in self._earliest_ms("event")]
        if self.event_clock is not None and self.event_clock.next_idle_ms is not None:
            found.append(self.event_clock.next_idle_ms)
        return min(found, default=None)

    def _earliest_ms(self, domain: Domain) -> list[int]:
        column = self._core.timers
        if column is None:
            return []
        timelines = [table.timeline(domain, column).earliest_us for table in self._tables.tables.values()]
        return [-(-at // 1000) for at in timelines if at is not None]

    def process(self, key_group: int, blocks: Sequence[Block], *, more_follows: bool = False) -> StepResult:
        """Process the keyed blocks of one key group, in their own order whatever the order of the argument.

        With `more_follows` it is called again for the key group, so that time stands.
        """
        ordered = sorted(blocks, key=lambda block: block.order)
        data = len(self._core.inputs) - 1
        due = None
        if self._core.timers is not None and not self.header.paused:
            none = pa.array([], self._core.key_type)
            due = self._due.pop(key_group, DueTimers(none, none))
            if more_follows:
                self._due[key_group] = DueTimers(none, due.event)
                self._begun.add(key_group)
                due = DueTimers(due.processing, None)
            elif key_group in self._begun:
                # Earlier parts may have registered timers that are due by now.
                more = self._due_by_event(self._tables.table(key_group))
                due = DueTimers(due.processing, pa.concat_arrays([due.event, more]))
        self.records += sum(block.batch.num_rows for block in ordered if block.input == data)
        with no_cyclic_collection():
            try:
                if self._plain is None:
                    self._plain = self._bound(BoundValueState)
                result = self._processed(self._plain, key_group, ordered, due)
            except UnstorableValueError:
                # What is found when the states are stored does not say which record did it. So once more, and every
                # value is tried when it is set; that would be too slow to do always. (In the first form, a value that
                # another one replaces within the same micro-batch is never stored, and so never tried.)
                self._plain = None
                result = self._processed(self._bound(CheckedValueState), key_group, ordered, due)
        self.counts += result.counts
        if result.newest_ms is not None:
            self._tables.advance_clock(result.newest_ms)
        if result.changes is not None:
            self._tables.put(key_group, result.changes)
        return result

    def _bound(self, kind: type[BoundValueState]) -> FunctionInstance:
        """The function at work on data, for all key groups."""
        binding = FunctionInstance(self._core, self._around(self._shared), kind)
        if self._core.windows is not None:
            self._core.windows.begin(binding.shared_states, binding.states)
        return binding

    def _processed(
        self, binding: FunctionInstance, key_group: int, blocks: list[Block], due: DueTimers | None
    ) -> StepResult:
        kind = Context if self._core.has_key else PartContext
        context = kind(binding.cursor, (name for name in self._core.outputs if name != MAIN))
        run = self._runs(binding, context, key_group, self._tables.table(key_group))
        self._letters = []
        result = run.process(blocks, self._standing_applier_in(binding), due)
        result.dead_letters[:0] = self._letters
        return result

    def _standing_applier_in(self, binding: FunctionInstance) -> ApplyStanding | None:
        """What lets the standing commands take effect for a new key; made once for all key groups."""
        if binding is not self._standing_applier[0]:
            self._standing_applier = binding, standing_applier(self._standing, binding, self._standing_failed)
        return self._standing_applier[1]

    def _standing_failed(self, admitted: AdmittedCommand, error: Exception) -> None:
        self._letters.append(dead_letter_of(admitted, error, self._core.step))

    def traces(self, level: int) -> list[Report]:
        """The answers to the traces of this micro-batch, once its data is processed."""
        if not self._traced:
            return []
        settings = self._shared.in_force() if self._slot.first else None
        trace = Trace(
            self._core.step,
            level,
            self._tables.key_groups,
            self._tables.keys,
            self.header.paused,
            settings,
            self.time,
        )
        return [
            report_of(admitted, "applied", key_groups=[], keys=self._tables.keys, trace=trace)
            for admitted in self._traced
        ]

    def settings(self) -> dict[str, Any]:
        """The settings in force as plain values; of one that is large, only how large it is."""
        found = {}
        for name, value in self._shared.in_force().items():
            if isinstance(self._core.shared.get(name), BroadcastState):
                continue
            size = len(msgspec.json.encode(value))
            found[name] = value if size <= _MOST_SETTING_BYTES else f"{size:,} bytes of JSON"
        return found

    @property
    def time(self) -> StepTime | None:
        """How far event time is, where there is any, and the stream and partition or the step that hold it."""
        if self.event_clock is None or not self._moment.watermark_rules:
            return None
        watermark_ms, held = self.event_clock.progress.watermark_ms, self.event_clock.held_by
        if held is None:
            return StepTime(watermark_ms)
        kind, _, name = held[0].partition("/")
        return StepTime(watermark_ms, f"{name}/{held[1]}" if kind == "source" and held[1] else name)

    def close(self) -> None:
        """Take out some of what has expired, and put what is kept once for the slot beside the tables."""
        self._tables.sweep(self._core.expiry_clocks(self._clock.now_ms, self._tables.clock_ms))
        self._tables.put_header(self.header.dump())


def _standing_of(pieces: list[bytes]) -> StandingCommands:
    return StandingCommands.of(whole_part(pieces) or b"")
