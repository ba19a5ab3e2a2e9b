"""Levels: run the keyed steps of one depth on the packed rows of one slot. Knows no Spark."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.operators.blocks import KEY, Block
from penstock.operators.step import Emission, StepCore, no_cyclic_collection
from penstock.runtime.packing import PackedRow, counts_row, from_bytes, to_bytes
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.runtime.routing import dead_letter_rows
from penstock.state.group_tables import GroupTables
from penstock.streams.graph import Port, ProcessNode

__all__ = ["Level", "StoredStates"]

# What a step emitted travels on in blocks of about this size, each of whole key groups.
_BLOCK_BYTES: Final = 8 << 20


class StoredStates(Protocol):
    """Where the states of a slot's steps are kept between micro-batches."""

    def load(self, step_id: str) -> bytes | None:
        """What was saved last, or None."""

    def save(self, step_id: str, state: bytes) -> None:
        """Replace it."""


class Level:
    """The steps of one depth, as one task runs them."""

    def __init__(self, plan: JobPlan, step_ids: Iterable[str]) -> None:
        self._runners: Final = {step_id: _StepRunner(plan, step_id) for step_id in step_ids}

    def run(self, rows: Iterable[PackedRow], states: StoredStates) -> Iterator[PackedRow]:
        """All packed rows of a slot in, in any order; what steps emit and the rows for others out, in a fixed one.

        The bodies must be bytes, which can be compared.
        """
        # The shuffle delivers rows in any order, and what passes must leave in the same order in a replay.
        for destination, found in itertools.groupby(sorted(rows), key=operator.attrgetter("destination")):
            runner = self._runners.get(destination)
            if runner is None:
                yield from found
                continue
            tables = GroupTables(states.load(destination))
            yield from runner.run(found, tables)
            if tables.changed:
                states.save(destination, tables.dump())


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

    def run(self, rows: Iterable[PackedRow], tables: GroupTables) -> Iterator[PackedRow]:
        """Run the step on the rows of all its key groups, which come in order."""
        emitted: dict[str, _Emitted] = {}
        key_group = 0
        with no_cyclic_collection():
            for key_group, found in itertools.groupby(rows, key=operator.attrgetter("key_group")):
                result = self._core.run(key_group, list(map(self._block, found)), tables.table(key_group))
                if result.state is not None:
                    tables.put(key_group, result.keys, result.state)
                for emission in result.emissions:
                    emitted.setdefault(emission.output, _Emitted(key_group)).add(self._batch(emission))
                yield from dead_letter_rows(result.dead_letters, self._plan)
                for output in [name for name, waiting in emitted.items() if waiting.size >= _BLOCK_BYTES]:
                    yield self._row(output, emitted.pop(output))
        for output, waiting in emitted.items():
            yield self._row(output, waiting)
        if tables.changed:
            slots = self._plan.slots
            first = int(np.argmax(slots == slots[key_group]))
            yield counts_row("keys", self._node.step, tables.keys, first)

    def _block(self, row: PackedRow) -> Block:
        body = from_bytes(row.body, self._schemas[row.input])
        return Block(row.input, row.partition, row.first_offset, body)

    def _batch(self, emission: Emission) -> pa.RecordBatch:
        if self._carries_keys[emission.output]:
            return emission.batch.append_column(KEY, emission.keys)
        return emission.batch

    def _row(self, output: str, emitted: _Emitted) -> PackedRow:
        batches = emitted.batches
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        destination = emission_destination(self._node.step, output)
        group = emitted.first_key_group
        return PackedRow(destination, group, 0, f"{group:05d}", 0, to_bytes(batch))


class _Emitted:
    """What some neighbouring key groups have emitted to one output."""

    def __init__(self, first_key_group: int) -> None:
        self.first_key_group: Final = first_key_group
        self.batches: list[pa.RecordBatch] = []
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self.batches.append(batch)
        self.size += batch.nbytes
