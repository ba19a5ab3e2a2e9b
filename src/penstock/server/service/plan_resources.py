"""Plan resources: the graph of a job, from the description that its newest run wrote."""

from __future__ import annotations

from collections.abc import Iterator
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


class PlanPlace(Resource):
    """The location of a stream or sink. Secrets are masked."""

    uri: str
    format: str | None
    """The format of its records."""
    limits: dict[str, int]
    """The largest part of a stream that one micro-batch reads, in records, files and bytes."""


class PlanWatermarks(Resource):
    """How the watermark of a stream is generated from the event times of its records."""

    by: Literal["event time", "ingestion time"]
    generator: str | None
    """The name of a custom watermark generator."""
    bound_ms: int | None
    """How much older records may be than the newest one of their partition."""
    idle_ms: int | None
    """The time after which a partition without records no longer holds back the watermark."""
    max_ahead_ms: int | None
    """How far ahead of the clock records may be; others become dead letters."""


class PlanWindows(Resource):
    """The windows of a step."""

    assigner: str
    trigger: str
    contents: str
    evictor: str | None
    parameters: dict[str, Any]
    """The parameters that commands may change, as the job declares them."""


class PlanState(Resource):
    """A state of a step."""

    name: str
    kind: str
    type: str
    keyed: bool
    """Whether it exists once for each key, not once for the step."""


class PlanNode(Resource):
    """A node of the graph: a stream, a stateless function, a step, or a sink."""

    id: str
    kind: NodeKind
    name: str
    records: dict[str, dict[str, str]]
    """The fields of its output records and their types, by output; the main output has an empty name."""
    binding: PlanPlace | None
    time: str | None
    """Of a stream: the field with the event time."""
    watermarks: PlanWatermarks | None
    function: str | None
    level: int | None
    """Of a step: the number of shuffles up to it, from 1."""
    key: tuple[str, ...]
    """Of a step: the fields of its key, or the function that computes it."""
    key_type: str | None
    """Of a step: the type of its key."""
    windows: PlanWindows | None
    has_timers: bool
    """Whether it can have processing-time timers."""
    by_event_time: bool
    """Whether it has a watermark."""
    states: tuple[PlanState, ...]
    commands: dict[str, tuple[str, ...]]
    """The kinds of commands that it takes, with their scopes."""
    settings: dict[str, Any]
    """Of a step: the settings in force, and those that take effect from a later event time on."""


class PlanEdge(Resource):
    """An edge of the graph, from an output of a node to another node."""

    source: str
    """The id of the node whose records it carries."""
    target: str
    """The id of the node that reads them."""
    output: str
    """The output of the source; empty for the main output."""
    kind: Literal["forward", "keyed", "broadcast"]
    """How records reach the target: unchanged, shuffled by key, or copied to all key groups."""
    is_control: bool
    """Whether it carries a control stream."""
    key: tuple[str, ...]


class Plan(Resource):
    """The graph of a job. Nodes are in topological order: each comes after those that it reads."""

    job: str
    """The name of the job."""
    key_groups: int
    parallelism: int
    """The number of tasks that share each keyed step."""
    nodes: tuple[PlanNode, ...]
    edges: tuple[PlanEdge, ...]
    commands: PlanPlace | None
    """The location of commands; null if the job takes none."""
    receipts: PlanPlace | None
    """The location of receipts; null if only the checkpoint has them."""
    dead_letters: PlanPlace


def read_plan(checkpoint: Path) -> Plan:
    """Read the graph of the job of a checkpoint. Raises CheckpointError if no run has described it yet."""
    graph = read_described_graph(checkpoint)
    states = read_described(checkpoint).steps
    takes = read_command_catalog(checkpoint).steps
    settings = settings_in_force(checkpoint)

    def add_step(node: DescribedNode) -> dict[str, Any]:
        is_step = node.kind == "step"
        return {
            **msgspec.structs.asdict(node),
            "states": tuple(_states(states[node.name])) if is_step and node.name in states else (),
            "commands": takes[node.name].kinds if is_step and node.name in takes else {},
            "settings": settings.get(node.name, {}) if is_step else {},
        }

    described = msgspec.structs.asdict(graph) | {"nodes": [add_step(node) for node in graph.nodes]}
    return msgspec.convert(described, Plan, from_attributes=True)


def _states(step: DescribedStep) -> Iterator[PlanState]:
    for keyed, group in ((True, step.states), (False, step.shared)):
        for name, found in group.items():
            # Internal states, of windows and timers, are not listed: other fields describe them.
            if not name.startswith(("__", "@")):
                kind = str(found.schema.field("value").type)
                yield PlanState(name=name, kind=found.kind, type=kind, keyed=keyed)
