"""The query: a job's plan as one Spark streaming query, from sources through keyed levels to the sinks."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.realtime.slot_engine import CoordinatorAddress, JobInRealTime
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.plan import JobPlan
from penstock.runtime.start_signal import START_NODE
from penstock.runtime.writer import REPORT_DDL, Writer, unpacked_rows
from penstock.sources.base import HeldLog
from penstock.sources.batch_limits import BatchLimit
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.starts import StartLog
from penstock.spark.carried_bodies import folder_for_bodies, remove_bodies
from penstock.spark.interval_rows import interval_reports
from penstock.spark.keyed import NumberedWriter, run_level
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.log_source import LogStart, log_stream
from penstock.spark.tasks import WRITE_VERSION

__all__ = ["Query", "start_query"]

_WITHOUT_DATA: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
# A job with a clock has micro-batches even while no data comes. After an empty one it rests for this long.
_REST_S: Final = 0.5
# Starting a task takes longer than reading this many records of a topic, even with functions of a millisecond each.
_FEW_RECORDS: Final = 128

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Query:
    """The arguments to start the query. With `holds_data` the data streams are held, and commands continue.

    With `ends`, time ends for the steps in its first micro-batch. The micro-batch that Spark calls 0 has the number
    `first_batch`, and `positions` has the streams' start positions in it, if not those of their bindings. `limits` has
    the limits of topics that follow the size of their records. With `coordinator` the query runs in
    real time: its tasks stay for an interval, and follow the coordinator. `next_version` gives the version of what a
    micro-batch writes. `bodies` is the folder for bodies that go from task to task in files, if any do; it is made when
    the query starts.
    """

    plan: JobPlan
    sources: list[BoundSource]
    writer: Writer
    checkpoint: str
    parallelism: int
    bounded: bool
    batch_interval_ms: int
    before_batch: Callable[[int], None]
    on_batch: Callable[[int, list[Any]], None]
    on_rest: Callable[[int, float], None]
    holds_data: bool = False
    ends: bool = False
    first_batch: int = 0
    positions: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, BatchLimit] = field(default_factory=dict)
    coordinator: CoordinatorAddress | None = None
    next_version: Callable[[], int] = lambda: 0
    bodies: str = ""


def start_query(spark: SparkSession, query: Query) -> StreamingQuery:
    """Compile and start the query.

    Each micro-batch calls `before_batch` before any record is read, and `on_batch` with its reports before it is
    committed. If the query then rests, it calls `on_rest` with the number of seconds. An exception from any of them
    ends the query.
    """
    if query.coordinator is None:
        bodies = folder_for_bodies(spark.sparkContext) if query.plan.levels() else ""
        query = dataclasses.replace(query, bodies=bodies)
        reports = _compile(spark, query)
    else:
        reports = _compile_interval(spark, query)
    trigger: dict[str, Any] = {"processingTime": f"{query.batch_interval_ms} milliseconds"}
    if query.bounded:
        trigger = {"availableNow": True}

    has_clock = query.plan.has_clock

    def on_batch(batch: DataFrame, batch_id: int) -> None:
        number = query.first_batch + batch_id
        query.before_batch(number)
        spark.sparkContext.setLocalProperty(WRITE_VERSION, str(query.next_version()))
        try:
            rows = batch.collect()
        finally:
            remove_bodies(query.bodies)
        query.on_batch(number, rows)
        if has_clock and not query.bounded and not rows and query.coordinator is None:
            # Otherwise Spark would start the next micro-batch at once, although no data has come.
            query.on_rest(number, _REST_S)
            time.sleep(_REST_S)

    stream = reports.writeStream.foreachBatch(on_batch).option("checkpointLocation", query.checkpoint)
    # In a bounded run Spark would never stop, since it does not check whether any timer is pending.
    spark.conf.set(_WITHOUT_DATA, str(has_clock and not query.bounded).lower())
    return stream.trigger(**trigger).start()


def _compile(spark: SparkSession, query: Query) -> DataFrame:
    rows = functools.reduce(DataFrame.union, [_packed_rows(spark, source, query) for source in query.sources])
    sinks = NumberedWriter(query.writer, query.first_batch)
    levels = query.plan.levels()
    for number, level in enumerate(levels, 1):
        rows = run_level(rows, query.plan, level, sinks if number == len(levels) else None)
    if levels:
        return rows
    # The records that a task reads depend on the current executors and files. If tasks commit, each must have the same
    # rows in the same order in every replay, as after a keyed level.
    sorts = query.writer.commits_in_tasks
    if sorts:
        rows = rows.repartition(query.parallelism, "slot")
    return rows.mapInArrow(_write(sinks, sorts=sorts), REPORT_DDL)


def _compile_interval(spark: SparkSession, query: Query) -> DataFrame:
    assert query.coordinator is not None
    job = JobInRealTime(query.plan, tuple(query.sources), query.writer, query.coordinator, query.first_batch)
    return interval_reports(spark, job)


def _packed_rows(spark: SparkSession, source: BoundSource, query: Query) -> DataFrame:
    name, log = source.node.name, source.log
    if isinstance(log, KafkaLog) and name in query.limits:
        log = dataclasses.replace(log, learned_limit=query.limits[name])
    if query.ends and source.node is START_NODE:
        log = StartLog(ends=True)
    elif query.holds_data and not source.node.is_control:
        log = HeldLog(log)
    known = query.positions.get(name)
    offset = log.encode(log.beginning() if known is None else log.decode(known))
    wakes = query.plan.seed is not None
    start = LogStart(offset, query.parallelism, wakes, bodies=query.bodies)
    if isinstance(log, KafkaLog):
        start = start._replace(few=_FEW_RECORDS, claims=bool(query.bodies))
    return log_stream(spark, log, source.reader, start)


def _write(sinks: NumberedWriter, *, sorts: bool) -> BatchFunction:
    sealed = Sealed(sinks)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = unpacked_rows(batches)
        if sorts:
            # Bodies must be bytes to be compared.
            rows = iter(sorted(row._replace(body=bytes(row.body)) for row in rows))
        return sealed.open().write(rows)

    return write
