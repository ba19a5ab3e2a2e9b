"""Keyed levels: run the steps of a level inside Spark's transformWithState, one call a key group."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.operators.blocks import KEY, Block
from penstock.operators.step import StepCore, StepResult
from penstock.runtime.packing import PACKED_DDL, PackedRow, counts_row, from_bytes, to_bytes
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.runtime.routing import dead_letter_rows
from penstock.runtime.sealed import Sealed
from penstock.streams.graph import Port, ProcessNode

__all__ = ["keyed_level"]


def keyed_level(rows: DataFrame, plan: JobPlan, level: list[ProcessNode]) -> DataFrame:
    """Packed rows with those for the steps of a level replaced by what the steps emit; others pass."""
    return rows.groupBy("destination", "key_group").transformWithState(
        LevelProcessor(plan, [node.id for node in level]),
        outputStructType=PACKED_DDL,
        outputMode="Append",
        timeMode="None",
    )


# As a type and not as text, since Spark would ask the JVM to parse the text in every task.
_TABLE: Final = StructType([StructField("table", BinaryType())])


class LevelProcessor(StatefulProcessor):
    """Runs the steps of a level. Its Spark state is one value for each (step, key group): the group's table."""

    def __init__(self, plan: JobPlan, step_ids: list[str]) -> None:
        self._plan: Final = Sealed(plan)
        self._step_ids: Final = step_ids

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark in every task, and once in the driver."""
        self._table = handle.getValueState("table", _TABLE)

    @functools.cached_property
    def _steps(self) -> dict[str, _StepRunner]:
        return {step_id: _StepRunner(self._plan.open(), step_id) for step_id in self._step_ids}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Called by Spark with all packed rows of one (destination, key group)."""
        destination, key_group = key
        runner = self._steps.get(destination)
        if runner is None:
            # The shuffle delivers rows in any order, and what passes must leave in the same order in a replay.
            yield from sorted(
                rows, key=lambda row: (row.input, row.partition, row.first_offset, bytes(row.body))
            )
            return
        stored = self._table.get()
        result = runner.run(key_group, rows, None if stored is None else bytes(stored[0]))
        if result.state is not None:
            self._table.update((result.state,))
        for row in runner.rows(key_group, result):
            # Spark's serialiser of rows wants bytes.
            yield Row(**row._replace(body=bytes(row.body))._asdict())

    def close(self) -> None:
        """Called by Spark at the end of the task."""


class _StepRunner:
    """One step of the level: unpacks its blocks, runs its core, packs what it emits."""

    def __init__(self, plan: JobPlan, step_id: str) -> None:
        self._plan = plan
        node = plan.graph.nodes[step_id]
        assert isinstance(node, ProcessNode)
        self._node = node
        self._core: StepCore = plan.core(node)
        self._schemas = [plan.step_schema(node, number) for number in range(len(node.edges))]
        self._carries_keys = {output: plan.wants_keys(Port(node.id, output)) for output in node.outputs}

    def run(self, key_group: int, rows: Iterable[Row], stored: bytes | None) -> StepResult:
        """Run the step's core on the rows of one key group."""
        blocks = [
            Block(row.input, row.partition, row.first_offset, from_bytes(row.body, self._schemas[row.input]))
            for row in rows
        ]
        return self._core.run(key_group, blocks, stored)

    def rows(self, key_group: int, result: StepResult) -> Iterator[PackedRow]:
        """What the step emitted, as packed rows."""
        partition = f"{key_group:05d}"
        for place, emission in enumerate(result.emissions):
            batch = emission.batch
            if self._carries_keys[emission.output]:
                batch = batch.append_column(KEY, emission.keys)
            destination = emission_destination(self._node.step, emission.output)
            yield PackedRow(destination, key_group, 0, partition, place, to_bytes(batch))
        yield from dead_letter_rows(result.dead_letters, self._plan)
        if result.state is not None:
            yield counts_row("keys", self._node.step, result.keys, key_group)
