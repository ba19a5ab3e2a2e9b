"""Runs the core of one step on plain Python records, cut into blocks at random places."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from step_support import group_state, run_group

import penstock as ps
from penstock.engine.step import StepCore, StepInput, StepResult
from penstock.operators.keys import key_selector
from penstock.operators.record_blocks import Block, block_schema
from penstock.records.schemas import record_type

KEY_GROUP = 7


@dataclass
class Stream:
    """One input of the step: its records by source partition."""

    name: str
    schema: Any
    is_control: bool = False
    key: tuple[Any, ...] = ("key",)
    partitions: dict[str, list[Any]] = field(default_factory=dict)


class StepBench:
    """One step in one key group, with its state between micro-batches."""

    def __init__(
        self, function: ps.ProcessFunction, streams: Sequence[Stream], outputs: dict[str, Any]
    ) -> None:
        self._streams = streams
        inputs = [
            StepInput(record_type(s.schema), key_selector(record_type(s.schema), s.key, None), s.is_control)
            for s in streams
        ]
        self.core = StepCore(
            "step", function, inputs, {name: record_type(kind) for name, kind in outputs.items()}
        )
        self.stored: dict[str, bytes] = {}
        self._offsets: dict[tuple[int, str], int] = {}

    def blocks(self, seed: int = 0, *, cut: bool = False) -> list[Block]:
        """Return the records as blocks, in a random order and cut at random places."""
        chance = random.Random(seed)
        made = []
        for number, stream in enumerate(self._streams):
            source = self.core.inputs[number]
            key_type = source.key.key_type if source.key.computed else None
            schema = block_schema(source.record_type, key_type=key_type, raw=True)
            for partition, records in stream.partitions.items():
                start = self._offsets.get((number, partition), 0)
                batch = source.record_type.batch(records)
                columns = [*batch.columns, pa.array(range(start, start + len(records)), pa.int64())]
                if source.key.computed:
                    columns.append(source.key.column(batch))
                columns.append(
                    pa.array([f"{stream.name}/{partition}/{start + i}".encode() for i in range(len(records))])
                )
                whole = pa.RecordBatch.from_arrays(
                    [c.cast(f.type) for c, f in zip(columns, schema, strict=False)], schema=schema
                )
                places = sorted(
                    {0, len(records), *(chance.randint(0, len(records)) for _ in range(3 if cut else 0))}
                )
                for low, high in itertools.pairwise(places):
                    made.append(
                        Block(number, stream.name, partition, start + low, whole.slice(low, high - low))
                    )
        chance.shuffle(made)
        return made

    def run(self, seed: int = 0, *, cut: bool = False) -> StepResult:
        """Run one micro-batch and keep the resulting state for the next one."""
        result, self.stored = run_group(self.core, KEY_GROUP, self.blocks(seed, cut=cut), self.stored)
        for number, stream in enumerate(self._streams):
            for partition, records in stream.partitions.items():
                self._offsets[number, partition] = self._offsets.get((number, partition), 0) + len(records)
        return result

    @property
    def keys(self) -> int:
        """Return how many keys hold state."""
        return len(group_state(self.core, KEY_GROUP, self.stored).settled_keys())

    def emitted(self, result: StepResult, output: str = "") -> list[tuple[Any, Any]]:
        """Return what was emitted to an output, with the keys."""
        kind = self.core.outputs[output]
        return [
            pair
            for emission in result.emissions
            if emission.output == output
            for pair in zip(emission.keys.to_pylist(), kind.objects(emission.batch), strict=True)
        ]


def fingerprint(result: StepResult) -> Any:
    """Return everything in a result, to compare results byte for byte."""
    emissions: dict[str, list[Any]] = {}
    for emission in result.emissions:
        rows = [*zip(emission.keys.to_pylist(), map(repr, emission.batch.to_pylist()), strict=True)]
        emissions.setdefault(emission.output, []).extend(rows)
    return emissions, result.dead_letters, result.changes and result.changes.to_pylist()
