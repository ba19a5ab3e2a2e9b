"""Described streams: a stream as part of a job's graph, without the fluent API."""

from __future__ import annotations

from penstock.operators.keys import KeySelector
from penstock.records.types import RecordType
from penstock.streams.graph import Edge, Graph, Port
from penstock.streams.origin import Origin

__all__ = ["DescribedStream", "KeyedInput", "StepInput"]


class DescribedStream:
    """A stream of records of one type, as described by the user.

    Attributes:
        graph: the graph of the job that the stream belongs to.
        port: the output of the graph node that emits the records.
        record_type: the type of the records.
        origin: where the records come from.

    """

    def __init__(self, graph: Graph, port: Port, record_type: RecordType, origin: Origin) -> None:
        self.graph = graph
        self.port = port
        self.record_type = record_type
        self.origin = origin

    def same_as(self, other: DescribedStream) -> bool:
        """Return whether the other stream is the same one, with the same records."""
        return self.graph is other.graph and self.port == other.port

    def check_port(self) -> None:
        """Raise JobDefinitionError when the stream can never have records because the step before it emits nothing."""
        self.graph.check_port(self.port)

    def edge(self, key: KeySelector | None) -> Edge:
        """Return the stream as an input of a step, broadcast when there is no key."""
        origin = self.origin
        return Edge(
            self.port, origin.name, self.record_type, key, origin.is_control, origin.time, origin.version
        )

    @property
    def has_watermarks(self) -> bool:
        """Whether the stream has watermarks."""
        return self.graph.has_watermarks(self.port)

    @property
    def is_control(self) -> bool:
        """Whether this is a control stream, whose records steer the job instead of being processed."""
        return self.origin.is_control

    @property
    def name(self) -> str:
        """Name of the stream or step that the records come from."""
        return self.origin.name


class StepInput:
    """A stream as a step reads it: partitioned by a key, or broadcast if it has no key.

    Attributes:
        stream: the stream.
        key: the selector of a record's key; None when the stream is broadcast.

    """

    key: KeySelector | None

    def __init__(self, stream: DescribedStream, key: KeySelector | None) -> None:
        self.stream = stream
        self.key = key

    def edge(self) -> Edge:
        """Return the stream and its key as an edge of the graph."""
        return self.stream.edge(self.key)


class KeyedInput(StepInput):
    """A stream partitioned by a key."""

    key: KeySelector

    def __init__(self, stream: DescribedStream, key: KeySelector) -> None:
        super().__init__(stream, key)
