"""Writer: forward the output of steps to later steps, or write it to the sinks. Runs in workers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.base.garbage import no_cyclic_collection
from penstock.control.encoded_receipts import Batch, receipt_columns
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.record_blocks import KEY, MESSAGE_KEY, OFFSET, ORIGIN, Records
from penstock.records.small_columns import decimal_texts
from penstock.records.types import RecordType
from penstock.runtime.packed_rows import (
    COUNTS,
    DEAD_LETTERS,
    RECEIPT_COLUMNS,
    REPORTS,
    PackedRow,
    encode_receipt_columns,
    packed_batches,
    place_of,
    record_batch_of,
    reports_of,
    reports_row,
)
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.runtime.rejected_records import rejected_letters, write_cut
from penstock.runtime.router import Router, dead_letter_rows
from penstock.sinks.base import (
    ConnectingSink,
    LockingSink,
    RecordOrigin,
    RejectingTask,
    SendingTask,
    Sink,
    SinkTask,
    TaskContext,
    VersionedSink,
)
from penstock.state.key_index import key_values
from penstock.streams.graph import Port, ProcessNode, output_name

__all__ = [
    "REPORT_DDL",
    "REPORT_SCHEMA",
    "Forwarder",
    "OutputMeter",
    "Report",
    "Writer",
    "WriterTask",
    "unpacked_rows",
]

Report: TypeAlias = tuple[str, str, int, int, bytes]
"""A report to the driver, as a row of REPORT_SCHEMA."""

REPORT_DDL: Final = "kind STRING, name STRING, partition INT, total BIGINT, body BINARY"
REPORT_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("partition", pa.int32()),
        ("total", pa.int64()),
        ("body", pa.binary()),
    ]
)


class Forwarder:
    """A router of the output of the steps before it. All other rows pass unchanged."""

    def __init__(self, plan: JobPlan, step_ids: Sequence[str]) -> None:
        self._slots = plan.slots
        self._routes: dict[str, tuple[ProcessNode, str, pa.Schema, Router]] = {}
        for node in plan.graph.steps():
            if node.id not in step_ids:
                continue
            for output in node.outputs:
                destination = emission_destination(node.step, output)
                router = Router(plan, Port(node.id, output))
                self._routes[destination] = (node, output, plan.emission_schema(node, output), router)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Forward batches of packed rows."""
        return packed_batches(self.rows(batches), self._slots)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PackedRow]:
        """Forward packed rows, row by row."""
        return self.forward(unpacked_rows(batches), {})

    def forward(self, rows: Iterable[PackedRow], offsets: dict[str, int]) -> Iterator[PackedRow]:
        """Forward rows; `offsets` has what earlier calls for the same micro-batch have counted."""
        for row in rows:
            route = self._routes.get(row.destination)
            if route is None:
                yield row
                continue
            node, output, schema, router = route
            batch = record_batch_of(row, schema)
            # Offsets number the emissions of a key group, so that blocks can be sorted after the next shuffle.
            place = f"{row.destination}/{row.partition}"
            start = offsets.get(place, 0)
            offsets[place] = start + batch.num_rows
            stream = output_name(node.step, output)
            yield from router.route(_emitted(node.outputs[output], batch, row.partition, stream, start))


def _emitted(
    record_type: RecordType, batch: pa.RecordBatch, partition: str, stream: str, start: int
) -> Records:
    names = batch.schema.names
    keys = _to_message_keys(batch.column(KEY)) if KEY in names else None
    times = batch.column(EVENT_TIME) if EVENT_TIME in names else None
    origins = batch.column(ORIGIN) if ORIGIN in names else None
    batch = record_type.fields_of(batch)
    offsets = pa.array(np.arange(start, start + batch.num_rows))
    return Records(batch, stream, partition, offsets, message_keys=keys, times=times, origins=origins)


def _to_message_keys(keys: pa.Array) -> pa.Array:
    """Convert keys to message keys: text and bytes unchanged, numbers in decimal, several fields as a JSON list."""
    if pa.types.is_struct(keys.type):
        return pa.array([msgspec.json.encode(key) for key in key_values(keys)], pa.binary())
    if pa.types.is_integer(keys.type):
        return decimal_texts(keys)
    if not pa.types.is_binary(keys.type):
        keys = keys.cast(pa.string())
    return keys.cast(pa.binary())


def unpacked_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[PackedRow]:
    """Yield the rows of Arrow batches, without copying the bodies."""
    for batch in batches:
        *columns, bodies = batch.columns[1:]
        for i, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
            yield PackedRow._make((*values, bodies[i].as_buffer()))


def _encode_reports(row: PackedRow, batch_id: int) -> Iterator[Report]:
    """Encode the receipts of commands that a single slot reports; pass the other reports on to the driver."""
    with no_cyclic_collection():
        at, reports, applied = reports_of(bytes(row.body))
        alone = [report for report in reports if report.alone]
        columns = receipt_columns(alone, applied, Batch(batch_id, at))
    if columns:
        yield (RECEIPT_COLUMNS, row.partition, row.key_group, 0, encode_receipt_columns(columns))
    if len(alone) < len(reports):
        rest = [report for report in reports if not report.alone]
        yield (REPORTS, row.partition, row.key_group, 0, reports_row(row.partition, 0, at, rest).body)


@dataclass(frozen=True)
class Writer:
    """A writer of the rows for sinks, which reports the numbers of records written and counted.

    A failed task fails the micro-batch, and Spark runs it again. So a sink's task either finishes all of its records or
    is aborted.
    """

    plan: JobPlan
    sinks: Mapping[str, tuple[Sink, RecordType, pa.Schema]]
    lineage: str

    def origin_of(self, row: PackedRow, batch: pa.RecordBatch) -> RecordOrigin:
        """Return where the records of a row come from."""
        branch, stream, partition = place_of(row.partition)
        names = batch.column(ORIGIN) if ORIGIN in batch.schema.names else None
        # A row has the records of one source or step.
        names = None if names is None or names.null_count else names
        is_source = stream in self._source_names
        return RecordOrigin(branch, stream, partition, batch.column(OFFSET), is_source, names)

    @functools.cached_property
    def _source_names(self) -> frozenset[str]:
        return frozenset(source.name for source in self.plan.graph.sources())

    def connect(self) -> None:
        """Let sinks connect before the first records for them come. Dead letters are few."""
        for name, (sink, _, _) in self.sinks.items():
            if name != DEAD_LETTERS and isinstance(sink, ConnectingSink):
                sink.connect()

    @property
    def commits_in_tasks(self) -> bool:
        """Whether tasks make records visible permanently, so that a replay must give each task the same ones."""
        return any(sink.commits_in_tasks for sink, _, _ in self.sinks.values())

    @property
    def holds_locks(self) -> bool:
        """Whether another task may have to wait for a lock until the output of a task is committed."""
        return any(isinstance(sink, LockingSink) and sink.holds_locks for sink, _, _ in self.sinks.values())

    @property
    def needs_versions(self) -> bool:
        """Whether a sink needs a version for each micro-batch."""
        return any(isinstance(sink, VersionedSink) for sink, _, _ in self.sinks.values())

    def batches(
        self, rows: Iterable[PackedRow], batch_id: int, partition: int, attempt: int, version: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Write the rows of one partition and yield the reports for the driver."""
        task = WriterTask(self, batch_id, partition, attempt, version=version)
        try:
            task.write(rows)
            yield task.finish()
        except BaseException:
            task.abort()
            raise


class OutputMeter(Protocol):
    """A meter of the output of a task, with reports of its own."""

    def add_output(self, sink: str, records: int, seconds: float) -> None:
        """Add records that a sink has taken, and how many seconds it took."""

    def reports(self) -> Iterable[Report]:
        """Return the reports for the driver."""


class WriterTask:
    """The writing of one partition of one micro-batch: `write`, then `finish`, or `abort` after a failure."""

    def __init__(
        self,
        writer: Writer,
        batch_id: int,
        partition: int,
        attempt: int,
        meter: OutputMeter | None = None,
        version: int = 0,
    ) -> None:
        self._writer: Final = writer
        self._context: Final = TaskContext(batch_id, partition, attempt, writer.lineage, version)
        self._tasks: Final[dict[str, SinkTask]] = {}
        self._finished: Final[dict[str, bytes]] = {}
        self._counts: Final[dict[str, int]] = {}
        self._reports: Final[list[Report]] = []
        self._meter: Final = meter

    def write(self, rows: Iterable[PackedRow]) -> None:
        """Write rows to their sinks, and keep the reports among them."""
        for row in rows:
            if row.destination == COUNTS:
                self._reports.append(tuple(msgspec.msgpack.decode(row.body)))
            elif row.destination == REPORTS:
                self._reports.extend(_encode_reports(row, self._context.batch_id))
            else:
                self._write(row)

    def finish_visible(self) -> None:
        """Finish the sinks whose records are visible as soon as they are written.

        Sinks that see their records arrive are left to `finish_arrived`.
        """
        for name, task in self._tasks.items():
            if not self._writer.sinks[name][0].exactly_once and not isinstance(task, SendingTask):
                self._finished[name] = task.finish()

    def finish_arrived(self, *, waits: bool) -> None:
        """Finish the sinks to which all records have arrived; with `waits`, also the others."""
        for name, task in self._tasks.items():
            if name not in self._finished and isinstance(task, SendingTask) and (waits or task.has_arrived()):
                self._finished[name] = task.finish()

    def finish(self) -> pa.RecordBatch:
        """Finish the sinks, and return the reports for the driver."""
        for name, task in self._tasks.items():
            if name not in self._finished:
                self._finished[name] = task.finish()
        partition = self._context.partition
        out = [("out", name, partition, self._counts[name], self._finished[name]) for name in self._tasks]
        measured = [] if self._meter is None else self._meter.reports()
        reports = [*self._reports, *out, *measured]
        columns = zip(*reports, strict=True) if reports else [[]] * len(REPORT_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, REPORT_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=REPORT_SCHEMA)

    def abort(self) -> None:
        """Undo the writes that can be undone. Never raises."""
        for task in self._tasks.values():
            task.abort()

    def _write(self, row: PackedRow) -> None:
        name = DEAD_LETTERS if row.destination == DEAD_LETTERS else row.destination.removeprefix("sink/")
        sink, record_type, schema = self._writer.sinks[name]
        if name not in self._tasks:
            self._tasks[name] = sink.task(self._context, record_type)
            self._counts[name] = 0
        batch = record_batch_of(row, schema)
        keys = batch.column(MESSAGE_KEY) if MESSAGE_KEY in schema.names else None
        task, before = self._tasks[name], self._counts[name]
        if isinstance(task, RejectingTask) and OFFSET in schema.names:
            task.come_from(self._writer.origin_of(row, batch))
        begun_s = time.perf_counter()
        task.write(record_type.fields_of(batch), keys)
        seconds = time.perf_counter() - begun_s
        self._counts[name] += batch.num_rows
        self._reject(name, row, batch)
        if self._meter is not None:
            self._meter.add_output(name, self._counts[name] - before, seconds)

    def _reject(self, name: str, row: PackedRow, batch: pa.RecordBatch) -> None:
        """Write the records that the sink rejected as dead letters."""
        task = self._tasks[name]
        if isinstance(task, RejectingTask) and (rejections := task.rejections()):
            if name == DEAD_LETTERS:
                write_cut(task, rejections)
                return
            self._counts[name] -= len(rejections)
            for letters in dead_letter_rows(rejected_letters(row, batch, rejections), self._writer.plan):
                self._write(letters)
