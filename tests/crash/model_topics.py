"""Spark's source for Kafka in the model of Spark: where it begins, plans of offsets, and ranges that tasks read."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from recording_broker import RecordingBrokers
from spark_files import read_spark_file, write_spark_file

from penstock.runtime.record_reader import PLANNED

__all__ = ["ModelTopic"]

Offset = dict[str, dict[str, int]]

_ADMIN_S = 60.0
_POLL_S = 120.0
_ROWS = 4
_EARLIEST = -2


class _Range(NamedTuple):
    partition: int
    start: int
    end: int


class _ReadPart(NamedTuple):
    ranges: list[_Range]


class ModelTopic:
    """A topic that a query reads, as Spark's `readStream` builds it, and as its micro-batches use it."""

    def __init__(self, brokers: RecordingBrokers, chance: random.Random) -> None:
        self._brokers = brokers
        self._chance = chance
        self._options: dict[str, str] = {}
        self._columns: list[str] = []
        self._function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] = iter
        self._tasks = 1
        self._frozen: Offset | None = None
        self.place = Path()
        self.now_ms = 0

    # What penstock calls.

    def options(self, **options: str) -> Self:
        self._options |= options
        return self

    def option(self, name: str, value: Any) -> Self:
        self._options[name] = str(value)
        return self

    def load(self) -> Self:
        return self

    def select(self, *columns: str) -> Self:
        self._columns = list(columns)
        return self

    def withColumn(self, name: str, value: Any) -> Self:
        assert name == PLANNED
        self._columns.append(name)
        return self

    def coalesce(self, tasks: int) -> Self:
        self._tasks = tasks
        return self

    def mapInArrow(self, function: Any, schema: str) -> Self:
        self._function = function
        return self

    # What Spark does.

    @property
    def _topic(self) -> str:
        return self._options["subscribe"]

    def _ask(self, timeout_s: float) -> None:
        try:
            self._brokers.ask(timeout_s)
        except KafkaException as e:
            raise PySparkException(f"org.apache.kafka.common.errors.TimeoutException: {e}") from e

    def _latest(self) -> Offset:
        self._ask(_ADMIN_S)
        state = self._brokers.state
        count = len(state.topics[self._topic].partitions)
        return {self._topic: {str(n): state.end_of(self._topic, n) for n in range(count)}}

    def initialOffset(self) -> Offset:
        """Where the stream begins, which is noted before the first micro-batch is planned."""
        path = self.place / "0"
        if path.exists():
            data = read_spark_file(path)
            try:
                found: Offset = json.loads(data[data.index(b"{") :])
            except ValueError:
                raise PySparkException(
                    f'Expected e.g. {{"topicA":{{"0":23,"1":-1}}}}, got {data!r}'
                ) from None
            return found
        found = self._latest()
        starting = self._options["startingOffsets"]
        if starting == "earliest":
            found = {self._topic: dict.fromkeys(found[self._topic], 0)}
        elif starting != "latest":
            asked: dict[str, int] = json.loads(starting)[self._topic]
            if set(asked) != set(found[self._topic]):
                raise PySparkException("assertion failed: you must specify all TopicPartitions")
            found = {self._topic: {n: 0 if at == _EARLIEST else at for n, at in asked.items()}}
        self.place.mkdir(parents=True, exist_ok=True)
        write_spark_file(path, b"\0v1\n" + json.dumps(found).encode())
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._latest()

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        end = self._frozen or self._latest()
        begin = {**dict.fromkeys(end[self._topic], 0), **start[self._topic]}
        waiting = {n: max(0, at - begin[n]) for n, at in end[self._topic].items()}
        total = sum(waiting.values())
        if total < int(self._options.get("minOffsetsPerTrigger", 0)):
            return start
        most = int(self._options.get("maxOffsetsPerTrigger", total))
        if total <= most:
            return end
        # Each partition gets its share, rounded up where that would be nothing.
        shares = {n: max(min(1, size), int(size * most / total)) for n, size in waiting.items()}
        return {self._topic: {n: min(begin[n] + share, end[self._topic][n]) for n, share in shares.items()}}

    def reportLatestOffset(self) -> Offset | None:
        return None

    def partitions(self, start: Offset, end: Offset) -> list[_ReadPart]:
        """The tasks, and the ranges that each reads."""
        self._ask(_ADMIN_S)
        ends, starts = end[self._topic], start[self._topic]
        if set(starts) - set(ends):
            raise PySparkException(f"{set(starts) - set(ends)} are gone. Some data may have been missed")
        ranges = [_Range(int(n), starts.get(n, 0), at) for n, at in ends.items()]
        for one in ranges:
            if one.end < one.start:
                raise PySparkException("the offset was changed, some data may have been missed")
        ranges = [piece for one in ranges if one.start < one.end for piece in self._pieces(one, ranges)]
        # Which task reads what is as the executors happen to be.
        tasks = self._chance.randint(1, min(self._tasks, len(ranges))) if ranges else 0
        cuts = [len(ranges) * n // tasks for n in range(tasks + 1)] if tasks else []
        return [_ReadPart(ranges[a:b]) for a, b in itertools.pairwise(cuts)]

    def _pieces(self, one: _Range, ranges: list[_Range]) -> list[_Range]:
        """A range in as many pieces as make enough tasks."""
        wanted = int(self._options.get("minPartitions", 1))
        total = sum(r.end - r.start for r in ranges)
        size = one.end - one.start
        count = 1 if len(ranges) >= wanted else max(1, min(size, round(size / total * wanted)))
        cuts = [one.start + size * n // count for n in range(count + 1)]
        return [_Range(one.partition, a, b) for a, b in itertools.pairwise(cuts)]

    def read(self, part: _ReadPart) -> Iterator[pa.RecordBatch]:
        return self._function(self._rows(part))

    def _rows(self, part: _ReadPart) -> Iterator[pa.RecordBatch]:
        """The messages, in batches that have nothing to do with the ranges."""
        rows: list[dict[str, Any]] = []
        for one in part.ranges:
            self._ask(_POLL_S)
            for offset, (key, value) in self._brokers.state.read(self._topic, *one):
                rows.append(
                    {"value": value, "partition": one.partition, "offset": offset, "key": key}
                    | {PLANNED: self.now_ms}
                )
        schema = pa.schema([(name, _TYPES[name]) for name in self._columns])
        for at in range(0, len(rows), _ROWS):
            wanted = [{name: row[name] for name in self._columns} for row in rows[at : at + _ROWS]]
            yield pa.RecordBatch.from_pylist(wanted, schema=schema)

    def commit(self, end: Offset) -> None:
        """Spark's source keeps nothing."""


_TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    PLANNED: pa.int64(),
}
