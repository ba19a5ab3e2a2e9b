"""Intervals in Spark: one micro-batch is one interval, whose tasks stay, each with the state of its slot."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.machine.priority import yield_cores
from penstock.realtime.interval_task import run_interval
from penstock.realtime.slot_engine import JobInRealTime
from penstock.runtime.slots import slot_keys
from penstock.runtime.writer import REPORT_DDL
from penstock.spark.engine_process import engines_live_apart, start_engine_apart
from penstock.spark.keyed import SparkStates
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.tasks import spark_batch

__all__ = ["interval_reports"]


def interval_reports(spark: SparkSession, job: JobInRealTime) -> DataFrame:
    """Return the reports of the tasks of each interval."""
    count = job.plan.parallelism
    # The source yields a row for each slot in each micro-batch, so that another always follows. It needs no process.
    ticks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", count)
        .option("numPartitions", 1)
        .load()
    )
    keys = functions.array(*(functions.lit(key) for key in slot_keys(count)))
    slot = functions.element_at(keys, (functions.col("value") % count + 1).cast("int")).alias("slot")
    rows = ticks.select(slot)
    steps = [node.id for node in job.plan.graph.steps()]
    if not steps:
        return rows.repartition(count, "slot").mapInArrow(_without_state(job), REPORT_DDL)
    return rows.groupBy("slot").transformWithState(
        IntervalProcessor(job, steps), outputStructType=REPORT_DDL, outputMode="Append", timeMode="None"
    )


class IntervalProcessor(StatefulProcessor):
    """A processor that serves the state of its slot for an interval. Its Spark state is one map for each step."""

    def __init__(self, job: JobInRealTime, step_ids: list[str]) -> None:
        self._sealed: Final = Sealed(job)
        self._step_ids: Final = step_ids

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the states. Spark calls this in every task, and once in the driver."""
        self._states = SparkStates.of(handle, self._step_ids)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803  # the signature is PySpark's
        """Serve the engine of the slot until the interval ends."""
        (slot,) = key
        # Spark must have sent all rows of the slot before it serves its state.
        for _ in rows:
            pass
        for batch in _reports(self._sealed, slot, self._states):
            for report in batch.to_pylist():
                yield Row(**report)

    def close(self) -> None:
        """Do nothing. Spark calls this at the end of the task."""


def _reports(
    sealed: Sealed[JobInRealTime], slot: int, states: SparkStates | None
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    if engines_live_apart():
        # What a task does can wait, and the records of its engine cannot.
        yield_cores(os.getpid())
    job = sealed.open()
    number = slot_keys(job.plan.parallelism).index(slot)
    start = functools.partial(start_engine_apart, sealed)
    attempt = context.taskAttemptId()
    place = job.coordinator
    return run_interval(place, spark_batch(), number, attempt, states, job.plan.slot_of[slot], start)


def _without_state(job: JobInRealTime) -> Any:
    sealed = Sealed(job)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slots = [slot for batch in batches for slot in batch.column(0).to_pylist()]
        for slot in slots:
            yield from _reports(sealed, slot, None)

    return run
