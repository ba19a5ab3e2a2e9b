"""The graph that a job's description builds: sources, transforms, unions, steps and sinks, joined by ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock.control.commands import COMMANDS
from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.functions import ProcessFunction
from penstock.operators.keys import KeySelector
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type, versioned
from penstock.records.types import RecordType
from penstock.streams.watermark_strategies import Watermarks

__all__ = [
    "COMMANDS",
    "DEAD_LETTERS",
    "RECEIPTS",
    "STARTS",
    "Edge",
    "EventTimeNode",
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

# Streams that every job has: commands that enter it, receipts that tell what became of them, and the place for records
# that cannot be processed.
RECEIPTS: Final = "receipts"
DEAD_LETTERS: Final = "dead-letters"
STARTS: Final = "@starts"
"""A stream without records, which moves at each start of a job with timers. No stream of a user can have its name."""

_TAKEN: Final = {
    COMMANDS: "the commands that steer a job",
    RECEIPTS: "the receipts of commands",
    DEAD_LETTERS: "the records that cannot be processed",
}

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

TransformKind = Literal["map", "filter", "flat_map"]


def check_name(kind: str, name: object) -> None:
    """Raise JobDefinitionError when a job, stream or sink cannot have that name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise JobDefinitionError(
            f"{name!r} is no {kind} name. Use letters, digits, dots, dashes and underscores, a letter or digit first."
        )
    if name in _TAKEN and kind != "job":
        raise JobDefinitionError(f"The name {name!r} is taken by {_TAKEN[name]}; choose another {kind} name.")


def described_type(schema: Any, who: str) -> RecordType:
    """The record type of a schema; SchemaError says whose schema cannot be used."""
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
    """Whether an annotation or `output=` says what the records are."""
    return schema is not None and schema is not type(None) and schema is not Any


def output_name(step: str, output: str) -> str:
    """What the stream of a step's output is called: the step for the main one, else STEP.OUTPUT."""
    return f"{step}.{output}" if output else step


@dataclass(frozen=True)
class Port:
    """One output of one node: "" is the main one, others are side outputs."""

    node: str
    output: str = ""


@dataclass(frozen=True)
class SourceNode:
    """A named stream that enters the job.

    `time` is the field with the event time of data, from which `watermarks` follow, if there are any.
    """

    id: str
    name: str
    is_control: bool
    record_type: RecordType
    protobuf: ProtobufSource | None
    allow_nan: bool
    time: str | None = None
    watermarks: Watermarks | None = None


@dataclass(frozen=True)
class TransformNode:
    """A stateless function on single records.

    `time` is the field of what comes in that has the event time, where no field of what leaves has it.
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
class EventTimeNode:
    """From here on the field `time` has the event time of records. Those in which it is null go no further."""

    id: str
    upstream: Port
    record_type: RecordType
    time: str


@dataclass(frozen=True)
class UnionNode:
    """The records of several data streams as one stream."""

    id: str
    name: str
    upstreams: tuple[Port, ...]


StatelessNode = TransformNode | EventTimeNode | UnionNode


@dataclass(frozen=True)
class Edge:
    """An input of a step: keyed, or broadcast when it has no key.

    `time` and `version` are the fields with the record's time and, of a control record, its version. In place of a
    field `INGESTION_TIME` says that data counts when it arrives, and `EVENT_TIME` that its time travels beside it.
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

    Its edges stand with control streams first, the broadcast ones before the keyed ones; data is last.

    With `stamped` the records of the main output leave with the control version under which they were made.
    """

    id: str
    step: str
    function: ProcessFunction
    edges: tuple[Edge, ...]
    emitted: dict[str, RecordType]
    stamped: bool = False

    @property
    def outputs(self) -> dict[str, RecordType]:
        """The types of what leaves the step, by output."""
        if not self.stamped:
            return self.emitted
        return {**self.emitted, "": versioned(self.emitted[""])}

    @property
    def key(self) -> KeySelector:
        """The key of the step's data; of a step without one, what tells its records apart by their place."""
        key = self.edges[-1].key
        assert key is not None
        return key


@dataclass(frozen=True)
class SinkNode:
    """A named place where records leave the job."""

    id: str
    name: str
    upstream: Port
    record_type: RecordType
    protobuf: ProtobufSource | None


Node = SourceNode | StatelessNode | ProcessNode | SinkNode


@dataclass
class Graph:
    """All nodes of a job, in the order in which they were described (so upstream before downstream)."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Add a node; JobDefinitionError when its id is taken."""
        if node.id in self.nodes:
            kind, _, name = node.id.partition("/")
            raise JobDefinitionError(
                f"The job has two {_PLURAL[kind]} named {name!r}. Each needs a name of its own."
            )
        self.nodes[node.id] = node

    def replace(self, node: Node) -> None:
        """Replace the node of the same id."""
        self.nodes[node.id] = node

    def check_port(self, port: Port) -> None:
        """Raise JobDefinitionError when nothing can ever leave the port, since its step emits nothing."""
        node = self.nodes[port.node]
        if isinstance(node, ProcessNode) and port.output not in node.outputs:
            raise JobDefinitionError(
                f"Step {node.step!r} emits nothing: its function is annotated to return None. Annotate it "
                "(-> Iterator[MyRecord]) or add output=MyRecord."
            )

    def sources(self) -> list[SourceNode]:
        """The sources, in order."""
        return [node for node in self.nodes.values() if isinstance(node, SourceNode)]

    def steps(self) -> list[ProcessNode]:
        """The keyed steps, in order."""
        return [node for node in self.nodes.values() if isinstance(node, ProcessNode)]

    def sinks(self) -> list[SinkNode]:
        """The sinks, in order."""
        return [node for node in self.nodes.values() if isinstance(node, SinkNode)]

    def origins(self, port: Port) -> list[SourceNode | ProcessNode]:
        """The sources and steps from which the records of a port come, each once; several behind a union."""
        node = self.nodes[port.node]
        if isinstance(node, SourceNode | ProcessNode):
            return [node]
        assert not isinstance(node, SinkNode)
        found = [origin for upstream in inputs(node) for origin in self.origins(upstream)]
        return list({origin.id: origin for origin in found}.values())

    def has_watermarks(self, port: Port) -> bool:
        """Whether watermarks come with the records of a port."""
        return all(
            self.has_watermarks(origin.edges[-1].port)
            if isinstance(origin, ProcessNode)
            else origin.watermarks is not None
            for origin in self.origins(port)
        )

    def united(self, port: Port) -> list[Port]:
        """The ports whose records are those of a port as they are: itself, or behind unions those of all streams."""
        node = self.nodes[port.node]
        if isinstance(node, UnionNode):
            return [found for upstream in node.upstreams for found in self.united(upstream)]
        return [port]

    def consumers(self, port: Port) -> Iterator[tuple[Node, int]]:
        """The nodes that read a port, each with the number of the input (0 but for steps and unions)."""
        for node in self.nodes.values():
            for number, upstream in enumerate(inputs(node)):
                if upstream == port:
                    yield node, number


def inputs(node: Node) -> tuple[Port, ...]:
    """The ports that a node reads, in order."""
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
