"""The job description: a name, input streams, and the processing that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import UNSET, UnsetType

from penstock.errors import JobDefinitionError, SchemaError
from penstock.joins.table_lookup import TableLookup
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.message_metadata import MessagePart, Metadata, checked_metadata
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.state.key_groups import DEFAULT_KEY_GROUPS, MAX_KEY_GROUPS
from penstock.streams.changelog_nodes import add_changelog
from penstock.streams.changelogs import Upserts
from penstock.streams.described_stream import DescribedStream
from penstock.streams.function_types import RecordT
from penstock.streams.graph import (
    EventTimeNode,
    ExpressionNode,
    Graph,
    Port,
    SourceNode,
    TransformNode,
    UnionNode,
    check_name,
    described_type,
)
from penstock.streams.lookup_table import LookupTable
from penstock.streams.origin import Origin, is_time, protobuf_source
from penstock.streams.stream import DataStream
from penstock.streams.table_nodes import add_upserts
from penstock.streams.watermark_strategies import Watermarks

__all__ = ["JobDescription"]


@dataclass(frozen=True)
class Timing:
    """The time field and version field of a stream, and whether it is a control stream."""

    time: str | None = None
    version: str | None = None
    is_control: bool = False

    def check(self, stream: str, kind: RecordType) -> None:
        """Raise SchemaError when a field does not exist, or its type does not fit its declared use."""
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


@dataclass(frozen=True)
class DataTime:
    """The default event time and watermarks of a job's data streams, for streams that do not declare their own."""

    event_time: str | None = None
    watermarks: Watermarks | None = None

    def __post_init__(self) -> None:
        _check_time("The job", self.event_time, self.watermarks)
        if self.watermarks is not None and self.event_time == INGESTION_TIME:
            raise JobDefinitionError(
                "The job has watermarks and ps.INGESTION_TIME, whose watermarks follow the clock. Remove watermarks=."
            )

    def of(
        self,
        stream: str,
        kind: RecordType,
        event_time: str | UnsetType | None,
        watermarks: Watermarks | UnsetType | None,
    ) -> tuple[str | None, Watermarks | None]:
        """Return the event-time field of a stream and its watermarks. UNSET means that the stream uses the job's."""
        if event_time is UNSET:
            event_time = self._found_in(stream, kind)
        if watermarks is UNSET:
            watermarks = None if event_time in (None, INGESTION_TIME) else self.watermarks
        _check_time(f"Stream {stream!r}", event_time, watermarks)
        if watermarks is not None and event_time in (None, INGESTION_TIME):
            raise JobDefinitionError(
                f"Stream {stream!r} has watermarks but no field with the event time to derive them from. Add "
                "event_time='FIELD'."
            )
        return event_time, Watermarks.monotonous() if event_time == INGESTION_TIME else watermarks

    def _found_in(self, stream: str, kind: RecordType) -> str | None:
        if self.event_time is None or self.event_time == INGESTION_TIME:
            return self.event_time
        if self.event_time not in kind.field_names:
            return None
        try:
            Timing(self.event_time).check(stream, kind)
        except SchemaError as e:
            raise SchemaError(
                f"{e} The job declares it for all of its data streams; set event_time=None here, or name another field."
            ) from None
        return self.event_time

    def check(self, job: str, kinds: Sequence[RecordType]) -> None:
        """Raise JobDefinitionError when no data stream has the field; `kinds` are the types of all data streams."""
        if self.event_time in (None, INGESTION_TIME) or any(
            self.event_time in kind.field_names for kind in kinds
        ):
            return
        fields = sorted({name for kind in kinds for name in kind.field_names})
        raise JobDefinitionError(
            f"The job {job!r} has event_time={self.event_time!r}, but none of its data streams has that field. Their "
            f"fields are {', '.join(fields)}."
        )


def _kind_of(name: str, schema: Any) -> RecordType:
    """Return a stream's record type. Raises JobDefinitionError for an invalid name, SchemaError for the schema."""
    check_name("stream", name)
    return described_type(schema, f"Stream {name!r}")


def _changelog(stream: DescribedStream, changelog: Any) -> DescribedStream:
    """Return a data stream as a changelog. Raises JobDefinitionError or SchemaError if it cannot be one."""
    if isinstance(changelog, Upserts):
        changes = add_changelog(stream, changelog.kind)
        return add_upserts(changelog.step or f"{stream.name}-table", changes, changelog.names)
    if not isinstance(changelog, str):
        raise JobDefinitionError(
            f"Stream {stream.name!r} has changelog={changelog!r}; name the field with the kind of a change, or pass "
            'ps.Upserts("id").'
        )
    return add_changelog(stream, changelog)


def _check_time(who: str, event_time: Any, watermarks: Any) -> None:
    """Raise JobDefinitionError when the event time or the watermarks have the wrong type."""
    if event_time is not None and not isinstance(event_time, str):
        raise JobDefinitionError(
            f"{who} has event_time={event_time!r}; pass the name of a field, ps.INGESTION_TIME, or None."
        )
    if watermarks is not None and not isinstance(watermarks, Watermarks):
        raise JobDefinitionError(
            f'{who} has watermarks={watermarks!r}; pass a strategy such as ps.Watermarks.bounded("5s"), or None.'
        )


class JobDescription:
    """A job: its data streams, its control streams, and their processing. Users create one as `launch.job.Job`.

    >>> job = JobDescription("temperature-control")
    >>> readings = job.data_stream("readings", schema="sensor_id INT, temperature DOUBLE")
    """

    def __init__(
        self,
        name: str,
        *,
        key_groups: int = DEFAULT_KEY_GROUPS,
        event_time: str | None = None,
        watermarks: Watermarks | None = None,
    ) -> None:
        check_name("job", name)
        if not isinstance(key_groups, int) or not 1 <= key_groups <= MAX_KEY_GROUPS:
            raise JobDefinitionError(
                f"key_groups is {key_groups!r}; it must be an integer from 1 to {MAX_KEY_GROUPS}."
            )
        self.name = name
        self.key_groups = key_groups
        self.graph = Graph()
        self.bindings: dict[str, str] = {}
        """Where streams and sinks are bound to if a run does not say otherwise."""
        self.called_functions: list[Any] = []
        """The functions of the user that SQL may call."""
        self._time = DataTime(event_time, watermarks)

    def data_stream(
        self,
        name: str,
        *,
        schema: type[RecordT] | str,
        protobuf: Any = None,
        allow_nan: bool = False,
        event_time: str | UnsetType | None = UNSET,
        watermarks: Watermarks | UnsetType | None = UNSET,
        metadata: Mapping[str, MessagePart] | None = None,
        changelog: str | Upserts | None = None,
    ) -> DataStream[RecordT]:
        """Declare a stream of records to process.

        Args:
            name: the stream's name. A binding connects it to a source (`-D name=URI`).
            schema: a dataclass, a msgspec Struct, a generated protobuf message class, or a DDL string. For type
                checkers, records are of that class; records of a DDL schema are `Any`.
            protobuf: the message class for bindings with `format=protobuf`, if `schema` is not one itself. Fields are
                matched by name, ignoring case and underscores.
            allow_nan: accept NaN in float fields. By default a record with NaN goes to the dead letters, because every
                comparison with NaN is false, which silently disables rules.
            event_time: the field with the record's event time: a timestamp, or an integer of milliseconds since 1970.
                Settings and temporal states are then read as of that time. With `ps.INGESTION_TIME` instead of a
                field, the event time is the arrival time: that of the record's micro-batch. Defaults to the job's;
                None means no event time, even if the job has one.
            watermarks: the watermark strategy, for event-time windows and timers, such as
                `ps.Watermarks.bounded("5s")`. With watermarks, a record without an event time goes to the dead
                letters. Do not declare watermarks with `ps.INGESTION_TIME`: they then follow the clock. Defaults to the
                job's; None means no watermarks.
            metadata: the fields that are filled from the Kafka message around the body, such as
                `{"device": ps.kafka_key(), "sent": ps.kafka_timestamp()}`. A value that does not fit makes the record
                a dead letter; what a message lacks is null in an optional field. From a folder, or from Python, these
                fields are part of the record like all others; other sources are refused.
            changelog: the field with the kind of a change, if the records are changes of a table: `+I`, `-U`, `+U` or
                `-D`. The changelog has the other fields. A record of another kind goes to the dead letters. With
                `ps.Upserts("id")`, each record replaces the one before with the same key.

        """
        kind = _kind_of(name, schema)
        time, marks = self._time.of(name, kind, event_time, watermarks)
        source = protobuf_source(protobuf, schema, f"Stream {name!r}")
        filled = checked_metadata(name, kind, metadata)
        stream = self._stream(name, kind, source, allow_nan, Timing(time), filled, marks)
        return stream if changelog is None else DataStream(_changelog(stream, changelog))

    def control_stream(
        self,
        name: str,
        *,
        schema: type[RecordT] | str,
        protobuf: Any = None,
        allow_nan: bool = False,
        effective_at: str | None = None,
        version: str | None = None,
        metadata: Mapping[str, MessagePart] | None = None,
    ) -> DataStream[RecordT]:
        """Declare a stream of records that steer the job. They take effect before any data of the same micro-batch.

        Args:
            name: as for `data_stream`.
            schema: as for `data_stream`.
            protobuf: as for `data_stream`.
            allow_nan: as for `data_stream`.
            effective_at: the field with the event time from which a record is effective: a timestamp, or an integer of
                milliseconds since 1970. The values that it sets in temporal states and settings apply from that time
                on, past or future; null means from the cut.
            version: the field with the record's version, for `stamp_control_version`.
            metadata: as for `data_stream`.

        """
        kind = _kind_of(name, schema)
        source = protobuf_source(protobuf, schema, f"Stream {name!r}")
        filled = checked_metadata(name, kind, metadata)
        return self._stream(
            name, kind, source, allow_nan, Timing(effective_at, version, is_control=True), filled
        )

    def lookup_table(self, name: str, *, schema: type[Any] | str) -> LookupTable:
        """Declare a table outside the job in which records are looked up, with `lookup_join`.

        A binding connects it to a table of PostgreSQL (`-D name=postgresql://...`). `schema` has the columns that are
        read. Raises JobDefinitionError or SchemaError for a name or a schema that cannot be used.

        >>> job = JobDescription("rooms")
        >>> rooms = job.lookup_table("rooms", schema="id STRING, floor INT")
        >>> readings = job.data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> readings.lookup_join("floors", rooms, on=("room", "id")).record_type
        Record(room: string, celsius: double, id: string, floor: int32)
        """
        kind = _kind_of(name, schema)
        if name in self.graph.lookups:
            raise JobDefinitionError(f"The job has two tables named {name!r}. Each needs a name of its own.")
        self.graph.lookups[name] = kind
        return LookupTable(self.graph, name, kind)

    def bound_by_default(self) -> dict[str, str]:
        """Return the default bindings of the streams and sinks of the job, which a run may override."""
        names = {source.name for source in self.graph.sources()} | {sink.name for sink in self.graph.sinks()}
        names |= set(self.graph.lookups)
        return {name: uri for name, uri in self.bindings.items() if name in names}

    def declared_stream(self, name: str) -> DataStream[Any]:
        """Return a stream that was declared before. Raises JobDefinitionError if no stream has that name."""
        node = self.graph.nodes.get(f"source/{name}")
        if not isinstance(node, SourceNode):
            known = ", ".join(source.name for source in self.graph.sources()) or "none"
            raise JobDefinitionError(
                f"The job {self.name!r} has no stream {name!r}; its streams are {known}."
            )
        origin = Origin(name, node.is_control, node.protobuf, node.time)
        return DataStream(DescribedStream(self.graph, Port(node.id), node.record_type, origin))

    def _stream(
        self,
        name: str,
        kind: RecordType,
        source: ProtobufSource | None,
        allow_nan: bool,
        timing: Timing,
        metadata: Metadata,
        watermarks: Watermarks | None = None,
    ) -> DataStream[Any]:
        timing.check(name, kind)
        time = None if timing.is_control else timing.time
        node = SourceNode(
            f"source/{name}", name, timing.is_control, kind, source, allow_nan, time, watermarks, metadata
        )
        self.graph.add(node)
        origin = Origin(name, timing.is_control, source, timing.time, timing.version)
        return DataStream(DescribedStream(self.graph, Port(node.id), kind, origin))

    def check(self) -> None:
        """Raise JobDefinitionError when the job cannot run: no data stream, no step or sink, or an unread stream."""
        kinds = [source.record_type for source in self.graph.sources() if not source.is_control]
        if not kinds:
            raise JobDefinitionError(
                f"The job {self.name!r} has no data stream. Declare one with job.data_stream(...)."
            )
        self._time.check(self.name, kinds)
        if not self.graph.sinks() and not self.graph.steps():
            raise JobDefinitionError(f"The job {self.name!r} does nothing: it has no step and no sink.")
        used = {node.function.table for node in self.graph.steps() if isinstance(node.function, TableLookup)}
        unused = next((name for name in self.graph.lookups if name not in used), None)
        if unused is not None:
            raise JobDefinitionError(
                f"Nothing is looked up in the table {unused!r} of the job {self.name!r}. Use it with lookup_join, or "
                "remove it."
            )
        for node in self.graph.nodes.values():
            if any(True for _ in self.graph.consumers(Port(node.id))):
                continue
            if isinstance(node, SourceNode):
                raise JobDefinitionError(
                    f"Nothing reads the stream {node.name!r} of the job {self.name!r}. Use it, or remove it."
                )
            if isinstance(node, TransformNode | ExpressionNode):
                raise JobDefinitionError(
                    f"Nothing reads the result of the {node.kind} {node.name!r} of the job {self.name!r}. A stream is "
                    f"not changed in place: continue with the stream that {node.kind} returns."
                )
            if isinstance(node, UnionNode):
                raise JobDefinitionError(
                    f"Nothing reads the union {node.name!r} of the job {self.name!r}. Continue with the stream that "
                    "union returns, or remove the union."
                )
            if isinstance(node, EventTimeNode):
                raise JobDefinitionError(
                    f"Nothing reads the stream of the job {self.name!r} whose event time is {node.time!r}. A stream is "
                    "not changed in place: continue with the stream that with_event_time returns."
                )
