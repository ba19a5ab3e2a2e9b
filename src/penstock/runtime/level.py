"""Levels: run the keyed steps of one depth on the packed rows of one slot. Independent of Spark."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.garbage import no_cyclic_collection
from penstock.control.admitted_commands import CommandIdNotice, PlainSets, SlotCommand, decode_commands
from penstock.engine.slot import Slot, held_name
from penstock.engine.slot_run import BatchTime, SlotRun
from penstock.engine.step import Emission, StepCore, StepResult
from penstock.errors import StateError
from penstock.models.kept_answers import SlotAnswers
from penstock.models.tallies import add_tallies
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.record_blocks import KEY, OFFSET, ORIGIN, Block, join_blocks
from penstock.runtime.emission_origins import origin_columns
from penstock.runtime.gathered_rows import GatheredRows, in_memory, pieces_of_groups
from penstock.runtime.large_rounds import by_key_group
from penstock.runtime.packed_rows import (
    SLOT_COMMANDS,
    WAKE,
    WATERMARKS,
    PackedRow,
    counts_row,
    from_bytes,
    place_of,
    reports_row,
    split_by_key_group,
    time_row,
    to_bytes,
    watermark_rows,
    watermark_updates_of,
)
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.runtime.router import dead_letter_rows
from penstock.runtime.seed import take_over
from penstock.runtime.step_work import OpenSlot, StepWork
from penstock.state.kept_slots import SlotCache, kept_slots
from penstock.state.key_groups import key_groups
from penstock.state.slot_log import HEAD
from penstock.state.slot_tables import SlotTables
from penstock.state.stored_blocks import Entries
from penstock.streams.graph import Port, ProcessNode

__all__ = ["Level", "StoredStates"]

# The output of a step is sent in blocks of about this size, each of whole key groups.
_BLOCK_BYTES: Final = 8 << 20
# Data held for a paused step is stored in parts of about this size, each of whole key groups.
_HELD_BYTES: Final = 64 << 20
_SMALL_BYTES: Final = 4 << 10
# A micro-batch of up to this many records for a step in a slot is processed like a round of real time.
MAX_MERGED_RECORDS: Final = 1000
# The maximum number of keys in one query of a lookup.
_MAX_RECORDS_OF_LOOKUPS: Final = 100_000


class StoredStates(Protocol):
    """The store of the states of a slot's steps between micro-batches."""

    def entries(self, step_id: str) -> Entries:
        """Return the stored entries of a step."""


class Level:
    """The steps of one depth, as one task runs them. `cache` holds the tables that its worker keeps between calls."""

    def __init__(self, plan: JobPlan, step_ids: Sequence[str], cache: SlotCache = kept_slots) -> None:
        levels = [[node.id for node in level] for level in plan.levels()]
        cache.max_bytes = plan.state_memory_bytes
        number = levels.index(list(step_ids))
        self._is_last: Final = number == len(levels) - 1
        self._runners: Final = {step_id: _StepRunner(plan, step_id, number, cache) for step_id in step_ids}
        self.slot_of: Final = plan.slot_of.__getitem__
        self._timed: Final = {step_id for step_id, runner in self._runners.items() if runner.has_time}
        self.wants_clock: Final = any(plan.wants_clock(runner.node) for runner in self._runners.values())
        self.next_timer_ms: int | None = None

    def run(
        self, rows: Iterable[PackedRow], states: StoredStates, now: dt.datetime, slot: Slot
    ) -> Iterator[PackedRow]:
        """Run a slot once: `open`, `run_round` and `store`."""
        self.open(states, slot)
        yield from self.run_round(rows, now)
        yield from self.store()

    def open(self, states: StoredStates, slot: Slot) -> None:
        """Open the state of a slot, for any number of rounds."""
        for runner in self._runners.values():
            runner.open(states, slot)

    def run_round(self, rows: Iterable[PackedRow], now: dt.datetime) -> Iterator[PackedRow]:
        """Run the slot on packed rows, in any order. Yield the output of steps, and rows for others, in a fixed order.

        The bodies must be bytes, which can be compared. `now` is the time of the round. Afterwards `next_timer_ms` is
        the time at which the slot must run again even without input, in milliseconds since 1970, or None if it need
        not.
        """
        # The shuffle delivers rows in any order, and a replay must pass them on in the same order.
        with GatheredRows(rows) as gathered:
            yield from self._run(gathered.lists, now)

    def store(self) -> Iterator[PackedRow]:
        """Store the state of the slot, and yield rows that count it."""
        return (row for row in self.cut(goes_on=False) if row is not None)

    def cut(self, *, goes_on: bool) -> Iterator[PackedRow | None]:
        """End an interval. The iterator stores the state in pieces, and yields None after each.

        It also yields rows that count the state. With `goes_on`, the next interval may be opened and run meanwhile.
        """
        cuts = [self._runners[step_id].cut(goes_on=goes_on) for step_id in sorted(self._runners)]
        return itertools.chain.from_iterable(cuts)

    def _run(self, found: Mapping[str, list[PackedRow]], now: dt.datetime) -> Iterator[PackedRow]:
        commands = _commands(found.get(SLOT_COMMANDS, []))
        updates = watermark_updates_of(map(in_memory, found.get(WATERMARKS, [])))
        wakes = WAKE in found
        steps = {step_id for step_id, runner in self._runners.items() if wakes or runner.takes(commands)}
        steps |= self._timed
        self.next_timer_ms = None
        for destination in sorted(found.keys() | steps):
            runner = self._runners.get(destination)
            if runner is not None:
                mine = found.get(destination, [])
                yield from runner.run(StepWork(mine, runner.commands_for(commands), updates, now, wakes))
                timers = [self.next_timer_ms, runner.next_timer_ms]
                self.next_timer_ms = min((at for at in timers if at is not None), default=None)
            elif destination not in (SLOT_COMMANDS, WATERMARKS, WAKE) or not self._is_last:
                yield from map(in_memory, found[destination])


def _commands(rows: list[PackedRow]) -> list[SlotCommand]:
    """Return all commands of the micro-batch, sorted by position."""
    commands = [admitted for row in rows for admitted in decode_commands(in_memory(row).body)]
    return sorted(commands, key=operator.attrgetter("place"))


class _StepRunner:
    """One step of the level, which unpacks its blocks, runs its core and packs the output."""

    def __init__(self, plan: JobPlan, step_id: str, level: int, cache: SlotCache) -> None:
        self._plan = plan
        self._cache = cache
        node = plan.graph.nodes[step_id]
        assert isinstance(node, ProcessNode)
        self.node: Final = node
        self._level = level
        self._core: StepCore = plan.core(node)
        self._schemas = [plan.step_schema(node, number) for number in range(len(node.edges))]
        self._broadcast = frozenset(number for number, edge in enumerate(node.edges) if edge.key is None)
        self._data = self._core.data_inputs
        self._watermark_rules: Final = plan.watermark_rules(node)
        self._sends_watermarks: Final = plan.sends_watermarks(node)
        self.has_time: Final = self._core.timers is not None or bool(self._watermark_rules)
        self.next_timer_ms: int | None = None
        self._opened: OpenSlot | None = None
        # The states that the last interval has left open, if its tables are still used.
        self._going_on: OpenSlot | None = None
        self._can_merge: Final = self._core.has_key and self._core.windows is None
        # Whether a value has expired by event time depends on earlier records, perhaps of other key groups.
        self._orders_rounds: Final = self._core.takes_single_records and not self._core.expires_by_event
        self._carries_keys = {output: plan.wants_keys(Port(node.id, output)) for output in node.outputs}
        self._split = frozenset(name for name in node.outputs if plan.wants_key_groups(Port(node.id, name)))

    def takes(self, commands: list[SlotCommand]) -> bool:
        """Return whether one of the commands is for the step."""
        return any(self._is_for(admitted) for admitted in commands)

    def commands_for(self, commands: list[SlotCommand]) -> list[SlotCommand]:
        """Return the commands for the step."""
        return [admitted for admitted in commands if self._is_for(admitted)]

    def _is_for(self, admitted: SlotCommand) -> bool:
        step = self.node.step
        if isinstance(admitted, PlainSets):
            return admitted.step == step
        if isinstance(admitted, CommandIdNotice) or admitted.refusal:
            return admitted.judge == step
        target = admitted.command.target.step
        return target == step if target else step in self._plan.accepting.takers(admitted.command)

    def open(self, states: StoredStates, slot: Slot) -> None:
        """Open the step in a slot for the next rounds. The first of them that needs its state reads it."""
        self._states, self._slot, self._opened = states, slot, None

    def _open(self) -> OpenSlot:
        slot, entries = self._slot, self._states.entries(self.node.id)
        answers = SlotAnswers(self._plan.answers, self.node.step, slot.key_groups, self._plan.library)
        if self._going_on is not None:
            self._going_on.tables.go_on(entries)
            return OpenSlot(slot, self._going_on.name, entries, self._going_on.tables, answers)
        name = (self.node.id, slot.key_groups[0], len(slot.key_groups), str(self._core.state_schema))
        kept = self._cache.take(name)
        if self._plan.seed is not None and entries.get(HEAD) is None:
            # The slot runs for the first time, perhaps not in the first micro-batch, if no task there woke it. Anything
            # that the worker has kept of such a slot is from before a rescaling.
            take_over(self._plan.seed.entries(self.node.id, slot.key_groups[0]), entries)
        try:
            tables = SlotTables(self._core.state_schema, entries, kept, self._cache)
        except StateError as e:
            raise StateError(f"Step {self._core.step!r}: {e}") from e
        return OpenSlot(slot, name, entries, tables, answers)

    def run(self, work: StepWork) -> Iterator[PackedRow]:
        """Run the step on its input of one round."""
        if self._opened is None:
            self._opened = self._open()
        slot, entries, tables = self._opened.slot, self._opened.entries, self._opened.tables
        self._opened.was_woken |= work.wakes
        moment = BatchTime(work.at, self._watermark_rules, work.updates)
        rows = [row for row in work.rows if row.input not in self._broadcast]
        merges = self._merges(rows)
        groups_of = self._groups_of if merges else None
        run = SlotRun(self._core, slot, tables, moment, groups_of, self._opened.answers)
        yield from dead_letter_rows(run.dead_letters, self._plan)
        first = slot.key_groups[0]
        broadcast = [self._block(row) for row in work.rows if row.input in self._broadcast]
        if work.commands or broadcast:
            execution = run.steer(work.commands, broadcast)
            yield from self._pack([(first, execution.result)])
            applied = list(execution.applied.values())
            if execution.reports or applied:
                yield reports_row(self.node.step, first, work.at, execution.reports, applied)
        if slot.first and (run.changed_shared or work.wakes):
            settings = msgspec.json.encode(run.settings())
            yield counts_row("settings", self.node.step, 0, first, settings)
            if self._core.models:
                yield counts_row("models", self.node.step, 0, first, msgspec.json.encode(run.models()))
        held_before = run.header.held_bytes
        run.begin_data()
        if run.header.paused:
            rows = self._hold(rows, run, entries)
        elif held_before:
            controls = [row for row in rows if row.input not in self._data]
            yield from self._run_records(controls, run, more_follows=True)
            rows = [row for row in rows if row.input in self._data]
            for part in range(run.header.held_parts):
                yield from self._run_records(_take_held(entries, part), run, more_follows=True)
            run.header.held_bytes = run.header.held_parts = 0
        yield from self._run_records(rows, run)
        yield from self._report_time(run, first)
        traces = run.traces(self._level)
        if traces:
            yield reports_row(self.node.step, first, work.at, traces)
        # Once for each `open`, since a search in every round would take long.
        run.close(sweeps=not self._opened.has_swept)
        self._opened.has_swept = True
        if run.header.held_bytes != held_before:
            yield counts_row("held", self.node.step, run.header.held_bytes, first)
        if run.records:
            yield counts_row("records", self.node.step, run.records, first)
        for what, count in run.counts.items():
            yield counts_row(what, self.node.step, count, first)
        if self._core.models:
            for model, tallies in run.tallies().items():
                add_tallies(self._opened.tallies.setdefault(model, {}), tallies)
        self._opened.answers.add(run.answers)
        self.next_timer_ms = run.next_timer_ms

    def cut(self, *, goes_on: bool) -> Iterator[PackedRow | None]:
        """Freeze the changes of the rounds; the iterator stores them, and yields rows that count keys and bytes."""
        opened, self._opened = self._opened, None
        last = opened or self._going_on
        self._going_on = last if goes_on else None
        if opened is None:
            if last is not None and not goes_on:
                self._cache.put(last.name, last.tables.keep())
            return iter(())
        has_changed = opened.tables.changed
        if has_changed:
            # First, since most changes are not in a table yet, and their keys would not be counted.
            opened.tables.freeze()
        return self._store(opened, has_changed=has_changed, goes_on=goes_on)

    def _store(self, opened: OpenSlot, *, has_changed: bool, goes_on: bool) -> Iterator[PackedRow | None]:
        tables, first = opened.tables, opened.slot.key_groups[0]
        # Before the work counts, so that a repetition takes the same rows.
        opened.answers.write()
        if opened.tallies:
            yield counts_row("scores", self.node.step, 0, first, msgspec.json.encode(opened.tallies))
        yield from tables.pieces()
        if has_changed:
            yield counts_row("state_bytes", self.node.step, tables.stored_bytes, first)
        if has_changed or opened.was_woken:
            yield counts_row("keys", self.node.step, tables.keys, first)
        if goes_on:
            tables.relieve()
        else:
            self._cache.put(opened.name, tables.keep())

    def _report_time(self, run: SlotRun, first: int) -> Iterator[PackedRow]:
        """Report the event time to the driver, and to the steps after this one once it has changed."""
        time, clock = run.time, run.event_clock
        if time is None or clock is None:
            return
        yield time_row(self.node.step, first, time)
        update = clock.next_update(self.node.id, f"{first:05d}") if self._sends_watermarks else None
        if update is not None:
            yield from watermark_rows(update, self._plan.first_key_groups)

    def _run_records(
        self, rows: Iterable[PackedRow], run: SlotRun, *, more_follows: bool = False
    ) -> Iterator[PackedRow]:
        """Run the keyed records of all key groups, and their due timers."""
        found: Iterator[tuple[int, list[Block]]]
        if run.merges:
            first = self._slot.key_groups[0]
            blocks = self._of_round(rows) if self._plan.in_real_time else self._joined(rows)
            found = iter([(first, blocks)] if blocks or run.due_groups else [])
        else:
            if self._plan.in_real_time:
                rows = self._split_by_key_groups(rows)
            by_group = operator.attrgetter("key_group")
            parts: dict[int, list[PackedRow]] = {group: [] for group in run.due_groups}
            parts |= {group: list(part) for group, part in itertools.groupby(rows, key=by_group)}
            found = ((group, list(map(self._block, part))) for group, part in sorted(parts.items()))
        return self._pack(
            (group, run.process(group, blocks, more_follows=more_follows)) for group, blocks in found
        )

    def _merges(self, rows: Sequence[PackedRow]) -> bool:
        """Return whether to process all key groups as one. Small rounds touch few keys of many of them."""
        if self._plan.in_real_time or not self._can_merge:
            return self._can_merge
        # Expiry depends on earlier records, perhaps of other key groups. A repeated micro-batch has
        # the same number of records, though perhaps in other rows.
        limit = MAX_MERGED_RECORDS if self._core.lookup is None else _MAX_RECORDS_OF_LOOKUPS
        if self._core.expires_by_event or not 0 < len(rows) <= limit:
            return False
        sizes = itertools.accumulate(self._block(row).batch.num_rows for row in rows)
        return all(size <= limit for size in sizes)

    def _of_round(self, rows: Iterable[PackedRow]) -> list[Block]:
        """Return the blocks of a round in real time, ordered by key group if that makes single records faster."""
        blocks = list(map(self._block, rows))
        return by_key_group(blocks, self._groups_in) if self._orders_rounds else blocks

    def _groups_in(self, block: Block) -> npt.NDArray[np.uint16]:
        selector = self.node.edges[block.input].key
        assert selector is not None
        keys = block.column(KEY)
        return self._groups_of(selector.column(block.batch) if keys is None else keys)

    def _joined(self, rows: Iterable[PackedRow]) -> list[Block]:
        """Return one block for the rows of each place, ordered by key group like those of a slot in real time."""
        return join_blocks(sorted(map(self._block, rows), key=operator.attrgetter("place")))

    def _pack(self, results: Iterable[tuple[int, StepResult]]) -> Iterator[PackedRow]:
        """Yield the results of key groups as packed rows of whole key groups."""
        emitted: dict[str, _Emitted] = {}
        with no_cyclic_collection():
            for key_group, result in results:
                for emission, batch in self._batches(result.emissions, key_group):
                    if emission.output in self._split:
                        yield from self._by_key_group(emission, batch, key_group)
                    else:
                        emitted.setdefault(emission.output, _Emitted(key_group)).add(batch)
                yield from dead_letter_rows(result.dead_letters, self._plan)
                for output in [name for name, waiting in emitted.items() if waiting.size >= _BLOCK_BYTES]:
                    yield self._row(output, emitted.pop(output))
        for output, waiting in emitted.items():
            yield self._row(output, waiting)

    def _batches(
        self, emissions: Sequence[Emission], key_group: int
    ) -> Iterator[tuple[Emission, pa.RecordBatch]]:
        """Yield the emissions of a key group, each with all columns that come after it."""
        names: Sequence[pa.Array | None] = [None] * len(emissions)
        if self._core.caused:
            names = origin_columns(emissions, lambda emission: self._key_groups(emission, key_group))
        for emission, origins in zip(emissions, names, strict=True):
            batch = self._batch(emission)
            yield emission, batch if origins is None else batch.append_column(ORIGIN, origins)

    def _key_groups(self, emission: Emission, key_group: int) -> npt.NDArray[np.uint16]:
        """Return the key group of each record of an emission; records without a key are in `key_group`."""
        groups = np.full(len(emission.keys), key_group, np.uint16)
        known = emission.keys.is_valid().to_numpy(zero_copy_only=False)
        groups[known] = self._groups_of(emission.keys.filter(pa.array(known)))
        return groups

    def _by_key_group(self, emission: Emission, whole: pa.RecordBatch, key_group: int) -> Iterator[PackedRow]:
        """Yield an emission as a row for each key group of its keys; records without a key are in `key_group`."""
        groups = self._key_groups(emission, key_group)
        for group, batch in split_by_key_group(whole, groups, self._plan.key_groups):
            waiting = _Emitted(group)
            waiting.add(batch)
            yield self._row(emission.output, waiting)

    def _hold(self, rows: list[PackedRow], run: SlotRun, entries: Entries) -> list[PackedRow]:
        """Store the data for later and return the other rows, which are control records."""
        data: Iterable[PackedRow] = (row for row in rows if row.input in self._data)
        if self._plan.in_real_time:
            data = self._split_by_key_groups(data)
        for piece in pieces_of_groups(data, _HELD_BYTES):
            held = list(map(in_memory, piece))
            entries.put(held_name(run.header.held_parts), msgspec.msgpack.encode(held))
            run.header.held_parts += 1
            run.header.held_bytes += sum(len(row.body) for row in held)
        return [row for row in rows if row.input not in self._data]

    def _groups_of(self, keys: pa.Array) -> npt.NDArray[np.uint16]:
        return key_groups(keys, self._plan.key_groups)

    def _split_by_key_groups(self, rows: Iterable[PackedRow]) -> list[PackedRow]:
        """Split rows, each with the records of a slot, by key group. Parts of a step without a key stay whole."""
        if not self._core.has_key:
            return list(rows)
        found: list[PackedRow] = []
        for row in rows:
            block = self._block(row)
            for group, part in split_by_key_group(block.batch, self._groups_in(block), self._plan.key_groups):
                first = part.column(OFFSET)[0].as_py()
                found.append(
                    row._replace(key_group=group, first_offset=first, body=to_bytes(part).to_pybytes())
                )
        return sorted(found, key=operator.attrgetter("key_group"))

    def _block(self, row: PackedRow) -> Block:
        body = from_bytes(in_memory(row).body, self._schemas[row.input])
        branch, stream, partition = place_of(row.partition)
        return Block(row.input, stream, partition, row.first_offset, body, branch)

    def _batch(self, emission: Emission) -> pa.RecordBatch:
        batch = emission.batch
        if self._carries_keys[emission.output]:
            # The keys of parts are internal.
            keys = emission.keys if self._core.has_key else pa.nulls(len(emission.keys), self._core.key_type)
            batch = batch.append_column(KEY, keys)
        if emission.times is not None:
            batch = batch.append_column(EVENT_TIME, emission.times)
        return batch

    def _row(self, output: str, emitted: _Emitted) -> PackedRow:
        batches = emitted.batches
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        destination = emission_destination(self.node.step, output)
        group = emitted.first_key_group
        # Columns of a user's own arrays are copied: a function may use their memory again.
        body = batch if self._core.takes_single_records else to_bytes(batch)
        return PackedRow(destination, group, 0, f"{group:05d}", 0, body)


def _take_held(entries: Entries, part: int) -> list[PackedRow]:
    """Return one part of the held rows, and remove it from the store."""
    held = entries.get(held_name(part))
    if held is None:
        raise StateError(
            f"Part {part} of the data held for a paused step is not in the checkpoint. Restore a copy of it."
        )
    entries.remove(held_name(part))
    return msgspec.msgpack.decode(held, type=list[PackedRow])


class _Emitted:
    """The output of neighbouring key groups to one output of a step."""

    def __init__(self, first_key_group: int) -> None:
        self.first_key_group: Final = first_key_group
        self.batches: list[pa.RecordBatch] = []
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self.batches.append(batch)
        size = batch.get_total_buffer_size()
        # Computing the exact size takes long, and matters only for large output.
        self.size += size if size <= _SMALL_BYTES else batch.nbytes
