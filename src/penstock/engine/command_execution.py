"""Command execution: applies commands and broadcast control records in a slot, before keyed records."""

from __future__ import annotations

import datetime as dt
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.control.admitted_commands import (
    AdmittedCommand,
    CommandIdNotice,
    PlainSet,
    PlainSets,
    SlotCommand,
    keys_named,
)
from penstock.control.commands import DumpRequest
from penstock.control.encoded_receipts import Applied
from penstock.control.receipts import RecordPosition, Report
from penstock.control.register import Register
from penstock.engine.actions import Action, StandingCommands, action_of, standing_applier
from penstock.engine.command_validation import are_same_in_json, named_keys, payload_of
from penstock.engine.control_emissions import Emissions
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.model_commands import change_versions
from penstock.engine.slot import Slot, SlotHeader, dead_letter_of, letter_of, report_of
from penstock.engine.step import MAIN, StepResult
from penstock.models.orders import MODEL_ORDERS
from penstock.operators.error_reasons import reason_in_short, reason_of
from penstock.operators.event_times import event_times
from penstock.operators.functions import (
    CommandContext,
    ConnectedProcessFunction,
    Context,
    PartCommandContext,
    PartContext,
)
from penstock.operators.record_blocks import OFFSET, RAW, Block, DeadLetter, raw_bytes
from penstock.state.group_state import GroupState
from penstock.state.group_table import GroupTable

__all__ = ["CommandExecution", "KeptOnce"]


@dataclass(frozen=True)
class KeptOnce:
    """The state that a slot keeps once for its step, as commands change it. The register is not settled yet."""

    header: SlotHeader
    register: Register
    standing: StandingCommands


class CommandExecution:
    """The execution of a micro-batch's commands in a slot. `table` returns the stored table of a key group.

    Afterwards `changes` and `kept` hold the new state; nothing else changes.
    """

    def __init__(
        self, instance: FunctionInstance, kept: KeptOnce, slot: Slot, table: Callable[[int], GroupTable]
    ) -> None:
        self._core: Final = instance.core
        self.kept: Final = kept
        self.header: Final = kept.header
        self.shared: Final = instance.shared
        self._instance: Final = instance
        self._register: Final = kept.register
        self._standing: Final = kept.standing
        self._first: Final = slot.first
        self._key_groups: Final = slot.key_groups
        self._own: Final = slot.own
        self._table: Final = table
        self._groups: Final[dict[int, GroupState]] = {}
        self._outputs: Final = frozenset(name for name in self._core.outputs if name != MAIN)
        self._emitted: Final = Emissions(self._instance, first=slot.first)
        self._visited = 0
        self._standing_applier: Callable[[int], None] | None = None
        self._iterated_keys = False
        self._at_a_key = False
        self._raised_at_key = False
        self.result: Final = StepResult()
        self.reports: Final[list[Report]] = []
        self.applied: Final[dict[tuple[str, str], Applied]] = {}
        self.traced: Final[list[AdmittedCommand]] = []
        self.changes: Final[dict[int, pa.RecordBatch]] = {}
        self._named: Final[dict[int, list[Any]]] = {}
        self._entered: Final[set[int]] = set()
        core = self._core
        self._same_in_json: Final = are_same_in_json(core.key_type)
        self._has_plain_sets: Final = not (instance.checks_values or core.stamped or "set" in core.handlers)
        self._instance.leave()

    # -- commands --

    def expect(self, commands: Sequence[SlotCommand]) -> None:
        """Collect the keys that commands name, so that their states are loaded together."""
        named, groups = keys_named(commands)
        for key, group in zip(named_keys(named, self._core.key_type), groups, strict=True):
            if group in self._own:
                self._named.setdefault(group, []).append(key)

    def execute(self, admitted: SlotCommand, now: dt.datetime) -> None:
        """Carry out a command or several plain sets, and report the outcome."""
        if isinstance(admitted, PlainSets):
            self._set_all(admitted, now)
            return
        if isinstance(admitted, CommandIdNotice):
            self._register.mark_seen(admitted.id)
            return
        command = admitted.command
        if admitted.refusal:
            if not self._register.mark_seen(command.id) and self._first:
                self.reports.append(report_of(admitted, "refused", admitted.refusal, alone=True))
            return
        refusal = self._register.admit(command, now)
        scope = command.target.scope
        if refusal is not None:
            # Slots without a key of a command to single keys only see its id.
            if (self._first or scope in ("key", "keys")) and not refusal.duplicate:
                self.reports.append(
                    report_of(admitted, "refused", refusal.reason, alone=scope not in ("keys", "job"))
                )
            return
        if scope == "all":
            self._execute_for_keys(admitted, list(self._all_keys()), self._key_groups)
            self._standing.add(admitted, self._core)
            self._standing_applier = None
        elif scope in ("key", "keys"):
            self._for_named_keys(admitted)
        elif command.kind in self._core.handlers or command.kind in ("set", "reload-config"):
            self._execute_for_step(admitted)
        else:
            self._built_in(admitted)

    def _for_named_keys(self, admitted: AdmittedCommand) -> None:
        target = admitted.command.target
        if target.keys is None:
            (group,) = admitted.key_groups
            if group in self._own:
                key = target.key if self._same_in_json else named_keys([target.key], self._core.key_type)[0]
                if not self._set_plain(admitted, key, group):
                    self._execute_for_keys(admitted, [(key, group)], admitted.key_groups)
            return
        if self._own.isdisjoint(admitted.key_groups):
            return
        places = zip(named_keys(target.keys, self._core.key_type), admitted.key_groups, strict=True)
        own = dict.fromkeys((key, group) for key, group in places if group in self._own)
        # Sorted by key group, since moving the states to another group is slow.
        self._execute_for_keys(
            admitted, sorted(own, key=operator.itemgetter(1)), sorted({group for _, group in own})
        )

    def _set_all(self, sets: PlainSets, now: dt.datetime) -> None:
        """Carry out plain sets, with the same result as one by one, but at thousands per second."""
        if not self._has_plain_sets or self._standing.commands:
            for admitted in sets.separate():
                self.execute(admitted, now)
            return
        ids = [one if isinstance(one, str) else one.id for one in sets.commands]
        seen = self._register.mark_all_seen(ids)
        own = [
            one
            for one, was_seen in zip(sets.commands, seen, strict=True)
            if isinstance(one, PlainSet) and not was_seen
        ]
        read, step = self._core.plain_values.read, sets.step
        done = []
        for one, key in zip(own, named_keys([one.key for one in own], self._core.key_type), strict=True):
            values = read(one.payload)
            if values is None:
                self._execute_for_keys(sets.admit(one), [(key, one.key_group)], [one.key_group])
                continue
            self._set(key, one.key_group, values)
            done.append(one)
        # A slot without any of their keys reports nothing.
        if done:
            self._applied_of(sets.place).add_sets(
                [one.offset for one in done],
                [one.id for one in done],
                [f"{step}/{one.key}" for one in done],
                [one.issued_by for one in done],
            )

    def _set(self, key: Any, group: int, values: Mapping[str, Any]) -> None:
        columns = self._group(group).columns
        for name, value in values.items():
            column = columns[name]
            column.values[key] = value
            column.dirty[key] = None

    def _set_plain(self, admitted: AdmittedCommand, key: Any, group: int) -> bool:
        """Set states of one key without running user code, and return True; return False if that is not possible.

        It has the same result as `_execute_for_keys`, at thousands of commands per second.
        """
        command = admitted.command
        if (
            command.kind != "set"
            or not self._has_plain_sets
            or self._standing.commands
            or command.effective_at
        ):
            return False
        values = self._core.plain_values.read(command.payload)
        if values is None or self._register.stale_key(command, key) is not None:
            return False
        self._set(key, group, values)
        self._register.note_key(command, key)
        self.reports.append(
            report_of(admitted, "applied", key_groups=admitted.key_groups, keys=1, alone=True)
        )
        return True

    def _applied_of(self, place: RecordPosition) -> Applied:
        """Return the list of commands from a source that were applied to single keys of this slot."""
        source = place.stream, place.partition
        if source not in self.applied:
            self.applied[source] = Applied(*source)
        return self.applied[source]

    def _execute_for_keys(
        self, admitted: AdmittedCommand, keys: list[tuple[Any, int]], groups: Sequence[int]
    ) -> None:
        """Carry out a command for each of the keys."""
        command = admitted.command
        instance = self._instance
        context = CommandContext(instance.cursor, self._outputs, command)
        context.enter(admitted.place.stream, self._emitted)
        action = action_of(command, instance)
        touched, refused = 0, ""
        failed: dict[int, Exception] = {}
        entered = -1
        for key, group in keys:
            stale = self._register.stale_key(command, key)
            if stale is not None:
                refused = stale.reason
                continue
            if group != entered:
                self._enter(group, context)
                entered = group
            instance.cursor.key = key
            if command.target.scope != "all":
                self._apply_standing(key, group)
            error = self._attempt(action, context, admitted)
            if error is None:
                touched += 1
                self._register.note_key(command, key)
            else:
                failed.setdefault(group, error)
        instance.cursor.key = None
        counts: dict[str, Any] = {"key_groups": groups, "keys": touched, "replies": context.replies}
        counts["alone"] = command.target.key is not None
        if failed:
            first = failed[min(failed)]
            self.result.dead_letters.append(dead_letter_of(admitted, first, self._core.step))
            self.reports.append(
                report_of(admitted, "degraded", reason_in_short(first), failed=sorted(failed), **counts)
            )
        elif refused and not touched and command.target.scope != "all":
            self.reports.append(report_of(admitted, "refused", refused, alone=counts["alone"]))
        else:
            self.reports.append(report_of(admitted, "applied", **counts))

    def _apply_standing(self, key: Any, group: int) -> None:
        """Apply the standing commands to a key that is new to the step, before its own command."""
        if not self._standing.commands or self._groups[group].has(key):
            return
        if self._standing_applier is None:
            self._standing_applier = standing_applier(self._standing, self._instance, self._standing_failed)
        if self._standing_applier is not None:
            self._standing_applier(group)

    def _standing_failed(self, admitted: AdmittedCommand, error: Exception) -> None:
        self.result.dead_letters.append(dead_letter_of(admitted, error, self._core.step))

    def _execute_for_step(self, admitted: AdmittedCommand) -> None:
        """Carry out a command once, for the whole step."""
        kind = CommandContext if self._core.has_key else PartCommandContext
        context = kind(self._instance.cursor, self._outputs, admitted.command)
        context.enter(admitted.place.stream, self._emitted)
        context.open_keys(lambda: self._keys(context))
        error = self._run_for_step(action_of(admitted.command, self._instance), context, admitted)
        # Outside of a key, every slot gives the same reply.
        replies = [reply for reply in context.replies if self._first or reply[0] is not None]
        counts: dict[str, Any] = {
            "key_groups": list(self._key_groups),
            "keys": self._visited,
            "replies": replies,
        }
        if error is None:
            self.reports.append(report_of(admitted, "applied", **counts))
            return
        # Code that raises for the whole step raises in every slot; a single dead letter suffices.
        if self._first or self._raised_at_key:
            self.result.dead_letters.append(dead_letter_of(admitted, error, self._core.step))
        self.reports.append(
            report_of(admitted, "degraded", reason_in_short(error), failed=list(self._key_groups), **counts)
        )

    def _run_for_step(self, action: Action, context: Context, admitted: AdmittedCommand) -> Exception | None:
        self._visited = 0
        self._instance.leave()
        self.shared.writable = True
        try:
            return self._attempt(action, context, admitted)
        finally:
            self.shared.writable = False
            self._instance.leave()

    def _attempt(self, action: Action, context: Any, admitted: AdmittedCommand) -> Exception | None:
        """Carry out an action. If it raises, undo its changes and emissions, and return the error."""
        cursor = self._instance.cursor
        mark = len(self._emitted)
        self._at_a_key = self._iterated_keys = False
        self._emitted.origin = lambda reason: letter_of(admitted, reason, self._core.step)
        cursor.time = admitted.command.effective_at
        try:
            self._instance.note_version(admitted.command.version)
            for item in action(context) or ():
                self._emitted.side_output(MAIN, item)
        except Exception as e:  # user code may raise anything
            self._take_back()
            self._emitted.forget(mark)
            return e
        finally:
            cursor.time = None
        cursor.undo.clear()
        return None

    def _take_back(self) -> None:
        """Undo the changes of the running code.

        Code for the whole step that has iterated over keys may raise in some slots only. Its earlier changes to the
        shared states are kept, as in the other slots, because shared states must be the same in all slots.
        """
        self._raised_at_key = self._at_a_key
        self._instance.cursor.take_back(self.shared.own if self._iterated_keys else None)

    def _built_in(self, admitted: AdmittedCommand) -> None:
        kind = admitted.command.kind
        if kind in MODEL_ORDERS:
            found = change_versions(admitted, self._instance, self._key_groups, first=self._first)
            self.reports.extend(found)
            return
        if kind == "trace":
            # Answered after the data of this micro-batch is processed.
            self.traced.append(admitted)
            return
        if kind == "dump-state":
            # The driver starts the dump of this micro-batch once it is committed.
            wanted = msgspec.to_builtins(payload_of(admitted.command, DumpRequest))
            replies = [(None, wanted)] if self._first else []
            self.reports.append(
                report_of(admitted, "applied", key_groups=list(self._key_groups), replies=replies)
            )
            return
        if kind in ("pause", "resume"):
            self.header.paused = kind == "pause"
        else:
            assert kind == "clear-cache", kind
            try:
                self._core.clear_cache(self.header.cache_generation + 1)
            except Exception as e:  # user code may raise anything
                groups = list(self._key_groups)
                self.result.dead_letters.append(dead_letter_of(admitted, e, self._core.step))
                self.reports.append(report_of(admitted, "degraded", reason_in_short(e), failed=groups))
                return
            # Other workers clear their caches when they next run the slot.
            self.header.cache_generation += 1
        self.reports.append(report_of(admitted, "applied", key_groups=list(self._key_groups)))

    # -- broadcast control records --

    def apply_broadcast(self, block: Block) -> None:
        """Apply the records of a broadcast stream, one by one."""
        source = self._core.inputs[block.input]
        function = self._instance.function
        assert isinstance(function, ConnectedProcessFunction)
        times = None if source.time is None else event_times(block.batch.column(source.time))
        versions = None if source.version is None else block.batch.column(source.version).to_pylist()
        kind = Context if self._core.has_key else PartContext
        context = kind(self._instance.cursor, self._outputs)
        context.enter(block.stream, self._emitted)
        context.open_keys(lambda: self._keys(context))
        self._instance.leave()
        for row in range(block.batch.num_rows):
            mark = len(self._emitted)
            self._at_a_key = self._iterated_keys = False
            self._emitted.origin = functools.partial(self._letter_of_record, block, row)
            cursor = self._instance.cursor
            cursor.time = None if times is None else times[row]
            self.shared.writable = True
            try:
                # One by one, since the record class is the user's and may reject some of them.
                (record,) = source.record_type.objects(block.batch.slice(row, 1))
                self._instance.note_version(None if versions is None else versions[row])
                for item in function.process_control(record, context) or ():
                    self._emitted.side_output(MAIN, item)
            except Exception as e:  # user code may raise anything
                self._take_back()
                self._emitted.forget(mark)
                # Code that raises for the whole step raises in every slot; a single dead letter suffices.
                if self._first or self._raised_at_key:
                    self.result.dead_letters.append(self._letter_of_record(block, row, reason_of(e)))
            cursor.undo.clear()
            cursor.time = None
            self.shared.writable = False
            self._instance.leave()

    def _letter_of_record(self, block: Block, row: int, reason: str) -> DeadLetter:
        source = self._core.inputs[block.input]
        offset = block.batch.column(OFFSET)[row].as_py()
        raw = raw_bytes(block.column(RAW), block.batch, row, source.record_type)
        return DeadLetter(reason, block.stream, self._core.step, block.partition, offset, raw)

    # -- keys --

    def _group(self, key_group: int) -> GroupState:
        state = self._groups.get(key_group)
        if state is None:
            state = GroupState(self._core.specs, self._table(key_group), self._instance.cursor)
            named = self._named.pop(key_group, None)
            if named is not None:
                state.load_keys(pa.array(named, self._core.key_type))
            self._groups[key_group] = state
        return state

    def _enter(self, key_group: int, context: Context) -> None:
        state = self._group(key_group)
        if key_group not in self._entered:
            self._entered.add(key_group)
            # Write back plain sets, so that all values can be converted to Python objects together.
            state.flush()
            state.materialise()
        self._instance.enter(state)
        context.key_group = key_group

    def _all_keys(self) -> Iterator[tuple[Any, int]]:
        """Yield every key of the slot with its key group, except for keys without any value."""
        for group in self._key_groups:
            if not self._table(group).keys and group not in self._groups:
                continue
            state = self._group(group)
            # The running handler's changes must stay undoable.
            keys = state.keys_now() if self._instance.cursor.undo else state.settled_keys()
            yield from ((key, group) for key in keys)

    def _keys(self, context: Context) -> Iterator[Any]:
        """Return the iterator of `ctx.keys()` or `ctx.parts()`.

        Slots may behave differently from now on, so shared states become read-only.
        """
        self._iterated_keys = True
        self.shared.writable = False
        return self._iterate_keys(context)

    def _iterate_keys(self, context: Context) -> Iterator[Any]:
        """Yield all keys of the slot, with the states at the current one."""
        entered = -1
        try:
            for key, group in self._all_keys():
                if group != entered:
                    self._enter(group, context)
                    entered = group
                self._instance.cursor.key = key
                self._visited += 1
                # If an exception ends the loop, `finally` runs before any handler of the exception.
                self._at_a_key = True
                yield key if self._core.has_key else group
                self._at_a_key = False
        finally:
            self._instance.leave()

    # -- results --

    def finish(self) -> None:
        """Collect the emissions and the changes."""
        for output in self._emitted.outputs():
            emission = self._emitted.emission(output, self.result.dead_letters)
            if emission is not None:
                self.result.emissions.append(emission)
        for group in sorted(self._groups):
            changes = self._groups[group].changes()
            if changes is not None:
                self.changes[group] = changes
