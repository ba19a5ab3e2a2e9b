"""Slot runs: run a step on all input of one task in one micro-batch: first the commands, then the key groups."""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.base.garbage import no_cyclic_collection
from penstock.base.instants import milliseconds_of
from penstock.control.admitted_commands import AdmittedCommand, SlotCommand
from penstock.control.commands import COMMANDS
from penstock.control.receipts import Report, StepTime, Trace
from penstock.engine.actions import StandingCommands, standing_applier
from penstock.engine.command_execution import CommandExecution, KeptOnce
from penstock.engine.function_instance import Clock, FunctionInstance, SlotContext
from penstock.engine.group_emissions import DueTimers
from penstock.engine.group_run import GroupRun
from penstock.engine.join_run import JoinRun
from penstock.engine.lookup_run import LookupRun
from penstock.engine.model_commands import describe_versions
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
from penstock.engine.step import MAIN, StepCore, StepResult
from penstock.engine.table_run import TableRun
from penstock.engine.window_columns import WindowColumnsRun, runs_as_columns
from penstock.engine.window_run import WindowRun
from penstock.errors import UnstorableValueError
from penstock.joins.join_step import JoinStep
from penstock.models.kept_answers import KeptAnswers, SlotAnswers
from penstock.models.tallies import VersionTally, add_tallies
from penstock.operators.error_reasons import reason_of
from penstock.operators.functions import Context, PartContext
from penstock.operators.record_blocks import Block, DeadLetter
from penstock.operators.watermarks import END_MS, EventClock, InputWatermarkRule, Progress, WatermarkUpdate
from penstock.operators.window_step import WindowStep
from penstock.state.group_state import GroupState
from penstock.state.group_table import GroupTable
from penstock.state.merged_table import MergedTable, StateTable
from penstock.state.open_values import OpenValues
from penstock.state.row_cache import GroupsOf
from penstock.state.shared import BroadcastState, SharedStates
from penstock.state.slot_parts import PartChange
from penstock.state.slot_tables import SlotTables
from penstock.state.timeline import Domain
from penstock.state.unions import Unions

__all__ = ["BatchTime", "SlotRun"]


_MAX_SETTING_BYTES: Final = 4096
ApplyStanding: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class BatchTime:
    """The times of a run: that of the micro-batch, and the watermark rules and watermark updates of the inputs."""

    now: dt.datetime
    watermark_rules: Sequence[InputWatermarkRule] = ()
    updates: Sequence[WatermarkUpdate] = ()


class SlotRun:
    """The run of a step in one slot and one micro-batch. It changes `tables`, the states of the key groups.

    With `groups_of`, which returns the key groups of keys, all of them are processed as one, under any key group.
    `changed_shared` is whether settings or broadcast states changed. `records` is the number of processed data records,
    and `counts` has their number by outcome in a step with windows. `answers` has the answers that groups of models and
    lookups took; by default none are kept. `dead_letters` has the failures before the first record.
    """

    def __init__(
        self,
        core: StepCore,
        slot: Slot,
        tables: SlotTables,
        moment: BatchTime,
        groups_of: GroupsOf | None = None,
        answers: SlotAnswers | None = None,
    ) -> None:
        self._core: Final = core
        self._groups_of: Final = groups_of
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
        self._shared = tables.parts.load(SHARED, self._shared_of)
        if not self._shared.is_of(core.shared):
            self._read_shared()
        self._unions: Final = Unions(tables.parts.load(UNIONS, whole_part), core.specs)
        self._standing = tables.parts.load(STANDING, _standing_of)
        self._plain: FunctionInstance | None = None
        if answers is None:
            answers = SlotAnswers(None, core.step, slot.key_groups)
        self.answers: Final[KeptAnswers] = answers.at(now_ms)
        self._instances: Final[list[FunctionInstance]] = []
        self._letters: list[DeadLetter] = []
        self._standing_applier: tuple[FunctionInstance | None, ApplyStanding | None] = (None, None)
        self._traced: list[AdmittedCommand] = []
        self._due: dict[int, DueTimers] = {}
        self._begun: set[int] = set()
        self.records = 0
        self.changed_shared = False
        self.counts: Counter[str] = Counter()
        self._run_type: Final = self._choose_run_type()
        self.dead_letters = self._catch_up_cache()

    @property
    def _timed(self) -> WindowStep | JoinStep | None:
        """The windows or the join of the step, for which time ends."""
        return self._core.windows or self._core.join

    def _choose_run_type(self) -> type[GroupRun]:
        """Return the class that runs the step in each key group."""
        if self._core.join is not None:
            return JoinRun
        if self._core.table is not None:
            return TableRun
        if self._core.lookup is not None:
            return LookupRun
        if self._core.windows is None:
            return GroupRun
        # Control versions are only tracked record by record.
        in_columns = runs_as_columns(self._core.windows) and not self._core.stamped
        return WindowColumnsRun if in_columns else WindowRun

    def _shared_of(self, pieces: list[bytes]) -> SharedStates:
        return SharedStates(self._core.shared, whole_part(pieces))

    def _read_shared(self) -> None:
        """Read the stored shared states, ignoring those cached in the worker."""
        parts = self._tables.parts
        self._shared = self._shared_of(parts.get(SHARED))
        parts.keep(SHARED, self._shared)

    def _take_back_shared(self) -> None:
        """Undo the changes of the first attempt in the shared states."""
        if self._tables.parts.has_changed(SHARED):
            # Earlier rounds have changed them since they were stored.
            self._shared.take_back()
        else:
            # Exact, even in the order of keys that were removed.
            self._read_shared()

    def _slot_context(self, shared: SharedStates) -> SlotContext:
        return SlotContext(shared, self._unions, self._clock, self._slot.key_groups, self.answers)

    def _catch_up_cache(self) -> list[DeadLetter]:
        """Clear the function's cache if a command requested it while this worker did not run the slot."""
        try:
            self._core.catch_up_cache(self.header.cache_generation)
        except Exception as e:  # user code may raise anything
            return [DeadLetter(reason_of(e), COMMANDS, self._core.step, "clear-cache", 0, b"")]
        return []

    def steer(self, commands: Sequence[SlotCommand], blocks: Sequence[Block]) -> CommandExecution:
        """Carry out commands and apply broadcast control records, for all key groups of the slot.

        Returns the finished execution, with the result and the reports.
        """
        self._tables.settle()
        ordered = sorted(blocks, key=lambda block: block.order)
        self._shared.begin()
        with no_cyclic_collection():
            try:
                execution = self._execute(commands, ordered, checks_values=False)
            except UnstorableValueError:
                self._take_back_shared()
                execution = self._execute(commands, ordered, checks_values=True)
        for group, changes in execution.changes.items():
            self._tables.put(group, changes)
        self._take_over(execution)
        self._traced = execution.traced
        return execution

    def _take_over(self, execution: CommandExecution) -> None:
        """Adopt the state that the slot keeps once, and store its changes."""
        parts = self._tables.parts
        self.header, self._standing = execution.kept.header, execution.kept.standing
        self._plain = None
        store_register(self._tables, execution.kept.register)
        if self._shared.changed:
            self.changed_shared = True
            parts.change(SHARED, functools.partial(_dump_part, self._shared))
            self._shared.changed = False
        if self._standing.changed:
            parts.change(STANDING, functools.partial(_dump_part, self._standing))
            self._standing.changed = False
            parts.keep(STANDING, self._standing)

    def _execute(
        self,
        commands: Sequence[SlotCommand],
        blocks: Sequence[Block],
        *,
        checks_values: bool,
    ) -> CommandExecution:
        register = self._tables.parts.load(REGISTER, register_of)
        register.take_back()
        kept = KeptOnce(SlotHeader.of(self._tables.header), register, self._standing.copy())
        context = self._slot_context(self._shared)
        execution = CommandExecution(
            FunctionInstance(self._core, context, checks_values=checks_values),
            kept,
            self._slot,
            self._tables.table,
        )
        execution.expect(commands)
        for admitted in commands:
            execution.execute(admitted, self._now)
        for block in blocks:
            execution.apply_broadcast(block)
        execution.finish()
        return execution

    def begin_data(self) -> None:
        """Apply the watermark updates, and find the keys with due timers, which `process` calls."""
        clock = self._clock
        # The end of time fires windows, and rows that wait in joins, even without event time.
        ends = self._timed is not None and any(update.ends for update in self._moment.updates)
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
        for group, table in self._timed_tables():
            by_processing = table.timeline("processing", self._core.timers).take_due(clock.now_ms * 1000)
            by_event = self._due_by_event(table)
            if len(by_processing) or len(by_event):
                self._add_due(group, by_processing, by_event)

    def _timed_tables(self) -> Iterator[tuple[int, GroupTable]]:
        """Yield the tables that may have due timers, with the key group under which they are processed."""
        for group, table in self._tables.tables.items():
            yield group if self._groups_of is None else self._slot.key_groups[0], table
        if self._groups_of is not None:
            yield self._slot.key_groups[0], self._tables.merged(self._groups_of).recent

    def _add_due(self, group: int, by_processing: pa.Array, by_event: pa.Array) -> None:
        before = self._due.get(group)
        if before is not None:
            by_processing = pa.concat_arrays([before.processing, by_processing])
            by_event = by_event if before.event is None else pa.concat_arrays([before.event, by_event])
        self._due[group] = DueTimers(by_processing, by_event)

    def _table(self, key_group: int) -> StateTable:
        """Return the table with the keys that are processed under a key group."""
        if self._groups_of is not None:
            return self._tables.merged(self._groups_of)
        return self._tables.table(key_group)

    def _due_by_event(self, table: GroupTable) -> pa.Array:
        if self.event_clock is None or not self.event_clock.moved or self._clock.after_ms is None:
            return pa.array([], self._core.key_type)
        assert self._core.timers is not None
        found = table.timeline("event", self._core.timers).take_due(self._clock.after_us)
        if not self._clock.ends or self._timed is None or not self._timed.is_by_clock:
            return found
        by_clock = table.timeline("processing", self._core.timers).take_due(END_MS)
        return pa.concat_arrays([found, by_clock])

    @property
    def merges(self) -> bool:
        """Whether all key groups are processed as one."""
        return self._groups_of is not None

    @property
    def due_groups(self) -> list[int]:
        """The key groups with due timers that were not processed yet."""
        return sorted(self._due)

    @property
    def next_timer_ms(self) -> int | None:
        """When the slot must run again, in milliseconds since 1970: for a timer, or because an input becomes idle."""
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
        timelines = [table.timeline(domain, column).earliest_us for _, table in self._timed_tables()]
        return [-(-at // 1000) for at in timelines if at is not None]

    def process(self, key_group: int, blocks: Sequence[Block], *, more_follows: bool = False) -> StepResult:
        """Process the keyed blocks of one key group, sorted by their order.

        If `more_follows`, there will be another call for the key group, so the watermark does not advance yet.
        """
        ordered = sorted(blocks, key=lambda block: block.order)
        due = None
        if self._core.timers is not None and not self.header.paused:
            none = pa.array([], self._core.key_type)
            due = self._due.pop(key_group, DueTimers(none, none))
            if more_follows:
                self._due[key_group] = DueTimers(none, due.event)
                self._begun.add(key_group)
                due = DueTimers(due.processing, None)
            elif key_group in self._begun:
                # Earlier parts may have registered timers that are due now.
                table = self._table(key_group)
                more = self._due_by_event(table.recent if isinstance(table, MergedTable) else table)
                due = DueTimers(due.processing, pa.concat_arrays([due.event, more]))
        self.records += sum(
            block.batch.num_rows for block in ordered if block.input in self._core.data_inputs
        )
        with no_cyclic_collection():
            try:
                if self._plain is None:
                    self._plain = self._bind(checks_values=False)
                result = self._process_group(self._plain, key_group, ordered, due)
            except UnstorableValueError:
                # An error when storing the states does not reveal the record at fault. So run once more and check each
                # value when it is set, which would be too slow to do always. (Without these checks, a value that is
                # replaced within the same micro-batch is never stored, and so never checked.)
                self._plain = None
                result = self._process_group(self._bind(checks_values=True), key_group, ordered, due)
        self.counts += result.counts
        if result.newest_ms is not None:
            self._tables.advance_clock(result.newest_ms)
        if result.changes is not None:
            if self._groups_of is None:
                self._tables.put(key_group, result.changes)
            else:
                self._tables.merged(self._groups_of).put(result.changes)
        return result

    def _bind(self, *, checks_values: bool) -> FunctionInstance:
        """Return an instance of the function for data, for all key groups."""
        instance = FunctionInstance(self._core, self._slot_context(self._shared), checks_values=checks_values)
        for model in instance.models.values():
            # Before any record, which is not to blame when a model is lost.
            model.make_ready()
        self._instances.append(instance)
        if self._core.windows is not None:
            self._core.windows.begin(instance.shared_states, instance.states)
        return instance

    def _process_group(
        self, instance: FunctionInstance, key_group: int, blocks: list[Block], due: DueTimers | None
    ) -> StepResult:
        kind = Context if self._core.has_key else PartContext
        context = kind(instance.cursor, (name for name in self._core.outputs if name != MAIN))
        context.group_of = None if self._groups_of is None else self._group_of
        applier = self._standing_applier_in(instance)
        state = self._state(instance, key_group, blocks, may_stay_open=applier is None)
        run = self._run_type(instance, context, key_group, state)
        self._letters = []
        result = run.process(blocks, applier, due)
        result.dead_letters[:0] = self._letters
        return result

    def _group_of(self, key: Any) -> int:
        assert self._groups_of is not None
        return int(self._groups_of(pa.array([key], self._core.key_type))[0])

    def _state(
        self, instance: FunctionInstance, key_group: int, blocks: Sequence[Block], *, may_stay_open: bool
    ) -> GroupState | OpenValues:
        table = self._table(key_group)
        if isinstance(table, MergedTable):
            core = self._core
            if may_stay_open and core.states_stay_open:
                keys = [core.inputs[block.input].keys(block) for block in blocks]
                opened = table.open(core.specs, keys)
                if opened is not None:
                    return opened
            table.close()
        return GroupState(self._core.specs, table, instance.cursor)

    def _standing_applier_in(self, instance: FunctionInstance) -> ApplyStanding | None:
        """Return the function that applies the standing commands to a new key, made once for all key groups."""
        if instance is not self._standing_applier[0]:
            self._standing_applier = (
                instance,
                standing_applier(self._standing, instance, self._standing_failed),
            )
        return self._standing_applier[1]

    def _standing_failed(self, admitted: AdmittedCommand, error: Exception) -> None:
        self._letters.append(dead_letter_of(admitted, error, self._core.step))

    def traces(self, level: int) -> list[Report]:
        """Return the answers to the traces of this micro-batch, after its data is processed."""
        if not self._traced:
            return []
        self._tables.settle()
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
        """Return the current settings as plain values; for a large one, only its size as text."""
        found = {}
        for name, value in self._shared.in_force().items():
            if isinstance(self._core.shared.get(name), BroadcastState):
                continue
            size = len(msgspec.json.encode(value))
            found[name] = value if size <= _MAX_SETTING_BYTES else f"{size:,} bytes of JSON"
        return found

    def models(self) -> dict[str, Any]:
        """Return the versions of each model that the step declares, by the name that commands use."""
        instance = FunctionInstance(self._core, self._slot_context(self._shared), checks_values=False)
        return {model.model: describe_versions(model) for model in instance.models.values()}

    def tallies(self) -> dict[str, dict[str, VersionTally]]:
        """Return the tallies of the versions that have scored in this run, by model."""
        found: dict[str, dict[str, VersionTally]] = {}
        for instance in self._instances:
            for model in instance.models.values():
                tallies = model.tally.take()
                if tallies:
                    add_tallies(found.setdefault(model.model, {}), tallies)
        return found

    @property
    def time(self) -> StepTime | None:
        """The watermark, and the stream and partition or the step that holds it back; None without event time."""
        if self.event_clock is None or not self._moment.watermark_rules:
            return None
        watermark_ms, held = self.event_clock.progress.watermark_ms, self.event_clock.held_by
        if held is None:
            return StepTime(watermark_ms)
        kind, _, name = held[0].partition("/")
        return StepTime(watermark_ms, f"{name}/{held[1]}" if kind == "source" and held[1] else name)

    def close(self, *, sweeps: bool = True) -> None:
        """Put back the header of the slot. With `sweeps`, remove some of the expired values first."""
        if sweeps:
            clocks = self._core.expiry_clocks(self._clock.now_ms, self._tables.clock_ms)
            if clocks:
                self._tables.settle()
            self._tables.sweep(clocks)
        self._tables.put_header(self.header.dump())


def _dump_part(owner: SharedStates | StandingCommands) -> PartChange:
    return PartChange(owner.dump())


def _standing_of(pieces: list[bytes]) -> StandingCommands:
    return StandingCommands.of(whole_part(pieces) or b"")
