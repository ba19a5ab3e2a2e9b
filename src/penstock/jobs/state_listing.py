"""Listing state: which states a job holds, and what it holds for one key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import CheckpointError
from penstock.jobs.capturing import FrozenEntries, committed, read_step
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.described_state import DescribedStep, JobState, read_described
from penstock.jobs.own_files import stored_counts
from penstock.jobs.state_pages import key_of_text
from penstock.snapshots.formats import json_rows
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_groups import key_groups
from penstock.state.slot_tables import SlotTables

__all__ = ["KeyLookup", "listed"]


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
class KeyLookup:
    """A key of a step of a job. What is wrong with either is told when this is made, which needs no Spark."""

    checkpoint: Checkpoint
    node: str
    reader: _KeyReader

    @classmethod
    def of(cls, checkpoint: Checkpoint, step: str, key: str) -> KeyLookup:
        """The key that a text says; raises CheckpointError for a step that there is not, or a key not of its type."""
        state = read_described(checkpoint.folder)
        described = state.steps.get(step)
        if described is None:
            known = ", ".join(state.steps) or "none"
            raise CheckpointError(f"The job {state.job!r} has no step {step!r}; its steps are {known}.")
        wanted = key_of_text(key, described)
        (group,) = key_groups(wanted, state.key_groups).tolist()
        return cls(checkpoint, described.node, _KeyReader(described, group, wanted.to_pylist()[0]))

    def value(self, session: SparkSession, batch: int | None) -> dict[str, Any] | None:
        """What the step holds for the key after a micro-batch, by the names of its states, as JSON values.

        Without a micro-batch after the newest one; None when it holds nothing.
        """
        lineage = self.checkpoint.stored_lineage()
        assert lineage is not None
        number = committed(self.checkpoint, lineage, batch) - lineage.first_batch
        found = read_step(session, self.checkpoint, number, self.node, self.reader)
        return msgspec.json.decode(found[0]) if found else None


@dataclass(frozen=True)
class _KeyReader:
    """Finds one key in the slot that has it, in a worker."""

    step: DescribedStep
    group: int
    key: Any

    def __call__(self, number: int, entries: dict[str, bytes]) -> Iterator[bytes]:  # noqa: ARG002  # as SlotReader
        tables = SlotTables(self.step.schema, FrozenEntries(entries))
        table = tables.table(self.group)
        places = table.find(pa.array([self.key], self.step.schema.field(KEY_COLUMN).type))
        if places[0] >= 0:
            rows = table.rows(places)
            shown = rows.select([n for n in rows.schema.names if n != KEY_COLUMN and not n.startswith("__")])
            (values,) = json_rows(shown)
            yield msgspec.json.encode(values)
