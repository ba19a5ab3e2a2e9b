"""Keyed levels in Spark: each level is one transformWithState, with one call of Python for each of its tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, functions
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.base.instants import instant_of
from penstock.runtime.level import Level
from penstock.runtime.packed_rows import PACKED_DDL, PackedRow, encode_body
from penstock.runtime.plan import JobPlan
from penstock.runtime.writer import REPORT_DDL, Forwarder, Writer
from penstock.spark.carried_bodies import CarriedBodies
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.tasks import spark_batch, write_version
from penstock.streams.graph import ProcessNode

__all__ = ["NumberedWriter", "SparkStates", "run_level"]


def run_level(
    rows: DataFrame, plan: JobPlan, level: list[ProcessNode], sinks: NumberedWriter | None = None
) -> DataFrame:
    """Run a level: replace the packed rows for its steps by the packed rows of their output. Other rows pass unchanged.

    These are packed rows for later levels. With `sinks`, the level is the last: all rows are written, and these are the
    reports of that.
    """
    # The time of the micro-batch is in Spark's offset log, so that a replay has the same time.
    rows = rows.withColumn("now", functions.unix_millis(functions.current_timestamp()))
    return rows.groupBy("slot").transformWithState(
        LevelProcessor(plan, [node.id for node in level], sinks),
        outputStructType=PACKED_DDL if sinks is None else REPORT_DDL,
        outputMode="Append",
        timeMode="ProcessingTime" if any(map(plan.wants_clock, level)) else "None",
    )


class NumberedWriter(NamedTuple):
    """A writer, and the number of the micro-batch that Spark calls 0."""

    writer: Writer
    first_batch: int

    def write(self, rows: Iterable[PackedRow]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task, and yield the reports."""
        task = TaskContext.get()
        assert task is not None
        number = self.first_batch + spark_batch()
        return self.writer.batches(rows, number, task.partitionId(), task.taskAttemptId(), write_version())


# As types, since Spark would make the JVM parse text in every task.
_NAME: Final = StructType([StructField("name", StringType())])
_CONTENT: Final = StructType([StructField("content", BinaryType())])


class LevelProcessor(StatefulProcessor):
    """A processor that runs the steps of a level. Its Spark state is one map per step and slot, which holds a log.

    It also processes its output: a separate worker for that would take a third of the time of a small micro-batch.
    """

    def __init__(self, plan: JobPlan, step_ids: list[str], sinks: NumberedWriter | None) -> None:
        self._plan: Final = Sealed(plan)
        self._output: Final = Sealed((Forwarder(plan, step_ids), sinks))
        self._step_ids: Final = step_ids

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the states. Spark calls this in every task, and once in the driver."""
        self._handle = handle
        self._states = SparkStates.of(handle, self._step_ids)

    @functools.cached_property
    def _level(self) -> Level:
        return Level(self._plan.open().of_batch(spark_batch()), self._step_ids)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  # the signature is PySpark's
        """Run a slot. Spark calls this with all packed rows of the slot."""
        (slot,) = key
        first = next(rows)
        with CarriedBodies() as bodies:
            packed = (
                PackedRow._make((*row[1:-2], bodies.of(row.body))) for row in itertools.chain([first], rows)
            )
            yield from self._run(slot, packed, first.now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  # the signature is PySpark's
        """Run a slot without rows. Spark calls this when a timer has expired and no rows have come before it."""
        (slot,) = key
        yield from self._run(slot, [], timerValues.getCurrentProcessingTimeInMs())

    def _run(self, slot: int, packed: Iterable[PackedRow], now_ms: int) -> Iterator[Row]:
        """Run the level on a slot, and make Spark call again when the next timer is due."""
        level = self._level
        forwarder, sinks = self._output.open()
        if sinks is not None:
            sinks.writer.connect()
        emitted = level.run(packed, self._states, instant_of(now_ms), level.slot_of(slot))
        rows = forwarder.forward(emitted, {})
        yield from self._packed(rows) if sinks is None else _reports(sinks.write(rows))
        if level.wants_clock:
            self._set_timer(level.next_timer_ms, now_ms)

    def _packed(self, rows: Iterable[PackedRow]) -> Iterator[Row]:
        slots = self._plan.open().slots
        for row in rows:
            # Spark's row serializer requires bytes.
            body = bytes(encode_body(row).body)
            yield Row(slot=int(slots[row.key_group]), **row._replace(body=body)._asdict())

    def _set_timer(self, at_ms: int | None, now_ms: int) -> None:
        # Spark calls expired timers in this same micro-batch, in which everything due has run already.
        wanted = set() if at_ms is None else {max(at_ms, now_ms + 1)}
        known = set(self._handle.listTimers())
        for expiry in sorted(known - wanted):
            self._handle.deleteTimer(expiry)
        for expiry in wanted - known:
            self._handle.registerTimer(expiry)

    def close(self) -> None:
        """Do nothing. Spark calls this at the end of the task."""


def _reports(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        for report in batch.to_pylist():
            yield Row(**report)


class SparkStates:
    """The stored states of steps, in Spark."""

    def __init__(self, states: dict[str, MapState]) -> None:
        self._entries: Final = {step_id: _Entries(state) for step_id, state in states.items()}

    @classmethod
    def of(cls, handle: StatefulProcessorHandle, step_ids: Iterable[str]) -> Self:
        """Open the states of steps."""
        return cls({name: handle.getMapState(name, _NAME, _CONTENT) for name in step_ids})

    def entries(self, step_id: str) -> _Entries:
        """Return the stored entries of a step."""
        return self._entries[step_id]


class _Entries:
    """The stored state of one step: bytes by name, in a Spark map."""

    def __init__(self, state: MapState) -> None:
        self._state: Final = state

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist."""
        found = self._state.getValue((name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""
        self._state.updateValue((name,), (content,))

    def remove(self, name: str) -> None:
        """Remove a name."""
        self._state.removeKey((name,))
