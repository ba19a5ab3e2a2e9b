"""Listing state: which states a job holds, and what it holds for one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.checkpoints.described_state import DescribedStep, JobState, read_described
from penstock.errors import CheckpointError
from penstock.savepoints.captured_tables import FrozenEntries
from penstock.savepoints.snapshot_capture import committed, read_step
from penstock.savepoints.state_pages import key_of_text
from penstock.snapshots.table_formats import json_rows
from penstock.spark.types import SparkSession
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_groups import key_groups
from penstock.state.stored_blocks import Content
from penstock.state.stored_runs import stored_table

__all__ = ["AskedKey", "asked_key", "listed", "value_of_key"]


class _Counts(msgspec.Struct):
    """The part of the counts that is shown: keys by step and slot."""

    keys: dict[str, dict[str, int]] = {}


def listed(checkpoint: Path, state: JobState) -> list[dict[str, Any]]:
    """The steps of a job with the number of keys that they hold, and their states. Needs no Spark."""
    counts = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    return [
        {
            "step": name,
            "keys": sum(counts.keys.get(name, {}).values()),
            "key": str(step.schema.field(KEY_COLUMN).type),
            "states": [
                {"name": state_name, "kind": found.kind, "type": str(found.schema.field("value").type)}
                for state_name, found in {**step.states, **step.shared}.items()
                if not state_name.startswith("__")
            ],
        }
        for name, step in state.steps.items()
    ]


@dataclass(frozen=True)
class AskedKey:
    """A key of a step after a micro-batch, which there are."""

    checkpoint: Checkpoint
    node: str
    number: int
    reader: _KeyReader


def asked_key(checkpoint: Checkpoint, step: str, key: str, batch: int | None) -> AskedKey:
    """A key by its text, to be read; of the newest micro-batch without a number. Needs no Spark.

    Raises CheckpointError when there is no such step or micro-batch, or the key is not of the step's type.
    """
    lineage = checkpoint.known_lineage()
    state = read_described(checkpoint.folder)
    described = state.steps.get(step)
    if described is None:
        known = ", ".join(state.steps) or "none"
        raise CheckpointError(f"The job {state.job!r} has no step {step!r}; its steps are {known}.")
    wanted = key_of_text(key, described)
    (group,) = key_groups(wanted, state.key_groups).tolist()
    reader = _KeyReader(described, group, wanted.to_pylist()[0])
    number = committed(checkpoint, lineage, batch) - lineage.first_batch
    return AskedKey(checkpoint, described.node, number, reader)


def value_of_key(session: SparkSession, asked: AskedKey) -> dict[str, Any] | None:
    """What the step holds for the key, by the names of its states, as JSON values; None for nothing.

    Raises CheckpointError when the micro-batch is gone meanwhile.
    """
    found = read_step(session, asked.checkpoint, asked.number, asked.node, asked.reader)
    return msgspec.json.decode(found[0]) if found else None


@dataclass(frozen=True)
class _KeyReader:
    """Finds one key in the slot that has it, in a worker."""

    step: DescribedStep
    group: int
    key: Any

    def __call__(self, number: int, entries: Mapping[str, Content]) -> Iterator[bytes]:  # noqa: ARG002  # as SlotReader
        table = stored_table(self.step.schema, FrozenEntries(entries), self.group)
        places = table.find(pa.array([self.key], self.step.schema.field(KEY_COLUMN).type))
        if places[0] >= 0:
            rows = table.rows(places)
            shown = rows.select([n for n in rows.schema.names if n != KEY_COLUMN and not n.startswith("__")])
            (values,) = json_rows(shown)
            yield msgspec.json.encode(values)
