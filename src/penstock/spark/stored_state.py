"""Stored state: the state of the steps after a committed micro-batch, read by Spark, even while the query runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import CheckpointError, PenstockError, custom_error_in, system_error_in
from penstock.runtime.gathered_entries import GatheredEntries
from penstock.runtime.seed import SlotReader
from penstock.spark.lazy_pickle import Sealed

__all__ = ["StateLocation", "read_slots"]

_RESULT: Final = "slot INT, body BINARY"

# Entries are pieces of several MB, so only a few should be buffered. By default RocksDB buffers 128 MB of unwritten
# data for each slot, and the size of batches for Python suits small rows.
_LEAN: Final[dict[str, str]] = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "16",
    "spark.sql.streaming.stateStore.rocksdb.maxWriteBufferNumber": "2",
}


@dataclass(frozen=True)
class StateLocation:
    """The place of the state in Spark: its location of the checkpoint, and the operator that stores that of a node."""

    location: str
    operator_of: Callable[[str], int]


def read_slots(
    session: SparkSession, place: StateLocation, batch_id: int, node: str, reader: SlotReader
) -> tuple[set[int], list[bytes]]:
    """Call `reader` for each slot of a step, with its state after a committed micro-batch.

    Return the numbers of the slots with stored state, and all results of the reader. `node` is the name under which the
    step's state is stored, and the micro-batch must be one that the checkpoint still keeps. Raises CheckpointError when
    the state cannot be read.
    """
    # The state store needs the session's manager of queries, which is made when it is first used.
    assert session.streams is not None
    with _set(session, _LEAN):
        source = session.read.format("statestore").option("operatorId", place.operator_of(node))
        try:
            # Spark reads the metadata of the state already here.
            entries: DataFrame = (
                source.option("stateVarName", node).option("batchId", batch_id).load(place.location)
            )
            rows = entries.selectExpr("user_map_key.name", "user_map_value.content")
            found = rows.mapInArrow(_each_slot(reader), _RESULT).collect()
        except PySparkException as e:
            failure = _failure(str(e), place.location, batch_id)
            raise failure from failure.__cause__ or e
    slots = {row.slot for row in found}
    return slots, [bytes(row.body) for row in found if row.body is not None]


@contextlib.contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply settings to a session temporarily. A running query keeps the settings that it was started with."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _failure(text: str, location: str, batch_id: int) -> PenstockError:
    own = custom_error_in(text, CheckpointError)
    if own is not None:
        # Raised in another process: a worker could not write what it has read.
        return own
    what = f"The state after micro-batch {batch_id} in {location.removeprefix('file://')} cannot be read"
    system = system_error_in(text)
    if system is not None:
        # Spark reads state from a copy of its files, so the disk can be full, for example.
        error = CheckpointError(f"{what}: {system.strerror}. Fix the cause and try again.")
        error.__cause__ = system
        return error
    return CheckpointError(
        f"{what}: {text.splitlines()[0]} The checkpoint keeps only the newest micro-batches; name a newer one, or none."
    )


def _each_slot(reader: SlotReader) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    sealed = Sealed(reader)

    def each_slot(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entries = GatheredEntries()
        for batch in batches:
            for name, content in zip(batch.column(0), batch.column(1), strict=True):
                entries.add(name.as_py(), content.as_buffer())
        task = TaskContext.get()
        assert task is not None
        if not entries:
            return
        slot = task.partitionId()
        for body in itertools.chain([None], sealed.open()(slot, entries)):
            columns = [pa.array([slot], pa.int32()), pa.array([body], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["slot", "body"])

    return each_slot
