"""Spark as penstock uses it, without a JVM: one query at a time, whose micro-batches run when they are asked for.

Sources, tasks, levels, sinks and what the driver does with a micro-batch are penstock's own code. The model plans
micro-batches, shuffles, keeps state and writes Spark's files in Spark's order: offsets before anything of it runs,
state while its tasks run, the commit behind all; on start a micro-batch without a commit is done again as planned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import pickle
import random
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows
from recording_broker import RecordingBrokers
from spark_files import SparkLogFolder, StateFolder, write_description, write_spark_file

from penstock.base.instants import instant_of
from penstock.runtime.level import Level
from penstock.runtime.packed_rows import PackedRow, encode_body, packed_batches
from penstock.runtime.seed import SlotReader
from penstock.runtime.slots import slot_keys
from penstock.runtime.writer import Forwarder, unpacked_rows
from penstock.spark.query import Query, _packed_rows
from penstock.spark.stored_state import StateLocation, _failure
from penstock.state.kept_slots import kept_slots

__all__ = ["ModelQuery", "ModelSpark", "forget_workers", "model_compile", "model_read_slots"]

_BETWEEN_LOOKS_S = 1.0


class _ReportRow(NamedTuple):
    kind: str
    name: str
    partition: int
    total: int
    body: bytes


class _Task:
    """A task's view of itself, like Spark's TaskContext."""

    def __init__(self, batch: int, partition: int, attempt: int) -> None:
        self._known = batch, partition, attempt

    def getLocalProperty(self, name: str) -> str:
        return str(self._known[0])

    def partitionId(self) -> int:
        return self._known[1]

    def taskAttemptId(self) -> int:
        return self._known[2]


@contextlib.contextmanager
def _task(batch: int, partition: int, attempt: int) -> Iterator[None]:
    TaskContext._taskContext = _Task(batch, partition, attempt)  # type: ignore[assignment]
    try:
        yield
    finally:
        TaskContext._taskContext = None


class ModelSpark:
    """A session."""

    streams = object()

    def __init__(self, brokers: RecordingBrokers, seed: int = 0) -> None:
        self.brokers = brokers
        self.settings: dict[str, str] = {}
        self.query: ModelQuery | None = None
        self.chance = random.Random(seed)
        self._sources: dict[str, Any] = {}
        self._attempts = 0

    def set_retained(self, batches: int) -> None:
        self.settings["retained"] = str(batches)

    # Called by penstock.
    conf = property(lambda self: self)
    sparkContext = property(lambda self: self)
    readStream = property(lambda self: self)
    _jvm = None
    master = "model"
    defaultParallelism = 2

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def setLocalProperty(self, name: str, value: str) -> None:  # PySpark's name
        self.settings[name] = value

    def register(self, kind: Any) -> None:
        self._sources[kind.name()] = kind

    def format(self, name: str) -> ModelSpark:
        self._name = name
        return self

    def load(self) -> Any:
        """Return the reader of a source, with a copy of its log, as Spark's planner has it."""
        kind = self._sources[self._name]
        reader = kind(options={}).streamReader(None)
        reader._log = pickle.loads(pickle.dumps(reader._log))
        return reader

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts


def model_compile(spark: ModelSpark, query: Query) -> _Stream:
    """Replaces the compiler of a query for Spark."""
    return _Stream(spark, query)


class _Stream:
    """The step from a compiled query to a running one."""

    def __init__(self, spark: ModelSpark, query: Query) -> None:
        self._spark, self._query = spark, query
        self._on_batch: Callable[[Any, int], None] | None = None
        self._is_bounded = False

    writeStream = property(lambda self: self)

    def foreachBatch(self, function: Callable[[Any, int], None]) -> _Stream:
        self._on_batch = function
        return self

    def option(self, name: str, value: str) -> _Stream:
        assert (name, value) == ("checkpointLocation", self._query.checkpoint)
        return self

    def trigger(self, **trigger: Any) -> _Stream:
        self._is_bounded = "availableNow" in trigger
        return self

    def start(self) -> ModelQuery:
        assert self._on_batch is not None
        assert self._spark.query is None or not self._spark.query.isActive
        self._spark.query = ModelQuery(self._spark, self._query, self._on_batch, is_bounded=self._is_bounded)
        return self._spark.query


class _Told(NamedTuple):
    """The progress of a micro-batch, like Spark's Java object."""

    number: int
    at: str
    content: str

    def batchId(self) -> int:
        return self.number

    def timestamp(self) -> str:
        return self.at

    def json(self) -> str:
        return self.content


class ModelQuery:
    """A running query. `trigger` does what Spark does until it next looks at the sources."""

    def __init__(
        self, spark: ModelSpark, query: Query, on_batch: Callable[[Any, int], None], *, is_bounded: bool
    ) -> None:
        self._spark, self._query, self._on_batch = spark, query, on_batch
        self._bounded = is_bounded
        self._folder = _folder_at(query.checkpoint)
        self._failure: Exception | None = None
        self._told: list[_Told] = []
        self.isActive = True
        self.refuses_on_stop = False
        self._is_recovered = False
        self._end: list[dict[str, Any]] = []
        self._sources = [_packed_rows(spark, source, query) for source in query.sources]  # type: ignore[arg-type]
        self._levels = [[node.id for node in level] for level in query.plan.levels()]

    # Called by penstock.
    _jsq = property(lambda self: self)

    def lastProgress(self) -> _Told | None:
        return self._told[-1] if self._told else None

    def recentProgress(self) -> list[_Told]:
        return self._told[-100:]

    @property
    def status(self) -> dict[str, bool]:
        """Between two micro-batches nothing is running, but one may just have been planned."""
        if self.refuses_on_stop and self.isActive:
            self.refuses_on_stop = False
            self.trigger()
        return {"isTriggerActive": False}

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> Exception | None:
        return self._failure

    def awaitTermination(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The model's own part.

    def trigger(self) -> None:
        """Look at the sources, and run a micro-batch if there is new data."""
        if not self.isActive:
            return
        self._spark.brokers.sleep(_BETWEEN_LOOKS_S)
        try:
            if not self._step() and self._bounded:
                self.isActive = False
        except Exception as e:  # any error that the query raises ends it
            text = "".join(traceback.format_exception(e))
            self._failure = StreamingQueryException(message=f"[STREAM_FAILED] {e}\n{text}")
            self.isActive = False

    def _step(self) -> bool:
        if not self._is_recovered:
            self._recover()
            self._is_recovered = True
            if self._planned:
                self._run()
                return True
        if not self._plan():
            return False
        self._run()
        return True

    def _recover(self) -> None:
        """Find the restart position: after the newest micro-batch, or within it when it has no commit."""
        folder = self._folder
        self._offsets, self._commits = SparkLogFolder(folder / "offsets"), SparkLogFolder(folder / "commits")
        metadata = folder / "metadata"
        if metadata.exists():
            json.loads(metadata.read_bytes())
        else:
            write_spark_file(metadata, json.dumps({"id": str(uuid.uuid4())}).encode())
        self._partitions = self._query.parallelism
        self._batch = self._offsets.newest
        self._planned = self._batch >= 0 and self._commits.newest < self._batch
        if self._bounded:
            for source in self._sources:
                source.prepareForTriggerAvailableNow()
        if self._batch < 0:
            self._start = [source.initialOffset() for source in self._sources]
            self._batch, self._planned = 0, False
            return
        if self._planned:
            first = self._batch == 0
            self._start = (
                [s.initialOffset() for s in self._sources] if first else self._read_offsets(self._batch - 1)
            )
        # Last, since a replay has the time of its original plan.
        self._end = self._read_offsets(self._batch)
        if not self._planned:
            self._start = self._end
            self._batch += 1

    def _read_offsets(self, batch: int) -> list[dict[str, Any]]:
        about, *ends = self._offsets.read(batch)
        self._partitions = int(json.loads(about)["conf"]["spark.sql.shuffle.partitions"])
        self._now_ms = json.loads(about)["batchTimestampMs"]
        return [json.loads(end) for end in ends]

    def _plan(self) -> bool:
        """Plan the next micro-batch, if there is data for it."""
        limit = ReadMaxRows(1)
        ends = [s.latestOffset(at, limit) for s, at in zip(self._sources, self._start, strict=True)]
        if all(_is_same(end, at) for end, at in zip(ends, self._start, strict=True)):
            return False
        self._now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
        about = {
            "batchWatermarkMs": 0,
            "batchTimestampMs": self._now_ms,
            "conf": {"spark.sql.shuffle.partitions": str(self._partitions)},
        }
        self._offsets.add(self._batch, ["v1", json.dumps(about), *map(json.dumps, ends)])
        self._end = ends
        if self._batch > 0:
            for source, end in zip(self._sources, self._start, strict=True):
                source.commit(end)
        self._purge()
        return True

    def _purge(self) -> None:
        before = self._batch - int(self._spark.settings.get("retained", "100"))
        if before <= 0:
            return
        self._offsets.purge(before)
        self._commits.purge(before)
        for operator in range(len(self._levels)):
            for partition in range(self._partitions):
                StateFolder(self._folder / "state" / str(operator) / str(partition)).clean(before + 1)

    def _run(self) -> None:
        """Run the planned micro-batch."""
        self._unique_ids: dict[str, list[list[str]]] = {}
        self._on_batch(_Batch(self), self._batch)
        line = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": self._unique_ids})
        self._commits.add(self._batch, ["v2", line])
        at = dt.datetime.fromtimestamp(self._now_ms / 1000, dt.UTC).isoformat()
        told = {
            "batchId": self._batch,
            "timestamp": at,
            "durationMs": {"triggerExecution": 3, "addBatch": 2},
            "sources": [{"endOffset": end, "latestOffset": end} for end in self._end],
        }
        self._told.append(_Told(self._batch, f"{at} {self._batch}", json.dumps(told)))
        self._start = self._end
        self._batch += 1
        self._planned = False

    def _tasks(self) -> Iterator[_ReportRow]:
        """Run all tasks of the micro-batch, from the sources to the reports."""
        parts = self._read()
        plan = self._query.plan
        for number, level in enumerate(self._levels):
            if number:
                before = Forwarder(plan, self._levels[number - 1])
                parts = [_rows(before.batches(packed_batches(part, plan.slots))) for part in parts]
            parts = self._level(number, level, parts)
        sorts = not self._levels and self._query.writer.commits_in_tasks
        if sorts:
            parts = self._by_slot(parts)
        forwarder = Forwarder(plan, self._levels[-1] if self._levels else [])
        number = self._query.first_batch + self._batch
        order = list(enumerate(parts))
        self._spark.chance.shuffle(order)
        for partition, part in order:
            attempt = self._spark.next_attempt()
            with _task(self._batch, partition, attempt):
                rows = forwarder.rows(packed_batches(part, plan.slots))
                if sorts:
                    rows = iter(sorted(row._replace(body=bytes(encode_body(row).body)) for row in rows))
                for batch in self._query.writer.batches(rows, number, partition, attempt):
                    columns = [column.to_pylist() for column in batch.columns]
                    yield from map(_ReportRow._make, zip(*columns, strict=True))

    def _read(self) -> list[list[PackedRow]]:
        parts = []
        for source, start, end in zip(self._sources, self._start, self._end, strict=True):
            if _is_same(end, start):
                continue
            for partition in source.partitions(start, end):
                with _task(self._batch, len(parts), self._spark.next_attempt()):
                    parts.append(_rows(source.read(partition)))
        return parts

    def _by_slot(self, parts: Sequence[list[PackedRow]]) -> list[list[PackedRow]]:
        """Shuffle before tasks that commit, where no keyed level has shuffled."""
        shuffled = [row for part in parts for row in part]
        self._spark.chance.shuffle(shuffled)
        slots: dict[int, list[PackedRow]] = {}
        for row in shuffled:
            slots.setdefault(int(self._query.plan.slots[row.key_group]), []).append(row)
        return [slots.get(slot, []) for slot in slot_keys(self._query.parallelism)]

    def _level(
        self, number: int, step_ids: list[str], parts: Sequence[list[PackedRow]]
    ) -> list[list[PackedRow]]:
        """Shuffle, and then process each partition: its state, its rows, and the new version of its state."""
        shuffled = [row for part in parts for row in part]
        self._spark.chance.shuffle(shuffled)
        plan = self._query.plan
        slots: dict[int, list[PackedRow]] = {}
        for row in shuffled:
            slots.setdefault(int(plan.slots[row.key_group]), []).append(
                row._replace(body=bytes(encode_body(row).body))
            )
        if self._batch == 0:
            write_description(self._folder, number, self._partitions, step_ids)
        ids = _unique_ids(self._commits, self._batch - 1).get(str(number), [])
        made: list[list[PackedRow]] = []
        stored: list[list[str]] = []
        for partition, slot in enumerate(slot_keys(self._partitions)):
            place = StateFolder(self._folder / "state" / str(number) / str(partition))
            known = ids[partition][0] if ids else None
            entries = _Entries(place.load(self._batch, known))
            with _task(self._batch, partition, self._spark.next_attempt()):
                level = Level(plan.of_batch(self._batch), step_ids)
                rows: list[PackedRow] = []
                if slot in slots:
                    rows = list(level.run(slots[slot], entries, instant_of(self._now_ms), plan.slot_of[slot]))
                    rows = [row._replace(body=bytes(encode_body(row).body)) for row in rows]
            lineage = {} if known is None else {self._batch: known}
            version = self._batch + 1
            stored.append([place.store(version, lineage, entries.state, entries.changes)])
            made.append(rows)
        self._unique_ids[str(number)] = stored
        return made


def _unique_ids(commits: SparkLogFolder, batch: int) -> dict[str, list[list[str]]]:
    """Return the ids of the state versions that a commit names, by operator and partition."""
    if batch < 0:
        return {}
    found: dict[str, list[list[str]]] = json.loads(commits.read(batch)[0])["stateUniqueIds"]
    return found


def _is_same(end: dict[str, Any], start: dict[str, Any]) -> bool:
    """Return whether a stream has no new data; a log's offset has more than the position."""
    return bool(end.get("position", end) == start.get("position", start))


def _rows(batches: Any) -> list[PackedRow]:
    return list(unpacked_rows(batches))


class _Batch:
    """What Spark passes to the function that handles a micro-batch."""

    def __init__(self, query: ModelQuery) -> None:
        self._query = query

    def collect(self) -> list[_ReportRow]:
        return list(self._query._tasks())


@dataclasses.dataclass
class _Entries:
    """The state of one partition during a task, for all steps of its level."""

    state: dict[tuple[str, str], bytes]
    changes: list[tuple[str, str, bytes | None]] = dataclasses.field(default_factory=list)
    node: str = ""

    def entries(self, step_id: str) -> _Entries:
        """Return the entries of one step."""
        return dataclasses.replace(self, node=step_id)

    def get(self, name: str) -> bytes | None:
        return self.state.get((self.node, name))

    def put(self, name: str, content: bytes) -> None:
        self.state[self.node, name] = bytes(content)
        self.changes.append((self.node, name, bytes(content)))

    def remove(self, name: str) -> None:
        del self.state[self.node, name]
        self.changes.append((self.node, name, None))


def _folder_at(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def model_read_slots(
    session: Any, place: StateLocation, batch_id: int, node: str, reader: SlotReader
) -> tuple[set[int], list[bytes]]:
    """Replaces `stored_state.read_slots`."""
    folder, operator = _folder_at(place.location), place.operator_of(node)
    found: list[bytes] = []
    slots: set[int] = set()
    try:
        ids = _unique_ids(SparkLogFolder(folder / "commits"), batch_id)[str(operator)]
        places = (StateFolder(folder / "state" / str(operator) / str(number)) for number in range(len(ids)))
        states = [place.load(batch_id + 1, known) for place, (known,) in zip(places, ids, strict=True)]
    except PySparkException as e:
        raise _failure(str(e), place.location, batch_id) from e
    for partition, state in enumerate(states):
        entries = {name: data for (owner, name), data in state.items() if owner == node}
        if entries:
            slots.add(partition)
            found += reader(partition, entries)
    return slots, found


def forget_workers() -> None:
    """Drop the caches of workers that have ended."""
    kept_slots._kept.clear()
