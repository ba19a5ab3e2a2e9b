"""Described graph: the parts of a job and their connections, as data that is readable without the job.

`described_state` describes the states of the steps, and `commands` the commands that they take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.bindings.secrets import public_uri
from penstock.bindings.types import RECORDS_PER_BATCH, Binding, FilesBinding, KafkaBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.joins.table_lookup import TableLookup
from penstock.operators.keys import KeySelector
from penstock.operators.watermarks import INGESTION_TIME
from penstock.operators.window_step import WindowStep
from penstock.records.types import RecordType
from penstock.runtime.plan import JobPlan, has_timers
from penstock.streams.graph import (
    COMMANDS,
    ChangelogNode,
    EventTimeNode,
    ExpressionNode,
    Node,
    ProcessNode,
    SinkNode,
    SourceNode,
    TransformNode,
    inputs,
)
from penstock.streams.own_streams import DEAD_LETTERS, RECEIPTS
from penstock.streams.watermark_strategies import Watermarks

__all__ = [
    "GRAPH_FILE",
    "DescribedEdge",
    "DescribedGraph",
    "DescribedNode",
    "DescribedPlace",
    "DescribedWatermarks",
    "DescribedWindows",
    "NodeKind",
    "describe_graph",
    "read_described_graph",
]

GRAPH_FILE: Final = "graph.json"

NodeKind: TypeAlias = Literal[
    "data stream",
    "control stream",
    "map",
    "filter",
    "flat_map",
    "where",
    "select",
    "event time",
    "changelog",
    "union",
    "step",
    "lookup table",
    "sink",
]


class DescribedPlace(msgspec.Struct, frozen=True):
    """The place of a stream or sink: its URI, with secrets masked, and the format of its records.

    `limits` is how much of a stream one micro-batch reads at most, in "records", "files" and "bytes".
    """

    uri: str
    format: str | None = None
    limits: dict[str, int] = {}


class DescribedWatermarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a stream derives its watermark from the event times of its records; times are in milliseconds."""

    by: Literal["event time", "ingestion time"] = "event time"
    generator: str | None = None
    bound_ms: int | None = None
    idle_ms: int | None = None
    max_ahead_ms: int | None = None


class DescribedWindows(msgspec.Struct, frozen=True, omit_defaults=True):
    """The windows of a step: the names of their parts, how they process records, and what commands may change."""

    assigner: str
    trigger: str
    contents: str
    evictor: str | None = None
    parameters: dict[str, Any] = {}


class DescribedNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a job. `records` has the fields of its output records with their types, by output ("" is the main one).

    For a stream, `time` is the field with the event time. For a step, `level` counts the shuffles up to it from 1;
    `key` has the fields of its key, or the function that computes it, and `key_type` its type.
    """

    id: str
    kind: NodeKind
    name: str
    records: dict[str, dict[str, str]] = {}
    binding: DescribedPlace | None = None
    time: str | None = None
    watermarks: DescribedWatermarks | None = None
    function: str | None = None
    level: int | None = None
    key: tuple[str, ...] = ()
    key_type: str | None = None
    windows: DescribedWindows | None = None
    has_timers: bool = False
    by_event_time: bool = False


class DescribedEdge(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A connection from an output of a part to another part: unchanged, shuffled by key, or to all key groups."""

    source: str
    target: str
    output: str = ""
    kind: Literal["forward", "keyed", "broadcast"] = "forward"
    is_control: bool = False
    key: tuple[str, ...] = ()


class DescribedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A job: its parts, each after those that it reads, their edges, and the streams that every job has.

    `commands`, `receipts` and `dead_letters` are the places of these streams; None if the job has none, or if only its
    checkpoint has them.
    """

    job: str
    key_groups: int
    parallelism: int
    nodes: tuple[DescribedNode, ...]
    edges: tuple[DescribedEdge, ...]
    commands: DescribedPlace | None
    receipts: DescribedPlace | None
    dead_letters: DescribedPlace


def describe_graph(job: str, plan: JobPlan, bindings: Mapping[str, Binding]) -> DescribedGraph:
    """Describe a job that is about to run. `bindings` are those of its streams and sinks, by name."""
    levels = {node.id: number for number, level in enumerate(plan.levels(), 1) for node in level}
    nodes = plan.graph.nodes.values()
    return DescribedGraph(
        job=job,
        key_groups=plan.key_groups,
        parallelism=plan.parallelism,
        nodes=(*_lookups(plan, bindings), *(_node(node, plan, bindings, levels) for node in nodes)),
        edges=tuple(edge for node in nodes for edge in _edges(node)),
        commands=_place(bindings.get(COMMANDS)),
        receipts=_place(bindings.get(RECEIPTS)),
        dead_letters=_known_place(bindings[DEAD_LETTERS]),
    )


def _lookups(plan: JobPlan, bindings: Mapping[str, Binding]) -> Iterable[DescribedNode]:
    """Describe the tables in which steps look records up."""
    for name, kind in plan.graph.lookups.items():
        yield DescribedNode(
            id=_lookup_id(name),
            kind="lookup table",
            name=name,
            records={"": _fields(kind)},
            binding=_place(bindings[name]),
        )


def _lookup_id(name: str) -> str:
    return f"lookup/{name}"


def read_described_graph(checkpoint: Path) -> DescribedGraph:
    """Read the description of the job from its checkpoint. Raises CheckpointError."""
    found: DescribedGraph = Checkpoint(checkpoint).load(GRAPH_FILE, DescribedGraph)
    return found


def _node(
    node: Node, plan: JobPlan, bindings: Mapping[str, Binding], levels: Mapping[str, int]
) -> DescribedNode:
    if isinstance(node, SourceNode):
        return DescribedNode(
            id=node.id,
            kind="control stream" if node.is_control else "data stream",
            name=node.name,
            records={"": _fields(node.record_type)},
            binding=_source_place(bindings[node.name]),
            time=None if node.time == INGESTION_TIME else node.time,
            watermarks=_watermarks(node.time, node.watermarks),
        )
    if isinstance(node, SinkNode):
        records = {"": _fields(node.record_type)}
        return DescribedNode(
            id=node.id, kind="sink", name=node.name, records=records, binding=_place(bindings[node.name])
        )
    if isinstance(node, ProcessNode):
        return _step(node, plan, levels[node.id])
    if isinstance(node, TransformNode):
        return DescribedNode(
            id=node.id,
            kind=node.kind,
            name=node.name,
            records={"": _fields(node.record_type)},
            function=_name_of(node.function),
        )
    if isinstance(node, ExpressionNode):
        return DescribedNode(
            id=node.id,
            kind=node.kind,
            name=node.name,
            records={"": _fields(node.record_type)},
            function=node.expression.sql,
        )
    if isinstance(node, EventTimeNode):
        return DescribedNode(
            id=node.id,
            kind="event time",
            name=node.time,
            records={"": _fields(node.record_type)},
            time=node.time,
        )
    if isinstance(node, ChangelogNode):
        return DescribedNode(
            id=node.id,
            kind="changelog",
            name=node.kind.field or "insertions",
            records={"": _fields(node.record_type)},
        )
    return DescribedNode(id=node.id, kind="union", name=node.name)


def _step(node: ProcessNode, plan: JobPlan, level: int) -> DescribedNode:
    function = node.function
    is_window = isinstance(function, WindowStep)
    return DescribedNode(
        id=node.id,
        kind="step",
        name=node.step,
        records={output: _fields(kind) for output, kind in node.outputs.items()},
        function=None if is_window else _name_of(type(function)),
        level=level,
        key=_key(node.key),
        key_type=None if node.key.by_place else str(node.key.key_type),
        windows=_windows(function) if isinstance(function, WindowStep) else None,
        has_timers=has_timers(node),
        by_event_time=bool(plan.watermark_rules(node)),
    )


def _windows(step: WindowStep) -> DescribedWindows:
    contents, operator = step.spec.contents, step.operator
    does = contents.function or getattr(contents, "aggregate", None)
    return DescribedWindows(
        assigner=type(step.spec.assigner).__name__,
        trigger=type(operator.trigger).__name__,
        contents=type(contents if does is None else does).__name__,
        evictor=None if operator.evictor is None else type(operator.evictor).__name__,
        parameters={name: msgspec.to_builtins(p.given, enc_hook=str) for name, p in step.parameters.items()},
    )


def _edges(node: Node) -> Iterable[DescribedEdge]:
    if isinstance(node, ProcessNode):
        for edge in node.edges:
            yield DescribedEdge(
                source=edge.port.node,
                target=node.id,
                output=edge.port.output,
                kind="broadcast" if edge.key is None else "keyed",
                is_control=edge.is_control,
                key=() if edge.key is None else _key(edge.key),
            )
        if isinstance(node.function, TableLookup):
            yield DescribedEdge(source=_lookup_id(node.function.table), target=node.id)
        return
    for port in inputs(node):
        yield DescribedEdge(source=port.node, target=node.id, output=port.output)


def _key(key: KeySelector) -> tuple[str, ...]:
    if key.function is not None:
        return (_name_of(key.function),)
    return key.fields


def _fields(kind: RecordType) -> dict[str, str]:
    return {field.name: str(field.arrow_type) for field in kind.fields}


def _watermarks(time: str | None, marks: Watermarks | None) -> DescribedWatermarks | None:
    if marks is None:
        return None
    if time == INGESTION_TIME:
        return DescribedWatermarks("ingestion time")
    return DescribedWatermarks(
        generator=None if marks.generator is None else _name_of(marks.generator),
        bound_ms=marks.bound_ms,
        idle_ms=marks.idle_ms,
        max_ahead_ms=marks.max_ahead_ms,
    )


def _place(binding: Binding | None) -> DescribedPlace | None:
    return None if binding is None else _known_place(binding)


def _known_place(binding: Binding) -> DescribedPlace:
    return DescribedPlace(public_uri(binding), getattr(binding, "format", None))


def _source_place(binding: Binding) -> DescribedPlace:
    limits: dict[str, int | None] = {}
    if isinstance(binding, FilesBinding):
        limits = {"files": binding.max_files_per_batch, "bytes": binding.max_bytes_per_batch}
    elif isinstance(binding, KafkaBinding):
        most = binding.max_records_per_batch or RECORDS_PER_BATCH
        limits = {"records": most, "bytes": binding.max_bytes_per_batch}
    known = {unit: limit for unit, limit in limits.items() if limit is not None}
    return msgspec.structs.replace(_known_place(binding), limits=known)


def _name_of(function: Any) -> str:
    """Return the name of a function or class in its module; without one, such as for a partial, that of its type."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
