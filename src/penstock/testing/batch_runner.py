"""Batch runner: run the micro-batches of a job in this process, as Spark would. The lower level of the test kit.

Tasks read, rows are shuffled, levels run slot by slot, and tasks write to sinks, all with the code that runs in
Spark's workers. Slots store their state as bytes in memory.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.base.instants import EPOCH, MILLISECOND, milliseconds_of
from penstock.control.commands import DEFAULT_MAX_BYTES
from penstock.errors import JobDefinitionError
from penstock.models.group import ModelGroup
from penstock.objects.allowed import AllowedPlaces
from penstock.operators.watermarks import WatermarkUpdate
from penstock.runtime.command_reader import CommandReader
from penstock.runtime.level import Level
from penstock.runtime.packed_rows import (
    DEAD_LETTER_TYPE,
    DEAD_LETTERS,
    WAKE,
    PackedRow,
    packed_batches,
    watermark_rows,
)
from penstock.runtime.plan import JobPlan
from penstock.runtime.slots import slot_keys
from penstock.runtime.start_signal import StartReader
from penstock.runtime.writer import Forwarder, Writer, unpacked_rows
from penstock.sources.base import SourceChunk
from penstock.sources.fetched import FetchedFiles, KeptInFolder
from penstock.state.kept_slots import SlotCache
from penstock.streams.graph import COMMANDS, Graph, ProcessNode, SourceNode
from penstock.streams.job_description import JobDescription
from penstock.testing.batch_outcome import BatchOutcome, TaskReport
from penstock.testing.memory_entries import MemoryStates, Stored
from penstock.testing.memory_sinks import MemorySink, Written
from penstock.testing.source_chunks import source_tasks

__all__ = ["NOW", "BatchRunner", "Inputs", "check_parallelism"]

NOW: Final = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
"""The initial time of a runner's clock. It moves only when a test moves it."""

Inputs: TypeAlias = Mapping[str, Sequence[tuple[str, Sequence[Any]]]]
"""The input of a micro-batch by stream: runs of records, each from one source partition. Commands are JSON."""


class BatchRunner:
    """A running job, one micro-batch at a time, for tests that inspect bytes, slots and reports.

    `states` holds what each slot has stored for each step. `wakes` holds the time at which a slot must run again even
    without input. Both are keyed by step id (that of the first step of a level) and Spark's key of the slot. `now` is
    the clock.

    >>> runner = BatchRunner(job, parallelism=2)
    >>> runner.run({"words": [("file", [{"word": "a"}])]}).outputs
    {'counts': [Record(word='a', times=1)]}

    Args:
        job: the job. The runner works on copies of its functions, as Spark's workers do.
        parallelism: the number of tasks of a keyed level.
        strict: raise StrictModeError for the first record that cannot be processed.
        keyed_sinks: the sinks that receive the key of each record, as topics do.
        raw_streams: the streams whose records keep their raw bytes, as those of files and topics do.
        partitions: for each partitioned stream, such as a topic, the partitions known at the start.
        in_real_time: run as in real time, where a call of `run` is one round of an interval.

    """

    def __init__(
        self,
        job: JobDescription,
        *,
        parallelism: int = 1,
        strict: bool = False,
        keyed_sinks: Iterable[str] = (),
        raw_streams: Iterable[str] = (),
        partitions: Mapping[str, tuple[str, ...]] | None = None,
        in_real_time: bool = False,
    ) -> None:
        job.check()
        self.job = job
        self.plan = JobPlan(
            _with_own_functions(job.graph),
            job.key_groups,
            frozenset(raw_streams),
            frozenset(keyed_sinks),
            strict,
            parallelism,
            partitions=partitions or {},
            in_real_time=in_real_time,
        )
        self.states: dict[tuple[str, int], Stored] = {}
        self.wakes: dict[tuple[str, int], int | None] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        self.records: dict[str, int] = {}
        self.now = NOW
        self.number = 0
        self.has_seed = False
        self.fetched_folder = ""
        self.allow_read: Sequence[str] = ()
        self.allow_write: Sequence[str] = ()
        self.max_command_bytes = DEFAULT_MAX_BYTES
        self.model_store: Any = None
        self.examines_models_apart = False
        self._cache = SlotCache()
        self._open: dict[tuple[str, int], Level] = {}

    def copy(self) -> BatchRunner:
        """Return a copy with the state stored so far and new workers, to run the next micro-batch a second time."""
        assert not self._open, "an interval is stored before it is copied"
        other = object.__new__(BatchRunner)
        other.__dict__.update(self.__dict__)
        other.states = {name: dict(stored) for name, stored in self.states.items()}
        other.wakes, other.offsets, other.records = dict(self.wakes), dict(self.offsets), dict(self.records)
        other.forget()
        return other

    def forget(self) -> None:
        """Continue in new workers, which have only the stored state."""
        self._cache = SlotCache()
        self.plan = dataclasses.replace(self.plan, graph=_with_own_functions(self.job.graph))

    def with_parallelism(self, parallelism: int) -> BatchRunner:
        """Return a copy at the same position with another number of tasks and no state."""
        other = self.copy()
        other.plan = dataclasses.replace(other.plan, parallelism=parallelism)
        other.states, other.wakes = {}, {}
        return other

    def wake(self) -> None:
        """Make every slot run in the next micro-batch, as in the first one of a run."""
        levels = self.plan.levels()
        self.wakes |= {(level[0].id, slot): 0 for level in levels for slot in self.plan.slot_of}

    @property
    def takes_answers(self) -> bool:
        """Whether the job has groups of models in which time decides, or lookups."""
        steps = [node for node in self.plan.graph.steps() if isinstance(node, ProcessNode)]
        return bool(self.plan.graph.lookups) or any(
            group.is_timed
            for node in steps
            for group in find_declarations(type(node.function), ModelGroup).values()
        )

    def run(
        self,
        inputs: Inputs,
        *,
        seed: int = 0,
        ends: bool = False,
        updates: Sequence[WatermarkUpdate] = (),
        stores: bool = True,
    ) -> BatchOutcome:
        """Run one micro-batch, or one round of an interval.

        Args:
            inputs: the input of each stream.
            seed: the seed of the order in which shuffled rows arrive; no result may depend on it.
            ends: whether event time ends in this micro-batch, as it does at the end of a bounded run.
            updates: watermark updates from sources, in addition to those that their records cause.
            stores: whether the state is stored afterwards; False if other rounds of the interval follow.

        """
        assert stores or self.plan.in_real_time, "a micro-batch stores its state"
        if self.takes_answers:
            # They recognise a repeated micro-batch by its time.
            self.now += MILLISECOND
        order = random.Random(seed)  # noqa: S311  # a repeatable order
        tasks = self._read(inputs)
        tasks += [list(watermark_rows(update, self.plan.first_key_groups)) for update in updates]
        if ends and self.plan.levels():
            # Without steps nothing waits for the end.
            chunk = SourceChunk("", pa.array([], pa.int64()))
            tasks.append(_rows(StartReader(self.plan).batches([chunk])))
        if self.has_seed:
            tasks.append([PackedRow(WAKE, group, 0, "", 0, b"") for group in self.plan.first_key_groups])
        levels = self.plan.levels()
        if levels:
            order.shuffle(tasks)
        count = self.plan.parallelism
        parts = [[row for task in tasks[n::count] for row in task] for n in range(count)]
        for number, level in enumerate(levels):
            if number:
                before = [node.id for node in levels[number - 1]]
                forwarder = Forwarder(self.plan, before)
                parts = [_rows(forwarder.batches(packed_batches(part, self.plan.slots))) for part in parts]
            parts = self._run_level([node.id for node in level], parts, order, stores=stores)
        outcome = self._write([node.id for node in levels[-1]] if levels else [], parts)
        self.has_seed = False
        self.number += 1
        self.records = outcome.records_so_far
        return outcome

    def _read(self, inputs: Inputs) -> list[list[PackedRow]]:
        tasks = []
        for name, runs in inputs.items():
            for partition, records in runs:
                start = self.offsets.get((name, partition), 0)
                self.offsets[name, partition] = start + len(records)
                if name == COMMANDS:
                    tasks.append(self._read_commands(partition, start, records))
                    continue
                node = self.plan.graph.nodes[f"source/{name}"]
                assert isinstance(node, SourceNode)
                made = source_tasks(self.plan, node, partition, start, records)
                tasks += [_rows(reader.batches(chunks, milliseconds_of(self.now))) for reader, chunks in made]
        return tasks

    def _read_commands(self, partition: str, start: int, raw: Sequence[bytes]) -> list[PackedRow]:
        allowed = AllowedPlaces.of(self.allow_read, self.allow_write)
        fetched = FetchedFiles(KeptInFolder(self.fetched_folder), 1 << 20, allowed)
        reader = CommandReader(
            self.plan, "json", self.max_command_bytes, fetched, examines_apart=self.examines_models_apart
        )
        offsets = pa.array(range(start, start + len(raw)), pa.int64())
        return _rows(reader.batches([SourceChunk(partition, offsets, raw=pa.array(raw, pa.binary()))]))

    def _run_level(
        self, step_ids: list[str], parts: list[list[PackedRow]], order: random.Random, *, stores: bool
    ) -> list[list[PackedRow]]:
        """Shuffle the rows and call each slot once, as Spark does: the rows of a slot come in any order."""
        shuffled = [row for part in parts for row in part]
        order.shuffle(shuffled)
        slots: dict[int, list[PackedRow]] = {}
        for row in shuffled:
            slot = int(self.plan.slots[row.key_group])
            slots.setdefault(slot, []).append(row._replace(body=bytes(row.body)))
        made: list[list[PackedRow]] = [[] for _ in parts]
        for partition, slot in enumerate(slot_keys(self.plan.parallelism)):
            place = step_ids[0], slot
            wake_ms = self.wakes.get(place)
            level = self._open.pop(place, None)
            if slot in slots or (wake_ms is not None and wake_ms <= (self.now - EPOCH) / MILLISECOND):
                if level is None:
                    level = Level(self.plan, step_ids, self._cache)
                    level.open(MemoryStates(self.states, slot), self.plan.slot_of[slot])
                made[partition] += level.run_round(slots.get(slot, []), self.now)
                self.wakes[place] = level.next_timer_ms
            if level is not None and stores:
                made[partition] += level.store()
            elif level is not None:
                self._open[place] = level
        return made

    def _write(self, last: list[str], parts: list[list[PackedRow]]) -> BatchOutcome:
        nodes = self.plan.graph.sinks()
        sinks: dict[str, Any] = {
            node.name: (MemorySink(), node.record_type, self.plan.sink_schema(node)) for node in nodes
        }
        sinks[DEAD_LETTERS] = (MemorySink(), DEAD_LETTER_TYPE, DEAD_LETTER_TYPE.schema)
        writer = Writer(self.plan, sinks, "lineage")
        forwarder = Forwarder(self.plan, last)
        reports: list[TaskReport] = []
        for number, part in enumerate(parts):
            rows = forwarder.rows(packed_batches(part, self.plan.slots))
            for batch in writer.batches(rows, self.number, number, attempt=0):
                reports += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        written = {
            name: Written(kind, [pair for task in sink.finished for pair in task.batches])
            for name, (sink, kind, _) in sinks.items()
            if sink.finished
        }
        return BatchOutcome(self.number, written, reports, self.records, list(sinks))


def _with_own_functions(graph: Graph) -> Graph:
    """Return the graph with copies of its steps' functions, as each worker has its own."""
    return Graph(
        {
            name: dataclasses.replace(node, function=copy.deepcopy(node.function))
            if isinstance(node, ProcessNode)
            else node
            for name, node in graph.nodes.items()
        },
        graph.lookups,
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> list[PackedRow]:
    return list(unpacked_rows(batches))


def check_parallelism(job: JobDescription, parallelism: int) -> None:
    """Raise JobDefinitionError for a number of tasks that a job cannot have."""
    if not 1 <= parallelism <= job.key_groups:
        raise JobDefinitionError(
            f"The parallelism is {parallelism}; it must be from 1 to {job.key_groups}, the number of key groups."
        )
