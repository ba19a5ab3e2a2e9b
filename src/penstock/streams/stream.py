"""Data streams, keyed streams and connected streams: the words with which a job is described."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.base.durations import Duration
from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.functions import (
    ConnectedProcessFunction,
    ProcessFunction,
    annotated_result,
    check_function,
    declared_states,
    output_type,
    result_record_type,
)
from penstock.operators.handlers import declared_handlers
from penstock.operators.keys import KeySelector, key_selector, place_selector
from penstock.operators.rolling_aggregates import RollingAggregate
from penstock.operators.watermarks import INGESTION_TIME
from penstock.operators.window_step import LATE, WindowStep, window_output, window_step
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.state.folded_states import AggregateFunction
from penstock.state.shared import BroadcastState, Setting, declared_shared
from penstock.state.transient import TransientField
from penstock.state.values import KeyedState
from penstock.streams.graph import (
    Edge,
    EventTimeNode,
    Graph,
    Port,
    ProcessNode,
    SinkNode,
    TransformKind,
    TransformNode,
    UnionNode,
    check_name,
    described_type,
    output_name,
)
from penstock.windows.assigners import WindowAssigner
from penstock.windows.distinct_counts import DEFAULT_ACCURACY, DistinctCount
from penstock.windows.evictors import Evictor
from penstock.windows.field_aggregates import FieldAggregate, FieldStatistics, RecordCount
from penstock.windows.operator import WindowSpec
from penstock.windows.triggers import Trigger
from penstock.windows.value_hashes import can_be_hashed
from penstock.windows.window_functions import Aggregated, AllRecords, Reduced, WindowContents, WindowFunction

__all__ = [
    "BroadcastStream",
    "ConnectedStream",
    "DataStream",
    "KeyedStream",
    "ProcessedStream",
    "WindowedStream",
]


@dataclass(frozen=True)
class Origin:
    """Where a stream's records come from: the name of the stream or step, and whether they steer.

    `time` is the field with the event time of data, or with the time from which a control record is effective;
    `version` the field with the version of a control record. In place of a field of data `INGESTION_TIME` says that it
    counts when it arrives, and `EVENT_TIME` that its time travels beside the records.
    """

    name: str
    is_control: bool
    protobuf: ProtobufSource | None
    time: str | None = None
    version: str | None = None

    def of(self, kind: RecordType, protobuf: ProtobufSource | None) -> Origin:
        """The origin of what a function makes of the records: times and versions stay where their fields do.

        Where its field does not stay the event time of data travels on beside the records.
        """
        fields = kind.schema
        version = self.version if self.version in fields.names else None
        time = self.time
        if time is not None and time in fields.names and is_time(fields.field(time).type):
            return Origin(self.name, self.is_control, protobuf, time, version)
        if time not in (None, INGESTION_TIME):
            time = None if self.is_control else EVENT_TIME
        return Origin(self.name, self.is_control, protobuf, time, version)


def is_time(kind: pa.DataType) -> bool:
    """Whether values of a type can be times: timestamps, or milliseconds since 1970."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


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
        self._graph.check_port(self._port)
        _check_transform(kind, function)
        number = sum(isinstance(node, TransformNode) for node in self._graph.nodes.values()) + 1
        name = name or f"{kind}-{number}"
        who = f"The {kind} {name!r}"
        schema = output if output is not None else annotated_result(function)
        if schema is type(None):
            raise JobDefinitionError(
                f"{who} is annotated to return None, so nothing would come of it. Annotate what it returns."
            )
        # Without a schema this says how to give one.
        result = described_type(schema, who) if _is_given(schema) else result_record_type(function, who)
        assert result is not None
        protobuf = self._origin.protobuf if kind == "filter" else protobuf_source(None, schema, who)
        origin = self._origin.of(result, protobuf)
        time = self._origin.time if origin.time == EVENT_TIME != self._origin.time else None
        node = TransformNode(
            f"transform/{name}", name, kind, function, self._port, self.record_type, result, time
        )
        self._graph.add(node)
        return DataStream(self._graph, Port(node.id), result, origin)

    def with_event_time(self, field: str) -> DataStream:
        """Let a field have the event time of the records from here on: a timestamp, or an integer of milliseconds.

        Watermarks stay those that the stream has, so the times must not be further behind than these allow. A record in
        which the field is null goes to the dead letters.

        >>> clicks = Job("clicks").data_stream(
        ...     "clicks", schema="user STRING, at BIGINT", event_time="at", watermarks=Watermarks.bounded("5s")
        ... )
        >>> counts = clicks.key_by("user").window(TumblingWindows("1m")).count("counts")
        >>> from_the_start = counts.with_event_time("window_start")
        """
        self._graph.check_port(self._port)
        if self.is_control:
            raise JobDefinitionError(
                f"The stream {self.name!r} is a control stream, whose records have no event time. The field that says "
                "from when on they are effective is declared with job.control_stream(..., effective_at=...)."
            )
        try:
            kind = self.record_type.field(field).arrow_type
        except SchemaError as e:
            raise SchemaError(f"The stream {self.name!r}: {e}") from e
        if not is_time(kind):
            raise SchemaError(
                f"The stream {self.name!r}: the field {field!r} is {kind}, and cannot be a time; use a timestamp or an "
                "integer of milliseconds."
            )
        if not self.has_watermarks:
            raise JobDefinitionError(
                f"The stream {self.name!r} has no watermarks that its event time could go by. They are declared where "
                'records enter the job: job.data_stream(..., event_time="at", watermarks=ps.Watermarks.bounded("5s")).'
            )
        number = sum(isinstance(node, EventTimeNode) for node in self._graph.nodes.values()) + 1
        node = EventTimeNode(f"event-time/{number}", self._port, self.record_type, field)
        self._graph.add(node)
        return DataStream(
            self._graph, Port(node.id), self.record_type, dataclasses.replace(self._origin, time=field)
        )

    def union(self, *others: DataStream, name: str = "") -> DataStream:
        """One stream of the records of this one and of others, which have the same type and event time.

        The watermark behind it is the smallest of those of all streams that are not idle. Within a micro-batch the
        records of a key come stream by stream, in this order, and `ctx.stream` tells from which.

        >>> job = Job("shop")
        >>> web = job.data_stream("web", schema="page STRING, at BIGINT")
        >>> app = job.data_stream("app", schema="page STRING, at BIGINT")
        >>> visits = web.union(app).key_by("page")
        """
        number = sum(isinstance(node, UnionNode) for node in self._graph.nodes.values()) + 1
        name = name or f"union-{number}"
        streams = (self, *others)
        _check_union(streams)
        node = UnionNode(f"union/{name}", name, tuple(stream.port for stream in streams))
        self._graph.add(node)
        same = all(stream.origin.protobuf == self._origin.protobuf for stream in others)
        origin = Origin(
            name,
            is_control=False,
            protobuf=self._origin.protobuf if same else None,
            time=_counting_time(self),
            version=self._origin.version,
        )
        return DataStream(self._graph, Port(node.id), self.record_type, origin)

    def key_by(self, *key: str | Callable[[Any], Any], key_type: Any = None) -> KeyedStream:
        """Partition the stream by a field, by several fields, or by the result of a function.

        A function needs a return annotation or `key_type`. Keys are integers, text, bytes, dates or (several
        fields) tuples of these. A record whose key is null goes to the dead letters.
        """
        self._graph.check_port(self._port)
        if key_type is not None and not (key and callable(key[0])):
            raise JobDefinitionError(
                f"The stream {self.name!r} is keyed by fields, which have their own types; leave key_type out."
            )
        try:
            return KeyedStream(self, key_selector(self.record_type, key, key_type))
        except JobDefinitionError as e:
            raise type(e)(f"The stream {self.name!r} cannot be keyed: {e}") from e

    def process(self, step: str, function: ProcessFunction, *, output: Any = None) -> ProcessedStream:
        """Run a process function on records without a key. `step` is the stable name to which the state belongs.

        The records of each source partition are processed in their order, and share operator states
        (`OperatorListState`, `UnionListState`). Settings, broadcast states and commands to the step are as in keyed
        steps.
        """
        self._graph.check_port(self._port)
        return KeyedStream(self, place_selector(self.record_type)).process(step, function, output=output)

    def window_all(self, assigner: WindowAssigner) -> WindowedStream:
        """Put all records into the same windows, whatever they are. One task does it for all of them."""
        return WindowedStream(self.key_by(_all_alike, key_type=int), assigner)

    def connect(self, *controls: BroadcastStream) -> ConnectedStream:
        """Join this stream, which has no key, with control streams that are broadcast; any number of them."""
        self._graph.check_port(self._port)
        return KeyedStream(self, place_selector(self.record_type)).connect(*controls)

    def broadcast(self) -> BroadcastStream:
        """The stream for every key: each control record takes effect for the whole step that it is connected to."""
        self._graph.check_port(self._port)
        if not self._origin.is_control:
            raise JobDefinitionError(
                f"The stream {self.name!r} is no control stream, and only these are broadcast; declare it with "
                "job.control_stream(...)."
            )
        return BroadcastStream(self)

    def sink_to(self, name: str, *, protobuf: Any = None) -> None:
        """Let the records leave through the sink of that name; a binding says where it goes.

        `protobuf` is the generated message class for bindings with `format=protobuf`, when the stream's schema is
        not itself a protobuf message.
        """
        check_name("sink", name)
        self._graph.check_port(self._port)
        source = protobuf_source(protobuf, None, f"Sink {name!r}") or self._origin.protobuf
        self._graph.add(SinkNode(f"sink/{name}", name, self._port, self.record_type, source))

    def same_as(self, other: DataStream) -> bool:
        """Whether the other is the same stream, with the same records."""
        return self._graph is other._graph and self._port == other._port

    @property
    def port(self) -> Port:
        """Where the records leave a node of the graph."""
        return self._port

    @property
    def origin(self) -> Origin:
        """Where the records come from."""
        return self._origin

    @property
    def graph(self) -> Graph:
        """The job graph that this stream belongs to."""
        return self._graph

    def edge(self, key: KeySelector | None) -> Edge:
        """The stream as an input of a step, broadcast when there is no key."""
        origin = self._origin
        return Edge(
            self._port, origin.name, self.record_type, key, origin.is_control, origin.time, origin.version
        )

    @property
    def has_watermarks(self) -> bool:
        """Whether watermarks come with the records."""
        return self._graph.has_watermarks(self._port)

    @property
    def is_control(self) -> bool:
        """Whether the records steer rather than being processed."""
        return self._origin.is_control

    @property
    def name(self) -> str:
        """Name of the stream or step that the records come from."""
        return self._origin.name


class ProcessedStream(DataStream):
    """What a step emits, with its side outputs."""

    def __init__(self, graph: Graph, node: ProcessNode, main: RecordType, origin: Origin) -> None:
        super().__init__(graph, Port(node.id), main, origin)
        self._node = node

    def stamp_control_version(self) -> ProcessedStream:
        """Let each record leave with the version of the settings under which it was made.

        The records get a field `control_version`: the version of the newest control that took effect for the key or for
        the whole step, 0 when none did. A control record or command without a version counts as one more.
        """
        self._graph.check_port(self._port)
        if any(True for _ in self._graph.consumers(self._port)):
            raise JobDefinitionError(
                f"The stream {self.name!r} is stamped after it was used; call stamp_control_version() first."
            )
        node = dataclasses.replace(self._node, stamped=True)
        try:
            kind = node.outputs[""]
        except SchemaError as e:
            raise SchemaError(f"Step {node.step!r}: {e}") from e
        self._graph.replace(node)
        return ProcessedStream(self._graph, node, kind, self._origin.of(kind, None))

    def side_output(self, name: str) -> DataStream:
        """The stream of records that the function emits to that side output."""
        if name not in self._node.outputs or not name:
            known = ", ".join(repr(n) for n in self._node.outputs if n) or "none"
            raise JobDefinitionError(
                f"Step {self._node.step!r} has no side output {name!r}; its function declares {known} in side_outputs."
            )
        protobuf = protobuf_source(None, self._node.function.side_outputs[name], f"Side output {name!r}")
        kind = self._node.outputs[name]
        origin = _origin_of(self._node, name, kind, protobuf)
        return DataStream(self._graph, Port(self._node.id, name), kind, origin)


class BroadcastStream:
    """A control stream whose records take effect for all keys."""

    def __init__(self, stream: DataStream) -> None:
        self.stream = stream
        self.key = None


class KeyedStream:
    """A stream partitioned by key."""

    def __init__(self, stream: DataStream, key: KeySelector) -> None:
        self.stream = stream
        self.key = key

    def connect(self, *controls: KeyedStream | BroadcastStream) -> ConnectedStream:
        """Join this stream with control streams that are keyed the same way, or broadcast; any number of them."""
        if not controls:
            raise JobDefinitionError(
                "connect needs at least one control stream: readings.connect(settings.key_by(...))."
            )
        for number, control in enumerate(controls):
            self._check_connectable(control)
            if any(control.key == c.key and control.stream.same_as(c.stream) for c in controls[:number]):
                raise JobDefinitionError(
                    f"The stream {control.stream.name!r} is connected twice with the same key, so each of its records "
                    "would take effect twice. Connect it once."
                )
        return ConnectedStream(self, controls)

    def _check_connectable(self, control: Any) -> None:
        if isinstance(control, DataStream):
            raise JobDefinitionError(
                f"Key the stream {control.name!r} before connecting it ({control.name}.key_by(...)), or broadcast it "
                f"({control.name}.broadcast())."
            )
        if not isinstance(control, KeyedStream | BroadcastStream):
            raise JobDefinitionError(f"connect takes keyed or broadcast control streams, not {control!r}.")
        if not control.stream.is_control:
            raise JobDefinitionError(
                f"The stream {control.stream.name!r} is no control stream; declare it with job.control_stream(...)."
            )
        if control.stream.graph is not self.stream.graph:
            raise JobDefinitionError(
                f"The stream {control.stream.name!r} belongs to another job. Declare it in this one."
            )
        if control.key is not None and self.key.by_place:
            raise JobDefinitionError(
                f"The stream {self.stream.name!r} has no key, so the keys of {control.stream.name!r} mean nothing. "
                f"Key both ({self.stream.name}.key_by(...)), or broadcast the control stream "
                f"({control.stream.name}.broadcast())."
            )
        if control.key is not None and not control.key.key_type.equals(self.key.key_type):
            raise JobDefinitionError(
                f"The keys of {self.stream.name!r} ({self.key.key_type}) and {control.stream.name!r} "
                f"({control.key.key_type}) differ in type. Key both by the same type."
            )

    def process(self, step: str, function: ProcessFunction, *, output: Any = None) -> ProcessedStream:
        """Run a process function on the records. `step` is the stable name to which the state belongs."""
        check_function(function, step, connected=False)
        return _process(step, function, [self], output)

    def sum(self, step: str, field: str) -> ProcessedStream:
        """After each record the sum of a numeric field over all records of its key so far.

        Emits the fields of the key and `value`, a double; null values change nothing.
        """
        return self._rolling(step, "sum", field)

    def min(self, step: str, field: str) -> ProcessedStream:
        """The smallest value of a numeric field so far, as `sum` gives the sum; null as long as there is none."""
        return self._rolling(step, "min", field)

    def max(self, step: str, field: str) -> ProcessedStream:
        """The largest value of a numeric field so far, as `sum` gives the sum; null as long as there is none."""
        return self._rolling(step, "max", field)

    def mean(self, step: str, field: str) -> ProcessedStream:
        """The mean of a numeric field so far, as `sum` gives the sum; null as long as there is no value."""
        return self._rolling(step, "mean", field)

    def _rolling(self, step: str, aggregate: str, field: str) -> ProcessedStream:
        _check_number(step, aggregate, self.stream.record_type, field)
        function = RollingAggregate(FieldAggregate(aggregate, field), self.key)
        return _process(step, function, [self], function.output)

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Put the records of each key into windows, such as `ps.TumblingWindows("10s")`."""
        return WindowedStream(self, assigner)


class ConnectedStream:
    """A data stream joined with control streams."""

    def __init__(self, data: KeyedStream, controls: tuple[KeyedStream | BroadcastStream, ...]) -> None:
        self._data = data
        self._controls = controls

    def process(
        self, step: str, function: ConnectedProcessFunction, *, output: Any = None
    ) -> ProcessedStream:
        """Run a connected process function. `step` is the stable name to which the state belongs."""
        check_function(function, step, connected=True)
        # Broadcast control records take effect before keyed ones.
        controls = sorted(self._controls, key=lambda control: control.key is not None)
        return _process(step, function, [*controls, self._data], output)


class WindowedStream:
    """Records of each key in windows. Say when windows fire and what leaves them, then what comes of their records.

    Every method gives a new one, but for those that make a step: `reduce`, `aggregate` and `process`. The step's stream
    has the side output "late", of records whose windows had been cleaned up when they came.

    >>> clicks = Job("clicks").data_stream(
    ...     "clicks", schema="user STRING, at BIGINT", event_time="at", watermarks=Watermarks.bounded("5s")
    ... )
    >>> windowed = clicks.key_by("user").window(TumblingWindows("1m")).allowed_lateness("10s")
    """

    def __init__(self, keyed: KeyedStream, assigner: WindowAssigner) -> None:
        self._keyed = keyed
        self._parts: dict[str, Any] = {"assigner": assigner}

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Let windows fire as a trigger says, in place of the assigner's own."""
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Let an evictor drop records when windows fire. All records are kept until then."""
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> WindowedStream:
        """Keep windows by event time for so long behind their end; each late record fires them again."""
        return self._with(lateness=lateness)

    def reduce(
        self,
        step: str,
        function: Callable[[Any, Any], Any],
        window_function: WindowFunction | None = None,
        *,
        output: Any = None,
    ) -> ProcessedStream:
        """Reduce the records of a window to one, of which only that is kept.

        `function` takes what was reduced so far and a record. What it comes to is emitted, or given to
        `window_function`.
        """
        return self._step(step, Reduced(function, window_function), output)

    def aggregate(
        self,
        step: str,
        function: AggregateFunction[Any, Any, Any],
        window_function: WindowFunction | None = None,
        *,
        output: Any = None,
    ) -> ProcessedStream:
        """Aggregate the records of a window, of which only the accumulator is kept.

        Emitted are the fields of the key, `window_start`, `window_end` and the result: its fields, or `value`; or what
        `window_function` makes of the result. `output` is the type of the result, or of what the function emits, where
        no annotation says it.
        """
        return self._step(step, Aggregated(function, window_function), output)

    def count(self, step: str) -> ProcessedStream:
        """Count the records of a window. Emits the fields of the key, `window_start`, `window_end` and `value`.

        As all aggregates of a field it runs as columns where it can: with tumbling, sliding or cumulative windows,
        their own trigger and no evictor. Here `value` is an integer. With the others, which have a field, null values
        are not added or compared, `value` is a double, and the setting `aggregate` of the step chooses another of
        count, sum, min, max and mean while the job runs.
        """
        return self._step(step, Aggregated(RecordCount()), None)

    def sum(self, step: str, field: str) -> ProcessedStream:
        """Add up a numeric field; see `count`."""
        return self._aggregate(step, "sum", field)

    def min(self, step: str, field: str) -> ProcessedStream:
        """The smallest value of a numeric field; see `count`."""
        return self._aggregate(step, "min", field)

    def max(self, step: str, field: str) -> ProcessedStream:
        """The largest value of a numeric field; see `count`."""
        return self._aggregate(step, "max", field)

    def mean(self, step: str, field: str) -> ProcessedStream:
        """The mean of a numeric field; see `count`."""
        return self._aggregate(step, "mean", field)

    def statistics(self, step: str, field: str) -> ProcessedStream:
        """All of `count`, `sum`, `min`, `max` and `mean` of a numeric field, as fields of these names; see `count`."""
        _check_number(step, "statistics", self._keyed.stream.record_type, field)
        return self._step(step, Aggregated(FieldStatistics(field)), None)

    def approx_count_distinct(
        self, step: str, field: str, *, accuracy: float = DEFAULT_ACCURACY
    ) -> ProcessedStream:
        """Count how many values of a field differ.

        Emits the fields of the key, `window_start`, `window_end` and `distinct`, an integer. The field holds integers,
        floating-point numbers, text, bytes, booleans, dates or timestamps; null is no value. `accuracy` is the standard
        error as a part of the count, 0.005 to 0.25: two in three windows are less than that off, and 19 in 20 less than
        twice that. Up to 1 / accuracy**2 values the count is exact. A window keeps 8 bytes for each value up to there,
        with 0.03 at most 9 KB. Runs as columns where `count` does. The setting `accuracy` changes it while the job
        runs.
        """
        kind = self._keyed.stream.record_type.field(field).arrow_type
        if not can_be_hashed(kind):
            raise JobDefinitionError(
                f"Step {step!r}: the field {field!r} is {kind}, whose values have no distinct count. Name one "
                "of integers, floating-point numbers, text, bytes, booleans, dates or timestamps, or use a function of "
                "your own."
            )
        try:
            aggregate = DistinctCount(field, accuracy)
        except JobDefinitionError as e:
            raise JobDefinitionError(f"Step {step!r}: {e}") from None
        return self._step(step, Aggregated(aggregate), None)

    def _aggregate(self, step: str, aggregate: str, field: str) -> ProcessedStream:
        _check_number(step, aggregate, self._keyed.stream.record_type, field)
        return self._step(step, Aggregated(FieldAggregate(aggregate, field)), None)

    def process(self, step: str, function: WindowFunction, *, output: Any = None) -> ProcessedStream:
        """Keep all records of a window, and give them to a function when it fires."""
        return self._step(step, AllRecords(function), output)

    def _with(self, **parts: Any) -> WindowedStream:
        found = WindowedStream(self._keyed, self._parts["assigner"])
        found._parts = self._parts | parts
        return found

    def _step(self, step: str, contents: WindowContents, output: Any) -> ProcessedStream:
        stream, key = self._keyed.stream, self._keyed.key
        _check_step(step, stream)
        try:
            spec = WindowSpec(contents=contents, late_output=True, **self._parts)
            made = window_output(contents, stream.record_type, key, output)
            function = window_step(spec, stream.record_type, made)
        except (JobDefinitionError, SchemaError) as e:
            raise type(e)(f"Step {step!r}: {e}") from e
        _check_states(function, step)
        if function.is_event_time:
            _check_event_time(step, stream)
        protobuf = protobuf_source(None, output, f"Step {step!r}")
        return _step(step, function, [self._keyed], made.record_type, protobuf)


def _check_number(step: str, aggregate: str, kind: RecordType, field: str) -> None:
    """JobDefinitionError when a field has no numbers to aggregate."""
    arrow = kind.field(field).arrow_type
    if not (pa.types.is_integer(arrow) or pa.types.is_floating(arrow)):
        raise JobDefinitionError(
            f"Step {step!r}: the field {field!r} is {arrow}, and only numbers have that ({aggregate}). Name another "
            "one, or use a function of your own."
        )


def _check_event_time(step: str, stream: DataStream) -> None:
    """JobDefinitionError when windows by event time cannot be."""
    remedy = (
        'Declare it: job.data_stream(..., event_time="at", watermarks=ps.Watermarks.bounded("5s")); or take windows by '
        'processing time (time="processing").'
    )
    if stream.origin.time is None:
        raise JobDefinitionError(
            f"Step {step!r} has windows by event time, and the records of {stream.name!r} have none. {remedy}"
        )
    if not stream.has_watermarks:
        raise JobDefinitionError(
            f"Step {step!r} has windows by event time, and the stream {stream.name!r} no watermarks. {remedy}"
        )


def _process(
    step: str, function: ProcessFunction, inputs: Sequence[KeyedStream | BroadcastStream], output: Any
) -> ProcessedStream:
    _check_step(step, inputs[-1].stream)
    _check_states(function, step)
    _check_owners(function, step, inputs[-1].stream, inputs[-1].key)
    _check_clock(function, step, inputs[-1].stream)
    schema = output if output is not None else annotated_result(type(function).process_record)
    main = (
        described_type(schema, f"Step {step!r}") if _is_given(schema) else output_type(function, None, step)
    )
    return _step(step, function, inputs, main, protobuf_source(None, schema, f"Step {step!r}"))


def _check_step(step: str, data: DataStream) -> None:
    if not isinstance(step, str) or not step or "/" in step:
        raise JobDefinitionError(f"{step!r} is no name for a step: it must not be empty nor contain a slash.")
    if data.is_control:
        raise JobDefinitionError(
            f"Step {step!r} has no data stream: {data.name!r} is a control stream. Connect it to a data stream, or "
            "declare it with job.data_stream(...)."
        )


def _step(
    step: str,
    function: ProcessFunction,
    inputs: Sequence[KeyedStream | BroadcastStream],
    main: RecordType | None,
    protobuf: ProtobufSource | None,
) -> ProcessedStream:
    """A step with its side outputs, put into the graph."""
    outputs: dict[str, RecordType] = {} if main is None else {"": main}
    outputs |= _side_outputs(function, step)
    edges = tuple(keyed.stream.edge(keyed.key) for keyed in inputs)
    node = ProcessNode(f"step/{step}", step, function, edges, outputs)
    graph = inputs[0].stream.graph
    graph.add(node)
    kind = main if main is not None else record_type("nothing BOOLEAN")
    return ProcessedStream(graph, node, kind, _origin_of(node, "", kind, protobuf))


def _origin_of(node: ProcessNode, output: str, kind: RecordType, protobuf: ProtobufSource | None) -> Origin:
    """The origin of what leaves a step by an output."""
    time, function = node.edges[-1].time, node.function
    given = Origin(output_name(node.step, output), is_control=False, protobuf=protobuf, time=time)
    origin = given.of(kind, protobuf)
    if time is None or not isinstance(function, WindowStep) or output == LATE:
        return origin
    if function.spec.contents.function is not None and origin.time not in (EVENT_TIME, INGESTION_TIME):
        # The function that made the records says in their field when they count.
        return origin
    return dataclasses.replace(origin, time=EVENT_TIME)


def _all_alike(record: Any) -> int:  # noqa: ARG001  # as a key function
    return 0


def _check_union(streams: Sequence[DataStream]) -> None:
    """Raise JobDefinitionError when streams cannot be one."""
    first = streams[0]
    if len(streams) == 1:
        raise JobDefinitionError(f"union needs at least one other stream: {first.name}.union(more).")
    ports: set[Port] = set()
    for stream in streams:
        if isinstance(stream, KeyedStream):
            raise JobDefinitionError(
                f"Unite the stream {stream.stream.name!r} before it is keyed: {first.name}.union(...).key_by(...)."
            )
        if not isinstance(stream, DataStream):
            raise JobDefinitionError(f"union takes data streams, not {stream!r}.")
        if stream.graph is not first.graph:
            raise JobDefinitionError(
                f"The stream {stream.name!r} belongs to another job. Declare it in this one."
            )
        if stream.is_control:
            raise JobDefinitionError(
                f"The stream {stream.name!r} is a control stream, and a union is of data. connect takes any number of "
                "control streams."
            )
        stream.graph.check_port(stream.port)
        found = stream.graph.united(stream.port)
        if not ports.isdisjoint(found):
            raise JobDefinitionError(
                f"The stream {stream.name!r} is twice in a union, so each of its records would count twice. Name it "
                "once."
            )
        ports.update(found)
        _check_alike(first, stream)


def _check_alike(one: DataStream, other: DataStream) -> None:
    """Raise JobDefinitionError when two streams of a union differ in type or time."""
    names = f"{one.name!r} and {other.name!r}"
    difference = one.record_type.difference(other.record_type)
    if difference:
        raise JobDefinitionError(
            f"The streams {names} of a union have records of different types: {difference}. Bring them to one type "
            f"before, such as {other.name}.map(function, output=SCHEMA)."
        )
    if _counting_time(one) != _counting_time(other):
        raise JobDefinitionError(
            f"The streams {names} of a union differ in event time: {_told_time(one)}, and {_told_time(other)}. Declare "
            "the same for both: job.data_stream(..., event_time=FIELD), or with_event_time(FIELD) behind a step."
        )
    if one.has_watermarks != other.has_watermarks:
        has, has_not = (one, other) if one.has_watermarks else (other, one)
        raise JobDefinitionError(
            f"The stream {has.name!r} of a union has watermarks, and {has_not.name!r} has none, so that nobody knows "
            "how far the union is. Declare them for both (job.data_stream(..., watermarks=...)), or for none."
        )


def _counting_time(stream: DataStream) -> str | None:
    """The event time of a stream in a union: none where it has neither a field for it nor watermarks."""
    time = stream.origin.time
    return time if time != EVENT_TIME or stream.has_watermarks else None


def _told_time(stream: DataStream) -> str:
    time = stream.origin.time
    if time is None:
        return f"{stream.name!r} has none"
    told = {INGESTION_TIME: "the ingestion time", EVENT_TIME: "the one under which its records were emitted"}
    return f"that of {stream.name!r} is {told.get(time, repr(time))}"


def _is_given(schema: Any) -> bool:
    return schema is not None and schema is not type(None) and schema is not Any


def _side_outputs(function: ProcessFunction, step: str) -> dict[str, RecordType]:
    """The types of what the function emits by the side."""
    declared = function.side_outputs
    if not isinstance(declared, Mapping) or not all(isinstance(name, str) and name for name in declared):
        raise JobDefinitionError(
            f"side_outputs of step {step!r} is {declared!r}; it must be a mapping of names to schemas, such as "
            '{"alarms": Alarm}.'
        )
    return {
        name: described_type(schema, f"Side output {name!r} of step {step!r}")
        for name, schema in declared.items()
    }


def _check_states(function: ProcessFunction, step: str) -> None:
    """Raise when a declared state cannot be stored, or is declared where it is not found."""
    for name, state in declared_states(function).items():
        if state.name != name:
            raise JobDefinitionError(
                f"Step {step!r} has one {type(state).__name__} under the names {name!r} and {state.name!r}; give each "
                "its own."
            )
        try:
            state.spec()
        except SchemaError as e:
            raise SchemaError(f"State {name!r} of step {step!r}: {e}") from e
    for name, shared in declared_shared(type(function)).items():
        try:
            shared.check()
        except SchemaError as e:
            raise SchemaError(f"{name!r} of step {step!r}: {e}") from e
    declared_handlers(type(function))
    for name, value in vars(function).items():
        if isinstance(value, KeyedState | Setting | BroadcastState | TransientField):
            raise JobDefinitionError(
                f"Step {step!r} sets its state {name!r} on the instance; declare it in the body of the class "
                f"{type(function).__name__}."
            )


def _check_owners(function: ProcessFunction, step: str, data: DataStream, key: KeySelector | None) -> None:
    """Raise when what a function declares is of keys and the step has none, or the other way round."""
    has_key = key is not None and not key.by_place
    for name, state in declared_states(function).items():
        kind = type(state).__name__
        if state.by_key and not has_key:
            raise JobDefinitionError(
                f"Step {step!r} has no key, and its {kind} {name!r} holds something for each key. Key the stream "
                f"({data.name}.key_by(...)), or declare an operator state, such as ps.OperatorListState."
            )
        if not state.by_key and has_key:
            raise JobDefinitionError(
                f"Step {step!r} has a key, and its {kind} {name!r} is of steps without one. Declare a keyed state "
                f"(ps.ListState), or process the stream as it is ({data.name}.process(...))."
            )
    for handler in declared_handlers(type(function)).values():
        if handler.scope == "key" and not has_key:
            raise JobDefinitionError(
                f"Step {step!r} has no key, and {type(function).__name__}.{handler.method} takes commands to keys. "
                f'Write on_command({handler.kind!r}, scope="step").'
            )


def _check_clock(function: ProcessFunction, step: str, data: DataStream) -> None:
    """Raise JobDefinitionError when values expire by event time and the records have none."""
    for name, state in declared_states(function).items():
        if state.ttl is not None and state.ttl.time == "event" and data.origin.time is None:
            raise JobDefinitionError(
                f"State {name!r} of step {step!r} expires by event time, and the records of {data.name!r} have none. "
                'Say which field has it (job.data_stream(..., event_time="at")), or use Ttl(..., time="processing").'
            )


def _check_transform(kind: TransformKind, function: Any) -> None:
    """Raise JobDefinitionError for what cannot be the function of a transform."""
    if not callable(function):
        raise JobDefinitionError(f"{kind} needs a function, not {function!r}.")
    called = getattr(function, "__name__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise JobDefinitionError(f"{kind} needs a plain function, and {called} is async.")
    if kind != "flat_map" and inspect.isgeneratorfunction(function):
        raise JobDefinitionError(
            f"{kind} needs a function that returns one value, and {called} yields; use flat_map."
        )
    many = _returns_many(function)
    if kind == "map" and many is True:
        raise JobDefinitionError(
            f"map needs a function that returns one record, and {called} is annotated to return several; use flat_map."
        )
    if kind == "flat_map" and many is False:
        raise JobDefinitionError(
            f"flat_map needs a function that returns several records, and {called} is annotated to return one; use map."
        )


def _returns_many(function: Callable[[Any], Any]) -> bool | None:
    """Whether the return annotation is of something to iterate over; None when that cannot be told."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or kind in (type(None), types.UnionType, str, bytes):
        return None
    return issubclass(kind, Iterable) and not issubclass(kind, Mapping)


def protobuf_source(given: Any, schema: Any, who: str) -> ProtobufSource | None:
    """The protobuf message of a stream's records: the given class, else the schema when that is one."""
    if given is None:
        return ProtobufSource.of(schema) if _is_message(schema) else None
    if not _is_message(given):
        raise JobDefinitionError(
            f"{who}: protobuf={given!r} is no message class. Give a class that the protobuf compiler made."
        )
    return ProtobufSource.of(given)


def _is_message(schema: Any) -> bool:
    return isinstance(schema, type) and hasattr(schema, "DESCRIPTOR") and hasattr(schema, "SerializeToString")
