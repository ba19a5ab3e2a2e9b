"""Keyed levels in Spark: each level is one transformWithState, with one call of Python for each of its tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

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
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.tasks import spark_batch
from penstock.streams.graph import ProcessNode

__all__ = ["keyed_level"]


def keyed_level(rows: DataFrame, plan: JobPlan, level: list[ProcessNode]) -> DataFrame:
    """Packed rows with those for the steps of a level replaced by what the steps emit; others pass."""
    # The time of the micro-batch is in Spark's offset log, so that a replay judges alike.
    rows = rows.withColumn("now", functions.unix_millis(functions.current_timestamp()))
    return rows.groupBy("slot").transformWithState(
        LevelProcessor(plan, [node.id for node in level]),
        outputStructType=PACKED_DDL,
        outputMode="Append",
        timeMode="ProcessingTime" if any(map(plan.wants_clock, level)) else "None",
    )


# As a type and not as text, since Spark would ask the JVM to parse the text in every task.
_NAME: Final = StructType([StructField("name", StringType())])
_CONTENT: Final = StructType([StructField("content", BinaryType())])


class LevelProcessor(StatefulProcessor):
    """Runs the steps of a level. Its Spark state has one map for each step and slot, with the log of its state."""

    def __init__(self, plan: JobPlan, step_ids: list[str]) -> None:
        self._plan: Final = Sealed(plan)
        self._step_ids: Final = step_ids

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in every task, and once in the driver."""
        self._handle = handle
        self._states = _States({name: handle.getMapState(name, _NAME, _CONTENT) for name in self._step_ids})

    @functools.cached_property
    def _level(self) -> Level:
        return Level(self._plan.open().of_batch(spark_batch()), self._step_ids)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Called by Spark with all packed rows of one slot."""
        (slot,) = key
        first = next(rows)
        packed = (PackedRow._make((*row[1:-2], bytes(row.body))) for row in itertools.chain([first], rows))
        yield from self._run(slot, packed, first.now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Called by Spark when a timer of a slot has expired, and no rows have come before it."""
        (slot,) = key
        yield from self._run(slot, [], timerValues.getCurrentProcessingTimeInMs())

    def _run(self, slot: int, packed: Iterable[PackedRow], now_ms: int) -> Iterator[Row]:
        """Run the level on a slot, and let Spark call again when the next timer is due."""
        level = self._level
        now = instant_of(now_ms)
        for row in level.run(packed, self._states, now, level.slot_of(slot)):
            # Spark's serialiser of rows wants bytes.
            yield Row(slot=slot, **row._replace(body=bytes(encode_body(row).body))._asdict())
        if level.wants_clock:
            self._set_timer(level.next_timer_ms, now_ms)

    def _set_timer(self, at_ms: int | None, now_ms: int) -> None:
        # What Spark finds expired it calls in this micro-batch, in which all that was due has been called.
        wanted = set() if at_ms is None else {max(at_ms, now_ms + 1)}
        known = set(self._handle.listTimers())
        for expiry in sorted(known - wanted):
            self._handle.deleteTimer(expiry)
        for expiry in wanted - known:
            self._handle.registerTimer(expiry)

    def close(self) -> None:
        """Called by Spark at the end of the task."""


class _States:
    """The stored states of a level's steps, in Spark."""

    def __init__(self, states: dict[str, MapState]) -> None:
        self._entries: Final = {step_id: _Entries(state) for step_id, state in states.items()}

    def entries(self, step_id: str) -> _Entries:
        """Where the state of a step is."""
        return self._entries[step_id]


class _Entries:
    """The stored state of one step: bytes by names, in a map of Spark's."""

    def __init__(self, state: MapState) -> None:
        self._state: Final = state

    def get(self, name: str) -> bytes | None:
        """The bytes of a name, or None."""
        found = self._state.getValue((name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""
        self._state.updateValue((name,), (content,))

    def remove(self, name: str) -> None:
        """Remove a name."""
        self._state.removeKey((name,))
