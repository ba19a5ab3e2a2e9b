"""Runs a whole job in this process, as Spark would: tasks, shuffles, levels, sinks; without Spark."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from memory_entries import MemoryEntries, Stored

import penstock as ps
from penstock.control.encoded_receipts import Batch, BatchReceipts, encode_receipts
from penstock.control.receipts import Receipt, StepTime
from penstock.objects.allowed import AllowedPlaces
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.operators.watermarks import WatermarkUpdate
from penstock.records.types import RecordType
from penstock.runtime.command_reader import CommandReader
from penstock.runtime.level import Level
from penstock.runtime.packed_rows import (
    DEAD_LETTER_TYPE,
    DEAD_LETTERS,
    RECEIPT_COLUMNS,
    REPORTS,
    TIME,
    PackedRow,
    decode_receipt_columns,
    packed_batches,
    reports_of,
    time_of,
    watermark_rows,
)
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.router import Router
from penstock.runtime.slots import slot_keys
from penstock.runtime.start_signal import StartReader
from penstock.runtime.writer import Forwarder, Writer, unpacked_rows
from penstock.sinks.base import TaskContext
from penstock.sources.base import SourceChunk
from penstock.sources.fetched import FetchedFiles
from penstock.streams.graph import COMMANDS, Port, SourceNode

MILLISECOND = dt.timedelta(milliseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)

# What a stream brings in a micro-batch: runs of records, each of one source partition. Commands come as their JSON.
Input = Mapping[str, Sequence[tuple[str, Sequence[Any]]]]


@dataclass
class MemoryTask:
    """Keeps what one task writes."""

    sink: MemorySink
    context: TaskContext
    batches: list[tuple[pa.RecordBatch, pa.Array | None]] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        if self.sink.fails_at_write:
            raise OSError("the disk is full")
        self.batches.append((batch, keys))

    def finish(self) -> bytes:
        if self.sink.fails_at_finish:
            raise OSError("the disk is full")
        self.sink.finished.append(self)
        return f"partition {self.context.partition}".encode()

    def abort(self) -> None:
        self.sink.aborted.append(self)


@dataclass
class MemorySink:
    """A sink that keeps its tasks."""

    exactly_once: bool = True
    commits_in_tasks: bool = False
    fails_at_write: bool = False
    fails_at_finish: bool = False
    finished: list[MemoryTask] = field(default_factory=list)
    aborted: list[MemoryTask] = field(default_factory=list)

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        pass

    def task(self, context: TaskContext, record_type: RecordType) -> MemoryTask:
        return MemoryTask(self, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        pass


@dataclass
class Written:
    """What a sink got in one micro-batch, in the order of its partitions."""

    record_type: RecordType
    batches: list[tuple[pa.RecordBatch, pa.Array | None]]

    @property
    def records(self) -> list[Any]:
        return [record for batch, _ in self.batches for record in self.record_type.objects(batch)]

    @property
    def keys(self) -> list[bytes | None]:
        return [key for _, keys in self.batches if keys is not None for key in keys.to_pylist()]

    @property
    def data(self) -> list[tuple[bytes, list[bytes | None] | None]]:
        """Every byte that was written."""
        return [(batch.serialize().to_pybytes(), keys and keys.to_pylist()) for batch, keys in self.batches]


@dataclass
class BatchResult:
    """What came of one micro-batch."""

    sinks: dict[str, Written]
    reports: list[tuple[str, str, int, int, bytes]]

    @property
    def receipts(self) -> list[Receipt]:
        """What became of the commands."""
        columns = [
            some
            for kind, _, _, _, body in self.reports
            if kind == RECEIPT_COLUMNS
            for some in decode_receipt_columns(body)
        ]
        slots = [reports_of(body) for kind, _, _, _, body in self.reports if kind == REPORTS]
        reports = [report for _, some, _ in slots for report in some]
        batch = Batch(0, max((at for at, _, _ in slots), default=EPOCH), self.counts("records"))
        return BatchReceipts.of(columns, encode_receipts(reports, batch)).receipts

    def records(self, sink: str) -> list[Any]:
        return self.sinks[sink].records if sink in self.sinks else []

    @property
    def dead_letters(self) -> list[DeadLetter]:
        return self.records(DEAD_LETTERS)

    @property
    def data(self) -> dict[str, Any]:
        return {name: written.data for name, written in self.sinks.items()}

    def times(self, step: str) -> set[StepTime]:
        """How far the slots of a step have told to be, and what holds them."""
        return {time_of(body) for kind, name, _, _, body in self.reports if (kind, name) == (TIME, step)}

    def watermarks(self, step: str, other: BatchResult) -> tuple[set[int | None], set[int | None]]:
        """The watermarks of the step's slots here and in another result; of none unless a slot ran in both."""
        one, more = ({time.watermark_ms for time in result.times(step)} for result in (self, other))
        return (one, more) if one and more else (set(), set())

    def counts(self, kind: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for report_kind, name, _, total, _ in self.reports:
            if report_kind == kind:
                found[name] = found.get(name, 0) + total
        return found


class _States:
    """What the steps of one slot keep between micro-batches."""

    def __init__(self, stored: dict[tuple[str, int], Stored], slot: int) -> None:
        self._stored = stored
        self._slot = slot

    def entries(self, step_id: str) -> MemoryEntries:
        return MemoryEntries(self._stored.setdefault((step_id, self._slot), {}))


class InProcessJob:
    """A job at work. `seed` decides in which order shuffled rows arrive; nothing may depend on it."""

    def __init__(
        self,
        job: ps.Job,
        *,
        partitions: int = 1,
        strict: bool = False,
        keyed_sinks: Iterable[str] = (),
        raw_streams: Iterable[str] = (),
        topics: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        job.check()
        self.job = job
        self.plan = JobPlan(
            job.graph,
            job.key_groups,
            frozenset(raw_streams),
            frozenset(keyed_sinks),
            strict,
            partitions,
            partitions=topics or {},
        )
        self.states: dict[tuple[str, int], Stored] = {}
        self.wakes: dict[tuple[str, int], int | None] = {}
        self.now = NOW
        self.folder = ""
        self.allow_read: Sequence[str] = ()
        self.allow_write: Sequence[str] = ()
        self.max_command_bytes = 10_000
        self._partitions = partitions
        self._offsets: dict[tuple[str, str], int] = {}
        self._batch_id = 0

    def copy(self) -> InProcessJob:
        """The job as it is now, to run the next micro-batch once more."""
        other = object.__new__(InProcessJob)
        other.__dict__.update(self.__dict__)
        other.states = {name: dict(stored) for name, stored in self.states.items()}
        other.wakes = dict(self.wakes)
        other._offsets = dict(self._offsets)
        return other

    def run(
        self,
        inputs: Input,
        *,
        seed: int = 0,
        ends: bool = False,
        updates: Sequence[WatermarkUpdate] = (),
    ) -> BatchResult:
        """One micro-batch, with `ticks` besides those of its records; with `ends` time ends in it."""
        order = random.Random(seed)
        tasks = self._read(inputs)
        tasks += [list(watermark_rows(update, self.plan.first_key_groups)) for update in updates]
        if ends:
            chunk = SourceChunk("", pa.array([], pa.int64()))
            tasks.append(_rows(StartReader(self.plan).batches([chunk])))
        if self.plan.levels():
            order.shuffle(tasks)
        parts = [
            [row for task in tasks[n :: self._partitions] for row in task] for n in range(self._partitions)
        ]
        levels = self.plan.levels()
        for number, level in enumerate(levels):
            if number:
                before = [node.id for node in levels[number - 1]]
                forwarder = Forwarder(self.plan, before)
                parts = [_rows(forwarder.batches(packed_batches(part, self.plan.slots))) for part in parts]
            parts = self._level([node.id for node in level], parts, order)
        return self._write([node.id for node in levels[-1]] if levels else [], parts)

    def _read(self, inputs: Input) -> list[list[PackedRow]]:
        tasks = []
        for name, runs in inputs.items():
            if name == COMMANDS:
                tasks += [self._read_commands(partition, raw) for partition, raw in runs]
                continue
            router = Router(self.plan, Port(f"source/{name}"))
            node = self.plan.graph.nodes[f"source/{name}"]
            assert isinstance(node, SourceNode)
            for partition, objects in runs:
                start = self._offsets.get((name, partition), 0)
                self._offsets[name, partition] = start + len(objects)
                offsets = pa.array(range(start, start + len(objects)), pa.int64())
                batch = node.record_type.batch(objects)
                if name in self.plan.raw_streams:
                    raw = pa.array([msgspec.json.encode(item) for item in objects], pa.binary())
                    records = Records(batch, name, partition, offsets, raw)
                    tasks.append(_rows(packed_batches(router.route(records), self.plan.slots)))
                    continue
                chunk = SourceChunk(partition, offsets, batch=batch)
                reader = StreamReader(self.plan, node, None)
                tasks.append(_rows(reader.batches([chunk], (self.now - EPOCH) // MILLISECOND)))
        return tasks

    def _read_commands(self, partition: str, raw: Sequence[bytes]) -> list[PackedRow]:
        start = self._offsets.get((COMMANDS, partition), 0)
        self._offsets[COMMANDS, partition] = start + len(raw)
        fetched = FetchedFiles(self.folder, 1 << 20, AllowedPlaces.of(self.allow_read, self.allow_write))
        reader = CommandReader(self.plan, "json", self.max_command_bytes, fetched)
        offsets = pa.array(range(start, start + len(raw)), pa.int64())
        chunk = SourceChunk(partition, offsets, raw=pa.array(raw, pa.binary()))
        return _rows(reader.batches([chunk]))

    def _level(
        self, step_ids: list[str], parts: list[list[PackedRow]], order: random.Random
    ) -> list[list[PackedRow]]:
        """The shuffle, and one call a slot as Spark makes them: the rows of each in any order."""
        shuffled = [row for part in parts for row in part]
        order.shuffle(shuffled)
        slots: dict[int, list[PackedRow]] = {}
        for row in shuffled:
            slots.setdefault(int(self.plan.slots[row.key_group]), []).append(
                row._replace(body=bytes(row.body))
            )
        made: list[list[PackedRow]] = [[] for _ in range(self._partitions)]
        level = Level(self.plan, step_ids)
        for partition, slot in enumerate(slot_keys(self._partitions)):
            wake_ms = self.wakes.get((step_ids[0], slot))
            if slot in slots or (wake_ms is not None and wake_ms <= (self.now - EPOCH) / MILLISECOND):
                states = _States(self.states, slot)
                made[partition] += level.run(slots.get(slot, []), states, self.now, self.plan.slot_of[slot])
                self.wakes[step_ids[0], slot] = level.next_timer_ms
        return made

    def _write(self, last: list[str], parts: list[list[PackedRow]]) -> BatchResult:
        sinks: dict[str, tuple[MemorySink, RecordType, pa.Schema]] = {
            node.name: (MemorySink(), node.record_type, self.plan.sink_schema(node))
            for node in self.plan.graph.sinks()
        }
        sinks[DEAD_LETTERS] = (MemorySink(), DEAD_LETTER_TYPE, DEAD_LETTER_TYPE.schema)
        writer = Writer(self.plan, sinks, "lineage")
        forwarder = Forwarder(self.plan, last)
        reports: list[tuple[str, str, int, int, bytes]] = []
        for number, part in enumerate(parts):
            rows = forwarder.rows(packed_batches(part, self.plan.slots))
            for batch in writer.batches(rows, self._batch_id, number, attempt=0):
                reports += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        self._batch_id += 1
        written = {
            name: Written(kind, [pair for task in sink.finished for pair in task.batches])
            for name, (sink, kind, _) in sinks.items()
            if sink.finished
        }
        return BatchResult(written, reports)


def _rows(batches: Iterable[pa.RecordBatch]) -> list[PackedRow]:
    return list(unpacked_rows(batches))


def as_tuples(records: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Dataclass records as tuples, to compare and sort them."""
    return [dataclasses.astuple(record) for record in records]
