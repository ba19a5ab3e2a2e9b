"""Described streams: what a stream is in the graph of a job, without the words that users chain."""

from __future__ import annotations

from penstock.operators.keys import KeySelector
from penstock.records.types import RecordType
from penstock.streams.graph import Edge, Graph, Port
from penstock.streams.origin import Origin

__all__ = ["DescribedStream", "KeyedInput", "StepInput"]


class DescribedStream:
    """A stream of records of one type, as it is described.

    Attributes:
        graph: the graph of the job that the stream belongs to.
        port: where the records leave a node of the graph.
        record_type: the type of the records.
        origin: where the records come from.

    """

    def __init__(self, graph: Graph, port: Port, record_type: RecordType, origin: Origin) -> None:
        self.graph = graph
        self.port = port
        self.record_type = record_type
        self.origin = origin

    def same_as(self, other: DescribedStream) -> bool:
        """Whether the other is the same stream, with the same records."""
        return self.graph is other.graph and self.port == other.port

    def check_port(self) -> None:
        """Raise JobDefinitionError when nothing can ever come, since the step before emits nothing."""
        self.graph.check_port(self.port)

    def edge(self, key: KeySelector | None) -> Edge:
        """The stream as an input of a step, broadcast when there is no key."""
        origin = self.origin
        return Edge(
            self.port, origin.name, self.record_type, key, origin.is_control, origin.time, origin.version
        )

    @property
    def has_watermarks(self) -> bool:
        """Whether watermarks come with the records."""
        return self.graph.has_watermarks(self.port)

    @property
    def is_control(self) -> bool:
        """Whether the records steer rather than being processed."""
        return self.origin.is_control

    @property
    def name(self) -> str:
        """Name of the stream or step that the records come from."""
        return self.origin.name


class StepInput:
    """A stream as a step reads it: partitioned by a key, or broadcast when it has none.

    Attributes:
        stream: the stream.
        key: what selects the key of a record; None when the stream is broadcast.

    """

    key: KeySelector | None

    def __init__(self, stream: DescribedStream, key: KeySelector | None) -> None:
        self.stream = stream
        self.key = key

    def edge(self) -> Edge:
        """The stream and its key, as the graph has them."""
        return self.stream.edge(self.key)


class KeyedInput(StepInput):
    """A stream that is partitioned by a key."""

    key: KeySelector

    def __init__(self, stream: DescribedStream, key: KeySelector) -> None:
        super().__init__(stream, key)
