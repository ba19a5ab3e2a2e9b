"""Log sources in Spark: a `ReplayableLog` as a Spark streaming source. Its tasks read, decode and pack in one go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from penstock.runtime.command_reader import CommandReader
from penstock.runtime.packed_rows import PACKED_DDL
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.seed import wake_slots
from penstock.runtime.start_signal import StartReader
from penstock.sources.base import ReplayableLog, Split
from penstock.sources.file_source import share
from penstock.sources.offset_fields import PLANNED
from penstock.spark.carried_bodies import carry_bodies
from penstock.spark.claimed_shares import claim_share
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.tasks import is_first_batch

if TYPE_CHECKING:
    # A job without topics needs no Kafka client in its workers.
    from penstock.sources.kafka_log import KafkaLog

__all__ = ["LogStart", "log_stream"]


class LogStart(NamedTuple):
    """The start position of a log without a checkpoint, and the number of tasks that read it.

    With `wakes`, the first micro-batch always has a task, which wakes the slots of a job with a seed. Up to `few`
    records in a micro-batch are read by one task. What tasks read goes to others in files of the folder for `bodies`,
    if there is one. With `claims`, the log is of topics, which the tasks divide there.
    """

    offset: dict[str, Any]
    parallelism: int
    wakes: bool
    few: int = 0
    bodies: str = ""
    claims: bool = False


def log_stream(
    spark: SparkSession,
    log: ReplayableLog[Any],
    reader: StreamReader | CommandReader | StartReader,
    start: LogStart,
) -> DataFrame:
    """Return the packed rows of a log source as a streaming DataFrame."""
    stream = reader.node.name
    # Spark pickles the class to its planner and its workers, so the properties of the stream are in the class.
    kind = type(
        "LogDataSource",
        (_LogDataSource,),
        {"stream": stream, "log": log, "reader_of_stream": Sealed(reader), "start": start},
    )
    _register(spark, kind)
    return spark.readStream.format(_format_name(stream)).load()


def _register(spark: SparkSession, kind: type[DataSource]) -> None:
    """Make a kind of source known to the session, without Spark's look for another one of that name.

    When Spark finds none, it makes an exception that it then ignores. For the text of the first one in a JVM it parses
    all texts of errors that it has, some 500 KB of JSON.
    """
    context = spark.sparkContext
    jvm: Any = context._jvm  # noqa: SLF001  # nothing public has the JVM
    wrapped = _wrap_function(context, kind)
    source = jvm.org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource(wrapped)
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001  # as above
    manager.registerDataSource(kind.name(), source)


def _format_name(stream: str) -> str:
    return f"penstock_{stream}"


class _LogDataSource(DataSource):
    """The source of one stream."""

    stream: str
    log: ReplayableLog[Any]
    reader_of_stream: Sealed[StreamReader | CommandReader | StartReader]
    start: LogStart

    @classmethod
    def name(cls) -> str:
        return _format_name(cls.stream)

    def schema(self) -> str:
        # Spark reads it as a type first. For bare columns it would make an exception before it reads them as such.
        return f"struct<{PACKED_DDL}>"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # the name is PySpark's
        return _LogStreamReader(self.log, self.reader_of_stream, self.start)


class _SplitPartition(InputPartition):
    """The splits that one task reads, and the time when they were planned, in milliseconds since 1970.

    If there are several `shares`, the task claims one of them.
    """

    def __init__(self, shares: list[list[Split]], now_ms: int) -> None:
        super().__init__(shares)
        self.shares = shares
        self.now_ms = now_ms


class _LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions of the log as Spark offsets."""

    def __init__(
        self,
        log: ReplayableLog[Any],
        reader: Sealed[StreamReader | CommandReader | StartReader],
        start: LogStart,
    ) -> None:
        self._log = log
        self._reader = reader
        self._start = start
        self._parallelism = start.parallelism
        self._done: Any = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the name is PySpark's
        return self._start.offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # the name is PySpark's
        # The log has a limit, which it applies unless the limit given is "all".
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # the name is PySpark's
        limited = not isinstance(limit, ReadAllAvailable)
        before = self._log.decode(start)
        position = self._log.latest(before, limited=limited)
        if position == before:
            return start
        # The time is in the offset log, so that a replay has the same time.
        return {**self._log.encode(position), PLANNED: time.time_ns() // 1_000_000}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # the name is PySpark's
        self._log.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        splits = self._log.splits(self._log.decode(start), self._log.decode(end), self._parallelism)
        now_ms = end.get(PLANNED, 0)
        is_little = sum(split.end - split.start for split in splits) <= self._start.few
        shares = share(splits, 1 if is_little else self._parallelism)
        if not shares and self._start.wakes and start == self._start.offset:
            return [_SplitPartition([[]], now_ms)]
        if self._start.claims:
            return [_SplitPartition(shares, now_ms) for _ in shares]
        return [_SplitPartition([splits], now_ms) for splits in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _SplitPartition)
        reader = self._reader.open()
        node = reader.node
        splits = self._share(partition.shares, node.name)
        found = reader.batches(self._log.read(splits, node.record_type), partition.now_ms)
        batches = wake_slots(reader.plan, found, is_first=is_first_batch())
        return carry_bodies(batches, self._start.bodies) if self._start.bodies else batches

    def _share(self, shares: Sequence[list[Split]], stream: str) -> list[Split]:
        if len(shares) == 1:
            return shares[0]
        nearness = cast("KafkaLog", self._log).nearness(shares)
        return claim_share(self._start.bodies, stream, shares, nearness)

    def commit(self, end: dict[str, Any]) -> None:
        # A power loss may undo the commit of this micro-batch, but not that of the one before it.
        if self._done is not None:
            self._log.forget(self._done)
        self._done = self._log.decode(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # the name is PySpark's
        newest = self._log.newest()
        return None if newest is None else self._log.encode(newest)
