"""Described state: the states of a job's steps, as data that is readable without the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.engine.step import StepCore
from penstock.records.types import CustomColumnCodec
from penstock.runtime.plan import JobPlan
from penstock.snapshots.arrow_schemas import Columns, columns_of, schema_of
from penstock.state.group_table import KEY_COLUMN
from penstock.state.shared import BroadcastState
from penstock.state.state_spec import StateSpec
from penstock.state.stored_blocks import RENAMED_FROM
from penstock.streams.graph import ProcessNode

__all__ = [
    "EXPIRES_AT",
    "STATE_FILE",
    "DescribedState",
    "DescribedStep",
    "JobState",
    "describe_state",
    "read_described",
]

STATE_FILE: Final = "state.json"
EXPIRES_AT: Final = "expires_at"
"""The column of a dump that says when a value with a time to live expires."""


class DescribedState(msgspec.Struct, frozen=True):
    """A state: its kind, its columns in a dump, and its earlier name if it was renamed.

    `required` are the fields of its records that must have a value; those of records in a list begin with "item.", and
    those in a mapping with "key." and "value.".
    """

    kind: str
    columns: Columns
    required: tuple[str, ...] = ()
    renamed_from: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return schema_of(self.columns)


class DescribedStep(msgspec.Struct, frozen=True):
    """A step: the columns of its stored table, its keyed states, and the states that it keeps once for all keys.

    `key_name` is the field that is the key; "key" if a function computes the key, or if several fields are the key.
    """

    node: str
    stored: Columns
    states: dict[str, DescribedState]
    shared: dict[str, DescribedState]
    key_name: str = KEY_COLUMN

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stored table, with the earlier names of renamed states as metadata."""
        schema = schema_of(self.stored)
        for place, name in enumerate(schema.names):
            before = self.states[name].renamed_from if name in self.states else None
            if before is not None:
                schema = schema.set(place, schema.field(name).with_metadata({RENAMED_FROM: before}))
        return schema


class JobState(msgspec.Struct, frozen=True):
    """The states of all steps of a job, by step."""

    job: str
    key_groups: int
    steps: dict[str, DescribedStep]


def describe_state(job: str, plan: JobPlan) -> JobState:
    """Describe the states that a job declares."""
    steps = {node.step: _step(node, plan.core(node)) for node in plan.graph.steps()}
    return JobState(job, plan.key_groups, steps)


def read_described(checkpoint: Path) -> JobState:
    """Read the description of the states in a checkpoint. Raises CheckpointError."""
    found: JobState = Checkpoint(checkpoint).load(STATE_FILE, JobState)
    return found


def _step(node: ProcessNode, core: StepCore) -> DescribedStep:
    key = core.state_schema.field(KEY_COLUMN).with_nullable(nullable=False)
    states = {
        spec.name: DescribedState(
            type(core.states[spec.name]).__name__,
            columns_of(pa.schema([key, pa.field("value", spec.arrow_type, nullable=False), *_expiry(spec)])),
            _required(spec),
            core.states[spec.name].renamed_from,
        )
        for spec in core.specs
    }
    shared = {name: _describe_shared(state) for name, state in core.shared.items()}
    return DescribedStep(node.id, columns_of(core.state_schema), states, shared, node.key.field or KEY_COLUMN)


def _expiry(spec: StateSpec) -> list[pa.Field]:
    return [] if spec.ttl is None else [pa.field(EXPIRES_AT, pa.timestamp("ms", "UTC"))]


def _describe_shared(state: Any) -> DescribedState:
    kind = type(state).__name__
    if isinstance(state, BroadcastState):
        key, value = state.specs()
        fields = [pa.field("key", key.arrow_type, nullable=False), pa.field("value", value.arrow_type)]
        required = (*_required(key, "key."), *_required(value, "value."))
    else:
        value = state.spec()
        fields = [pa.field("at", pa.timestamp("us", "UTC")), pa.field("value", value.arrow_type)]
        required = _required(value)
    return DescribedState(kind, columns_of(pa.schema(fields)), required, state.renamed_from)


def _required(spec: StateSpec, inside: str = "") -> tuple[str, ...]:
    if isinstance(spec.python_type, CustomColumnCodec):
        return tuple(
            path for name, part in spec.python_type.parts().items() for path in _required(part, f"{name}.")
        )
    if spec.record_type is None:
        return ()
    return tuple(f"{inside}{field.name}" for field in spec.record_type.fields if not field.nullable)
