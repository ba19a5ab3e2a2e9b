"""The graph that a job description builds: sources, transforms, unions, steps and sinks, connected by ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.control.commands import COMMANDS
from penstock.errors import JobDefinitionError, SchemaError
from penstock.expressions.expression import Condition, Selection
from penstock.joins.join_step import JoinStep
from penstock.operators.functions import ProcessFunction
from penstock.operators.keys import KeySelector
from penstock.records.message_metadata import Metadata, body_type
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type, versioned
from penstock.records.types import RecordType
from penstock.streams.own_streams import DEAD_LETTERS, RECEIPTS
from penstock.streams.watermark_strategies import Watermarks
from penstock.tables.decoded_changes import KindField

__all__ = [
    "COMMANDS",
    "ChangelogNode",
    "Edge",
    "EventTimeNode",
    "ExpressionNode",
    "Graph",
    "Node",
    "Port",
    "ProcessNode",
    "SinkNode",
    "SourceNode",
    "StatelessNode",
    "TransformNode",
    "UnionNode",
    "check_name",
    "described_type",
    "inputs",
    "is_given",
    "output_name",
]

_TAKEN: Final = {
    COMMANDS: "the commands that steer a job",
    RECEIPTS: "the receipts of commands",
    DEAD_LETTERS: "the records that cannot be processed",
}

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

TransformKind = Literal["map", "filter", "flat_map"]


def check_name(kind: str, name: object) -> None:
    """Raise JobDefinitionError when the name is not valid for a job, stream or sink."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise JobDefinitionError(
            f"{name!r} is not a {kind} name. Use letters, digits, dots, dashes and underscores; start with a letter or "
            "digit."
        )
    if name in _TAKEN and kind != "job":
        raise JobDefinitionError(f"The name {name!r} is taken by {_TAKEN[name]}; choose another {kind} name.")


def described_type(schema: Any, who: str) -> RecordType:
    """Return the record type of a schema. Raises SchemaError, which names `who`, when it cannot be used."""
    try:
        kind = record_type(schema)
    except SchemaError as e:
        raise SchemaError(f"{who}: {e}") from e
    twice = [name for name in kind.field_names if kind.schema.names.count(name) > 1]
    if twice:
        raise SchemaError(f"{who}: {schema!r} has the field {twice[0]!r} twice; rename one.")
    for name in kind.field_names:
        if name.startswith("__"):
            raise SchemaError(
                f"{who}: the field {name!r} starts with two underscores, as only penstock's own columns do; rename it."
            )
    return kind


def is_given(schema: Any) -> bool:
    """Return whether an annotation or `output=` specifies the type of the records."""
    return schema is not None and schema is not type(None) and schema is not Any


def output_name(step: str, output: str) -> str:
    """Return the name of a step's output stream: the step's for the main output, else STEP.OUTPUT."""
    return f"{step}.{output}" if output else step


@dataclass(frozen=True)
class Port:
    """One output of one node: "" is the main output, any other name a side output."""

    node: str
    output: str = ""


@dataclass(frozen=True)
class SourceNode:
    """A named stream that enters the job.

    `time` is the event-time field of a data stream. Its `watermarks`, if any, are derived from that field. `metadata`
    are the fields that Kafka messages fill.
    """

    id: str
    name: str
    is_control: bool
    record_type: RecordType
    protobuf: ProtobufSource | None
    allow_nan: bool
    time: str | None = None
    watermarks: Watermarks | None = None
    metadata: Metadata = ()

    @property
    def body_type(self) -> RecordType:
        """The record type of the bodies of Kafka messages."""
        return body_type(self.record_type, self.metadata)


@dataclass(frozen=True)
class TransformNode:
    """A stateless function on single records.

    `time` is the event-time field of the input records, set only when no field of the output records holds that time.
    """

    id: str
    name: str
    kind: TransformKind
    function: Callable[[Any], Any]
    upstream: Port
    input_type: RecordType
    record_type: RecordType
    time: str | None = None


@dataclass(frozen=True)
class ExpressionNode:
    """A condition or selection on the columns of records. `time` is as in `TransformNode`."""

    id: str
    name: str
    kind: Literal["where", "select"]
    expression: Condition | Selection
    upstream: Port
    input_type: RecordType
    record_type: RecordType
    time: str | None = None


@dataclass(frozen=True)
class EventTimeNode:
    """A new event time of records: downstream it is in the field `time`. If that is null, they are dead letters."""

    id: str
    upstream: Port
    record_type: RecordType
    time: str


@dataclass(frozen=True)
class ChangelogNode:
    """The records of an appending stream as changes, of the kind in one of their fields, or as insertions."""

    id: str
    upstream: Port
    input_type: RecordType
    record_type: RecordType
    kind: KindField


@dataclass(frozen=True)
class UnionNode:
    """The records of several data streams as one stream."""

    id: str
    name: str
    upstreams: tuple[Port, ...]


StatelessNode = TransformNode | ExpressionNode | EventTimeNode | ChangelogNode | UnionNode


@dataclass(frozen=True)
class Edge:
    """An input of a step: keyed, or broadcast when it has no key.

    `time` and `version` are the fields with the record's time and, for a control record, its version. Instead of a
    field, `time` can be `INGESTION_TIME` (data counts when it arrives) or `EVENT_TIME` (the time is in a separate
    column).
    """

    port: Port
    stream: str
    record_type: RecordType
    key: KeySelector | None
    is_control: bool
    time: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class ProcessNode:
    """A step with a process function.

    Edges are in order: broadcast control streams, keyed control streams, data; a join has two data streams.

    If `stamped`, each record of the main output carries the control version under which it was made.
    """

    id: str
    step: str
    function: ProcessFunction
    edges: tuple[Edge, ...]
    emitted: dict[str, RecordType]
    stamped: bool = False

    @property
    def outputs(self) -> dict[str, RecordType]:
        """The record types that the step emits, by output."""
        if not self.stamped:
            return self.emitted
        return {**self.emitted, "": versioned(self.emitted[""])}

    @property
    def time_edges(self) -> tuple[Edge, ...]:
        """The inputs whose watermarks are those of the step: its data, or both sides of a join by event time."""
        if isinstance(self.function, JoinStep):
            sides = self.function.side_inputs if self.function.needs_time else self.function.side_inputs[:1]
            return tuple(self.edges[side] for side in sides)
        return self.edges[-1:]

    @property
    def key(self) -> KeySelector:
        """The key selector of the step's data; in a step without a key, the one that selects a record's place."""
        key = self.edges[-1].key
        assert key is not None
        return key


@dataclass(frozen=True)
class SinkNode:
    """A named place where records leave the job.

    `upsert_key` are the fields that identify a row if it takes the upserts of a changelog, else None.
    """

    id: str
    name: str
    upstream: Port
    record_type: RecordType
    protobuf: ProtobufSource | None
    upsert_key: tuple[str, ...] | None = None


Node = SourceNode | StatelessNode | ProcessNode | SinkNode


@dataclass
class Graph:
    """All nodes of a job, in the order of their description (so upstream before downstream).

    `lookups` are the tables outside in which steps look records up.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    lookups: dict[str, RecordType] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Add a node. Raises JobDefinitionError when its id is taken."""
        if node.id in self.nodes:
            kind, _, name = node.id.partition("/")
            raise JobDefinitionError(
                f"The job has two {_PLURAL[kind]} named {name!r}. Each needs a name of its own."
            )
        self.nodes[node.id] = node

    def replace(self, node: Node) -> None:
        """Replace the node with the same id."""
        self.nodes[node.id] = node

    def check_port(self, port: Port) -> None:
        """Raise JobDefinitionError when the port can never have records because its step emits nothing."""
        node = self.nodes[port.node]
        if isinstance(node, ProcessNode) and port.output not in node.outputs:
            raise JobDefinitionError(
                f"Step {node.step!r} emits nothing: its function is annotated to return None. Annotate it "
                "(-> Iterator[MyRecord]) or add output=MyRecord."
            )

    def sources(self) -> list[SourceNode]:
        """Return the sources, in order."""
        return [node for node in self.nodes.values() if isinstance(node, SourceNode)]

    def steps(self) -> list[ProcessNode]:
        """Return the steps, in order."""
        return [node for node in self.nodes.values() if isinstance(node, ProcessNode)]

    def sinks(self) -> list[SinkNode]:
        """Return the sinks, in order."""
        return [node for node in self.nodes.values() if isinstance(node, SinkNode)]

    def origins(self, port: Port) -> list[SourceNode | ProcessNode]:
        """Return the sources and steps that the records of a port come from, each once; several after a union."""
        node = self.nodes[port.node]
        if isinstance(node, SourceNode | ProcessNode):
            return [node]
        assert not isinstance(node, SinkNode)
        found = [origin for upstream in inputs(node) for origin in self.origins(upstream)]
        return list({origin.id: origin for origin in found}.values())

    def has_watermarks(self, port: Port) -> bool:
        """Return whether the records of a port have watermarks."""
        return all(
            all(self.has_watermarks(edge.port) for edge in origin.time_edges)
            if isinstance(origin, ProcessNode)
            else origin.watermarks is not None
            for origin in self.origins(port)
        )

    def united(self, port: Port) -> list[Port]:
        """Return the ports whose records the port passes on unchanged: itself, or after a union those of its inputs."""
        node = self.nodes[port.node]
        if isinstance(node, UnionNode):
            return [found for upstream in node.upstreams for found in self.united(upstream)]
        return [port]

    def consumers(self, port: Port) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that read a port, each with the number of the input (0 except for steps and unions)."""
        for node in self.nodes.values():
            for number, upstream in enumerate(inputs(node)):
                if upstream == port:
                    yield node, number


def inputs(node: Node) -> tuple[Port, ...]:
    """Return the ports that a node reads, in order."""
    if isinstance(node, SourceNode):
        return ()
    if isinstance(node, ProcessNode):
        return tuple(edge.port for edge in node.edges)
    return node.upstreams if isinstance(node, UnionNode) else (node.upstream,)


_PLURAL = {
    "source": "streams",
    "transform": "transforms",
    "union": "unions",
    "step": "steps",
    "sink": "sinks",
}
