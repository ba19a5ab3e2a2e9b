"""Data streams, keyed streams and connected streams: the words with which a job is described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import JobDefinitionError
from penstock.operators.functions import (
    ConnectedProcessFunction,
    ProcessFunction,
    check_function,
    output_type,
    result_record_type,
)
from penstock.operators.keys import KeySelector, key_selector
from penstock.records import ProtobufSource, RecordType, record_type
from penstock.streams.graph import Edge, Graph, Port, ProcessNode, SinkNode, TransformKind, TransformNode

__all__ = ["ConnectedStream", "DataStream", "KeyedStream", "ProcessedStream"]


@dataclass(frozen=True)
class Origin:
    """Where a stream's records come from: the name of the stream or step, and whether they steer."""

    name: str
    is_control: bool
    protobuf: ProtobufSource | None


class DataStream:
    """A stream of records of one type."""

    def __init__(self, graph: Graph, port: Port, kind: RecordType, origin: Origin) -> None:
        self._graph = graph
        self._port = port
        self._origin = origin
        self.record_type = kind

    def map(self, function: Callable[[Any], Any], *, output: Any = None, name: str = "") -> DataStream:
        """Replace each record by what the function makes of it.

        `output` is the schema of the result; it may be left out when the function's return annotation says it.
        """
        return self._transform("map", function, output, name)

    def filter(self, function: Callable[[Any], bool], *, name: str = "") -> DataStream:
        """Keep the records for which the function is true."""
        return self._transform("filter", function, self.record_type, name)

    def flat_map(self, function: Callable[[Any], Any], *, output: Any = None, name: str = "") -> DataStream:
        """Replace each record by any number of records that the function yields or returns."""
        return self._transform("flat_map", function, output, name)

    def _transform(
        self, kind: TransformKind, function: Callable[[Any], Any], output: Any, name: str
    ) -> DataStream:
        if not callable(function):
            raise JobDefinitionError(f"{kind} needs a function, not {function!r}.")
        number = sum(isinstance(node, TransformNode) for node in self._graph.nodes.values()) + 1
        name = name or f"{kind}-{number}"
        result = (
            record_type(output)
            if output is not None
            else result_record_type(function, f"The {kind} {name!r}")
        )
        if result is None:
            raise JobDefinitionError(
                f"The {kind} {name!r} is annotated to return None, so nothing would come of it."
            )
        node = TransformNode(f"transform/{name}", kind, function, self._port, self.record_type, result)
        self._graph.add(node)
        protobuf = _protobuf_of(output, self._origin.protobuf if kind == "filter" else None)
        origin = Origin(self._origin.name, self._origin.is_control, protobuf)
        return DataStream(self._graph, Port(node.id), result, origin)

    def key_by(self, *key: str | Callable[[Any], Any], key_type: Any = None) -> KeyedStream:
        """Partition the stream by a field, by several fields, or by the result of a function.

        A function needs a return annotation or `key_type`. Keys are integers, text, bytes, dates or (several
        fields) tuples of these. A record whose key is null goes to the dead letters.
        """
        return KeyedStream(self, key_selector(self.record_type, key, key_type))

    def sink_to(self, name: str, *, protobuf: Any = None) -> None:
        """Let the records leave through the sink of that name; a binding says where it goes.

        `protobuf` is the generated message class for bindings with `format=protobuf`, when the stream's schema is
        not itself a protobuf message.
        """
        source = _protobuf_of(protobuf, self._origin.protobuf)
        self._graph.add(SinkNode(f"sink/{name}", name, self._port, self.record_type, source))

    @property
    def graph(self) -> Graph:
        """The job graph that this stream belongs to."""
        return self._graph

    def edge(self, key: KeySelector) -> Edge:
        """The stream as a keyed input of a step."""
        return Edge(self._port, self._origin.name, self.record_type, key, self._origin.is_control)

    @property
    def is_control(self) -> bool:
        """Whether the records steer rather than being processed."""
        return self._origin.is_control

    @property
    def name(self) -> str:
        """Name of the stream or step that the records come from."""
        return self._origin.name


class ProcessedStream(DataStream):
    """What a keyed step emits, with its side outputs."""

    def __init__(self, graph: Graph, node: ProcessNode, main: RecordType) -> None:
        super().__init__(graph, Port(node.id), main, Origin(node.step, False, None))
        self._node = node

    def side_output(self, name: str) -> DataStream:
        """The stream of records that the function emits to that side output."""
        if name not in self._node.outputs or not name:
            known = ", ".join(repr(n) for n in self._node.outputs if n) or "none"
            raise JobDefinitionError(
                f"Step {self._node.step!r} has no side output {name!r}; its function declares {known} in side_outputs."
            )
        origin = Origin(f"{self._node.step}.{name}", False, None)
        return DataStream(self._graph, Port(self._node.id, name), self._node.outputs[name], origin)


class KeyedStream:
    """A stream partitioned by key."""

    def __init__(self, stream: DataStream, key: KeySelector) -> None:
        self.stream = stream
        self.key = key

    def connect(self, *controls: KeyedStream) -> ConnectedStream:
        """Join this stream with control streams that are keyed the same way; any number of them."""
        if not controls:
            raise JobDefinitionError(
                "connect needs at least one control stream: readings.connect(settings.key_by(...))."
            )
        for control in controls:
            self._check_connectable(control)
        return ConnectedStream(self, controls)

    def _check_connectable(self, control: Any) -> None:
        if isinstance(control, DataStream):
            raise JobDefinitionError(
                f"Key the stream {control.name!r} before connecting it: {control.name}.key_by(...)."
            )
        if not control.stream.is_control:
            raise JobDefinitionError(
                f"The stream {control.stream.name!r} is no control stream; declare it with job.control_stream(...)."
            )
        if control.stream.graph is not self.stream.graph:
            raise JobDefinitionError(f"The stream {control.stream.name!r} belongs to another job.")
        if not control.key.key_type.equals(self.key.key_type):
            raise JobDefinitionError(
                f"The keys of {self.stream.name!r} ({self.key.key_type}) and {control.stream.name!r} "
                f"({control.key.key_type}) differ in type."
            )

    def process(self, step: str, function: ProcessFunction, *, output: Any = None) -> ProcessedStream:
        """Run a process function on the records. `step` is the stable name to which the state belongs."""
        check_function(function, step, connected=False)
        return _process(step, function, [self], output)


class ConnectedStream:
    """A keyed data stream joined with keyed control streams."""

    def __init__(self, data: KeyedStream, controls: tuple[KeyedStream, ...]) -> None:
        self._data = data
        self._controls = controls

    def process(
        self, step: str, function: ConnectedProcessFunction, *, output: Any = None
    ) -> ProcessedStream:
        """Run a connected process function. `step` is the stable name to which the state belongs."""
        check_function(function, step, connected=True)
        return _process(step, function, [*self._controls, self._data], output)


def _process(step: str, function: ProcessFunction, inputs: list[KeyedStream], output: Any) -> ProcessedStream:
    if not step or "/" in step:
        raise JobDefinitionError(f"{step!r} is no name for a step: it must not be empty nor contain a slash.")
    main = output_type(function, output, step)
    outputs: dict[str, RecordType] = {} if main is None else {"": main}
    for name, kind in function.side_outputs.items():
        outputs[name] = record_type(kind)
    edges = tuple(keyed.stream.edge(keyed.key) for keyed in inputs)
    node = ProcessNode(f"step/{step}", step, function, edges, outputs)
    graph = inputs[0].stream.graph
    graph.add(node)
    return ProcessedStream(graph, node, main if main is not None else record_type("nothing BOOLEAN"))


def _protobuf_of(schema: Any, otherwise: ProtobufSource | None) -> ProtobufSource | None:
    if schema is not None and hasattr(schema, "DESCRIPTOR") and hasattr(schema, "SerializeToString"):
        return ProtobufSource.of(schema)
    return otherwise
