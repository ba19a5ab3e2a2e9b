"""Keyed levels in Spark: each level is one transformWithState, with one call of Python for each of its tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.runtime.level import Level
from penstock.runtime.packing import PACKED_DDL, PackedRow
from penstock.runtime.plan import JobPlan
from penstock.runtime.sealed import Sealed
from penstock.streams.graph import ProcessNode

__all__ = ["keyed_level"]


def keyed_level(rows: DataFrame, plan: JobPlan, level: list[ProcessNode]) -> DataFrame:
    """Packed rows with those for the steps of a level replaced by what the steps emit; others pass."""
    return rows.groupBy("slot").transformWithState(
        LevelProcessor(plan, [node.id for node in level]),
        outputStructType=PACKED_DDL,
        outputMode="Append",
        timeMode="None",
    )


# As a type and not as text, since Spark would ask the JVM to parse the text in every task.
_TABLES: Final = StructType([StructField("tables", BinaryType())])


class LevelProcessor(StatefulProcessor):
    """Runs the steps of a level. Its Spark state has one value for each step and slot: the tables of its key groups."""

    def __init__(self, plan: JobPlan, step_ids: list[str]) -> None:
        self._plan: Final = Sealed(plan)
        self._step_ids: Final = step_ids

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in every task, and once in the driver."""
        self._states = _States(
            {name: handle.getValueState(name, _TABLES) for name in self._step_ids},
            {name: handle.getListState(f"{name}/held", _TABLES) for name in self._step_ids},
        )

    @functools.cached_property
    def _level(self) -> Level:
        return Level(self._plan.open(), self._step_ids)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Called by Spark with all packed rows of one slot."""
        (slot,) = key
        packed = (PackedRow._make((*row[1:-1], bytes(row.body))) for row in rows)
        for row in self._level.run(packed, self._states):
            # Spark's serialiser of rows wants bytes.
            yield Row(slot=slot, **row._replace(body=bytes(row.body))._asdict())

    def close(self) -> None:
        """Called by Spark at the end of the task."""


class _States:
    """The stored states of a level's steps, in Spark, and the data that waits for those that are paused."""

    def __init__(self, states: dict[str, ValueState], held: dict[str, ListState]) -> None:
        self._states: Final = states
        self._held: Final = held

    def load(self, step_id: str) -> bytes | None:
        """What was saved last."""
        stored = self._states[step_id].get()
        return None if stored is None else bytes(stored[0])

    def save(self, step_id: str, state: bytes) -> None:
        """Replace it."""
        self._states[step_id].update((state,))

    def hold(self, step_id: str, rows: bytes) -> None:
        """Keep data of one micro-batch behind what is held already."""
        self._held[step_id].appendValue((rows,))

    def release(self, step_id: str) -> list[bytes]:
        """All that is held, which is kept no longer."""
        held = [bytes(rows) for (rows,) in self._held[step_id].get()]
        self._held[step_id].clear()
        return held
