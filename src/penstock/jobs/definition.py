"""The job: a name, streams that enter it, and what is described on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records import RecordType
from penstock.state.key_groups import DEFAULT_KEY_GROUPS, MAX_KEY_GROUPS
from penstock.streams.graph import (
    EventTimeNode,
    Graph,
    Port,
    SourceNode,
    TransformNode,
    UnionNode,
    check_name,
    described_type,
)
from penstock.streams.stream import DataStream, Origin, is_time, protobuf_source
from penstock.streams.watermarks import Watermarks

__all__ = ["Job"]


@dataclass(frozen=True)
class Timing:
    """The fields of a stream that say when its records count and which version they are, and whether they steer."""

    time: str | None = None
    version: str | None = None
    is_control: bool = False

    def check(self, stream: str, kind: RecordType) -> None:
        """SchemaError when a field is not there or cannot be what it is declared to be."""
        for what, name, fits in (
            ("effective_at" if self.is_control else "event_time", self.time, is_time),
            ("version", self.version, pa.types.is_integer),
        ):
            if name in (None, INGESTION_TIME):
                continue
            field = kind.field(name)
            if not fits(field.arrow_type):
                raise SchemaError(
                    f"Stream {stream!r}: {what}={name!r} is {field.arrow_type}, and cannot be "
                    f"{'a time' if fits is is_time else 'a version'}; use "
                    f"{'a timestamp or an integer of milliseconds' if fits is is_time else 'an integer'}."
                )


class Job:
    """A streaming job: data streams, control streams, and what happens to them.

    >>> job = Job("temperature-control")
    >>> readings = job.data_stream("readings", schema="sensor_id INT, temperature DOUBLE")

    Args:
        name: what people call the job; letters, digits, dots, dashes and underscores.
        key_groups: the number of key groups over which keyed state is spread, 1 to 32768. Fixed for the life of
            the state. It bounds the useful parallelism.

    """

    def __init__(self, name: str, *, key_groups: int = DEFAULT_KEY_GROUPS) -> None:
        check_name("job", name)
        if not isinstance(key_groups, int) or not 1 <= key_groups <= MAX_KEY_GROUPS:
            raise JobDefinitionError(
                f"key_groups is {key_groups!r}; it must be an integer from 1 to {MAX_KEY_GROUPS}."
            )
        self.name = name
        self.key_groups = key_groups
        self.graph = Graph()

    def data_stream(
        self,
        name: str,
        *,
        schema: Any,
        protobuf: Any = None,
        allow_nan: bool = False,
        event_time: str | None = None,
        watermarks: Watermarks | None = None,
    ) -> DataStream:
        """Declare a stream of records to process.

        Args:
            name: the stream's name, to which a binding gives a place (`-D name=URI`).
            schema: a dataclass, a msgspec Struct, a generated protobuf message class, or a DDL string.
            protobuf: the message class for bindings with `format=protobuf`, beside another schema. Fields meet by
                name, ignoring case and underscores.
            allow_nan: let NaN pass in float fields. By default such a record goes to the dead letters, since NaN
                compares as false with everything and so disables rules silently.
            event_time: the field with the record's event time: a timestamp, or an integer of milliseconds since 1970.
                Settings and temporal states are then read as they were at that time. With `ps.INGESTION_TIME` in place
                of a field records count when they arrive, at the time of their micro-batch.
            watermarks: how far behind records may be, for event-time windows and timers, such as
                `ps.Watermarks.bounded("5s")`. A record without an event time goes to the dead letters then. With
                `ps.INGESTION_TIME` they follow the clock, and are not declared.

        """
        if event_time == INGESTION_TIME and watermarks is None:
            watermarks = Watermarks.monotonous()
        elif watermarks is not None and event_time in (None, INGESTION_TIME):
            raise JobDefinitionError(
                f"Stream {name!r} has watermarks and no field with the event time they follow from. Add "
                "event_time='FIELD'."
            )
        return self._stream(name, schema, protobuf, allow_nan, Timing(event_time), watermarks)

    def control_stream(
        self,
        name: str,
        *,
        schema: Any,
        protobuf: Any = None,
        allow_nan: bool = False,
        effective_at: str | None = None,
        version: str | None = None,
    ) -> DataStream:
        """Declare a stream of records that steer. Within a micro-batch all of them take effect before any data record.

        Args:
            name: as for `data_stream`.
            schema: as for `data_stream`.
            protobuf: as for `data_stream`.
            allow_nan: as for `data_stream`.
            effective_at: the field with the event time from which a record is effective: a timestamp, or an integer of
                milliseconds since 1970. What it sets in temporal states and settings holds from then on, past or
                future; null is the cut.
            version: the field with the record's version, for `stamp_control_version`.

        """
        timing = Timing(effective_at, version, is_control=True)
        return self._stream(name, schema, protobuf, allow_nan, timing)

    def _stream(
        self,
        name: str,
        schema: Any,
        protobuf: Any,
        allow_nan: bool,
        timing: Timing,
        watermarks: Watermarks | None = None,
    ) -> DataStream:
        check_name("stream", name)
        kind = described_type(schema, f"Stream {name!r}")
        timing.check(name, kind)
        source = protobuf_source(protobuf, schema, f"Stream {name!r}")
        time = None if timing.is_control else timing.time
        node = SourceNode(
            f"source/{name}", name, timing.is_control, kind, source, allow_nan, time, watermarks
        )
        self.graph.add(node)
        origin = Origin(name, timing.is_control, source, timing.time, timing.version)
        return DataStream(self.graph, Port(node.id), kind, origin)

    def check(self) -> None:
        """Raise JobDefinitionError when the job cannot run: no stream, nothing that leaves it, or a loose end."""
        if not any(not source.is_control for source in self.graph.sources()):
            raise JobDefinitionError(
                f"The job {self.name!r} has no data stream. Declare one with job.data_stream(...)."
            )
        if not self.graph.sinks() and not self.graph.steps():
            raise JobDefinitionError(f"The job {self.name!r} does nothing: it has no step and no sink.")
        for node in self.graph.nodes.values():
            if any(True for _ in self.graph.consumers(Port(node.id))):
                continue
            if isinstance(node, SourceNode):
                raise JobDefinitionError(
                    f"Nothing reads the stream {node.name!r} of the job {self.name!r}. Use it, or remove it."
                )
            if isinstance(node, TransformNode):
                raise JobDefinitionError(
                    f"Nothing reads what the {node.kind} {node.name!r} of the job {self.name!r} makes. A stream is not "
                    f"changed in place: go on with the stream that {node.kind} returns."
                )
            if isinstance(node, UnionNode):
                raise JobDefinitionError(
                    f"Nothing reads the union {node.name!r} of the job {self.name!r}. Go on with the stream that union "
                    "returns, or remove it."
                )
            if isinstance(node, EventTimeNode):
                raise JobDefinitionError(
                    f"Nothing reads the stream of the job {self.name!r} whose event time is {node.time!r}. A stream is "
                    "not changed in place: go on with the stream that with_event_time returns."
                )
