"""Plan resources: what a job consists of, from the description that its newest run has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.checkpoints.described_graph import DescribedNode, NodeKind, read_described_graph
from penstock.checkpoints.described_state import DescribedStep, read_described
from penstock.commands.command_catalog import read_command_catalog
from penstock.commands.settings_in_force import settings_in_force
from penstock.server.resource import Resource

__all__ = [
    "Plan",
    "PlanEdge",
    "PlanNode",
    "PlanPlace",
    "PlanState",
    "PlanWatermarks",
    "PlanWindows",
    "read_plan",
]


@dataclass(frozen=True, kw_only=True)
class PlanPlace(Resource):
    """Where a stream or sink is. Secrets are masked."""

    uri: str
    format: str | None
    limits: dict[str, int]
    """How much of a stream goes into one micro-batch at most, in records, files and bytes."""


@dataclass(frozen=True, kw_only=True)
class PlanWatermarks(Resource):
    """How the watermark of a stream follows from the event times of its records."""

    by: Literal["event time", "ingestion time"]
    generator: str | None
    bound_ms: int | None
    """How far records may be behind the newest one of their partition."""
    idle_ms: int | None
    """After how long a partition without records no longer holds back the watermark."""
    max_ahead_ms: int | None
    """A record further ahead of the clock becomes a dead letter."""


@dataclass(frozen=True, kw_only=True)
class PlanWindows(Resource):
    """The windows of a step."""

    assigner: str
    trigger: str
    contents: str
    evictor: str | None
    parameters: dict[str, Any]
    """What commands may change, as the job declares it."""


@dataclass(frozen=True, kw_only=True)
class PlanState(Resource):
    """A state of a step."""

    name: str
    kind: str
    type: str
    keyed: bool
    """Whether there is one for each key, or one for the step."""


@dataclass(frozen=True, kw_only=True)
class PlanNode(Resource):
    """A part of a job: a stream, a stateless function, a step, or a sink."""

    id: str
    kind: NodeKind
    name: str
    records: dict[str, dict[str, str]]
    """The fields of what leaves it, by output; the main output has an empty name."""
    binding: PlanPlace | None
    time: str | None
    """The field with the event time."""
    watermarks: PlanWatermarks | None
    function: str | None
    level: int | None
    """Of a step: how many shuffles there are up to it."""
    key: tuple[str, ...]
    """The fields of its key, or the function that makes it."""
    key_type: str | None
    windows: PlanWindows | None
    has_timers: bool
    """Whether it may have processing-time timers."""
    by_event_time: bool
    """Whether it has a watermark."""
    states: tuple[PlanState, ...]
    commands: dict[str, tuple[str, ...]]
    """The kinds of commands that it takes, with their scopes."""
    settings: dict[str, Any]
    """The settings of a step that are in force, and those that apply from an event time on."""


@dataclass(frozen=True, kw_only=True)
class PlanEdge(Resource):
    """What leaves an output of a part and goes into another."""

    source: str
    target: str
    output: str
    """Empty for the main output."""
    kind: Literal["forward", "keyed", "broadcast"]
    is_control: bool
    key: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan(Resource):
    """What a job consists of. Each part comes after what it reads."""

    job: str
    key_groups: int
    parallelism: int
    nodes: tuple[PlanNode, ...]
    edges: tuple[PlanEdge, ...]
    commands: PlanPlace | None
    """Where commands come from."""
    receipts: PlanPlace | None
    """Where receipts go beside the checkpoint."""
    dead_letters: PlanPlace


def read_plan(checkpoint: Path) -> Plan:
    """What the job of a checkpoint consists of. Raises CheckpointError when no run has described it yet."""
    graph = read_described_graph(checkpoint)
    states = read_described(checkpoint).steps
    takes = read_command_catalog(checkpoint).steps
    settings = settings_in_force(checkpoint)

    def with_step(node: DescribedNode) -> dict[str, Any]:
        is_step = node.kind == "step"
        return {
            **msgspec.structs.asdict(node),
            "states": tuple(_states(states[node.name])) if is_step and node.name in states else (),
            "commands": takes[node.name].kinds if is_step and node.name in takes else {},
            "settings": settings.get(node.name, {}) if is_step else {},
        }

    described = msgspec.structs.asdict(graph) | {"nodes": [with_step(node) for node in graph.nodes]}
    return msgspec.convert(described, Plan, from_attributes=True)


def _states(step: DescribedStep) -> Iterator[PlanState]:
    for keyed, group in ((True, step.states), (False, step.shared)):
        for name, found in group.items():
            # What a step keeps for itself, its windows and timers, is shown with them.
            if not name.startswith(("__", "@")):
                kind = str(found.schema.field("value").type)
                yield PlanState(name=name, kind=found.kind, type=kind, keyed=keyed)
