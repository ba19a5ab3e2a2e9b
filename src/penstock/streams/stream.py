"""Data streams, keyed streams and connected streams: the fluent API that describes a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, cast, overload

from penstock.errors import JobDefinitionError
from penstock.operators.functions import check_function
from penstock.operators.keys import KeySelector, key_selector, place_selector
from penstock.state.folded_states import AggregateFunction
from penstock.streams import step_nodes
from penstock.streams.changelog_methods import ChangelogMethods
from penstock.streams.described_stream import DescribedStream, KeyedInput, StepInput
from penstock.streams.expression_methods import ExpressionMethods
from penstock.streams.expression_nodes import selected_key
from penstock.streams.function_types import (
    AggregateT,
    ConnectedRecordFunction,
    KeyT,
    RecordFunction,
    RecordT,
    ResultT,
    WindowRecordFunction,
)
from penstock.streams.join_methods import JoinMethods
from penstock.streams.lookup_methods import LookupMethods
from penstock.streams.sink_nodes import SinkChanges, add_sink
from penstock.streams.stateless_nodes import add_event_time, add_transform, add_union
from penstock.streams.stream_validation import check_connections
from penstock.streams.window_aggregates import WindowAggregates
from penstock.windows.assigners import WindowAssigner
from penstock.windows.window_functions import Aggregated, AllRecords, Reduced, WindowContents, WindowFunction

__all__ = [
    "BroadcastStream",
    "ConnectedStream",
    "DataStream",
    "KeyedStream",
    "ProcessedStream",
    "WindowedStream",
]


class DataStream(
    DescribedStream,
    ExpressionMethods["DataStream[RecordT]", "DataStream[Any]"],
    ChangelogMethods["DataStream[Any]", "ProcessedStream[Any]"],
    LookupMethods["DataStream[Any]"],
    Generic[RecordT],
):
    """A stream of records of one type, `DataStream[Reading]`.

    A type checker reports functions that take other records, and wrong uses of their results.
    """

    def __init__(self, described: DescribedStream) -> None:
        super().__init__(described.graph, described.port, described.record_type, described.origin)

    @overload
    def map(self, function: Callable[[RecordT], ResultT], *, name: str = "") -> DataStream[ResultT]: ...
    @overload
    def map(
        self, function: Callable[[RecordT], Any], *, output: type[ResultT] | str, name: str = ""
    ) -> DataStream[ResultT]: ...
    def map(
        self, function: Callable[[RecordT], Any], *, output: Any = None, name: str = ""
    ) -> DataStream[Any]:
        """Replace each record by the function's result.

        `output` is the schema of the result. Omit it if the function's return annotation specifies the type.
        """
        return DataStream(add_transform(self, "map", function, output, name))

    def filter(self, function: Callable[[RecordT], bool], *, name: str = "") -> DataStream[RecordT]:
        """Keep only the records for which the function returns true."""
        return DataStream(add_transform(self, "filter", function, self.record_type, name))

    @overload
    def flat_map(
        self, function: Callable[[RecordT], Iterable[ResultT] | None], *, name: str = ""
    ) -> DataStream[ResultT]: ...
    @overload
    def flat_map(
        self,
        function: Callable[[RecordT], Iterable[Any] | None],
        *,
        output: type[ResultT] | str,
        name: str = "",
    ) -> DataStream[ResultT]: ...
    def flat_map(
        self, function: Callable[[RecordT], Iterable[Any] | None], *, output: Any = None, name: str = ""
    ) -> DataStream[Any]:
        """Replace each record by any number of records, which the function yields or returns."""
        return DataStream(add_transform(self, "flat_map", function, output, name))

    def with_event_time(self, field: str) -> DataStream[RecordT]:
        """Use a field as the event time of the records from here on: a timestamp, or an integer of milliseconds.

        The stream keeps its watermarks, so the times must not be further behind than these allow. A record in which
        the field is null goes to the dead letters.

        >>> clicks = Job("clicks").data_stream(
        ...     "clicks", schema="user STRING, at BIGINT", event_time="at", watermarks=Watermarks.bounded("5s")
        ... )
        >>> counts = clicks.key_by("user").window(TumblingWindows("1m")).count("counts")
        >>> from_the_start = counts.with_event_time("window_start")
        """
        return DataStream(add_event_time(self, field))

    def union(self, *others: DataStream[RecordT], name: str = "") -> DataStream[RecordT]:
        """Merge this stream with others of the same record type and event time.

        The watermark of the union is the smallest among its streams that are not idle. Within a micro-batch, the
        records of a key come stream by stream, in this order; `ctx.stream` is the name of the stream.

        >>> job = Job("shop")
        >>> web = job.data_stream("web", schema="page STRING, at BIGINT")
        >>> app = job.data_stream("app", schema="page STRING, at BIGINT")
        >>> visits = web.union(app).key_by("page")
        """
        return DataStream(add_union((self, *others), name))

    def key_by(
        self, *key: str | Callable[[RecordT], KeyT | None], key_type: Any = None
    ) -> KeyedStream[KeyT, RecordT]:
        """Partition the stream by a field, by several fields, or by the result of a function.

        A function needs a return annotation or `key_type`. Keys are integers, text, bytes, dates, or tuples of these
        (for several fields). A record whose key is null goes to the dead letters.
        """
        self.check_port()
        if key_type is not None and not (key and callable(key[0])):
            raise JobDefinitionError(
                f"The stream {self.name!r} is keyed by fields, which have their own types; remove key_type."
            )
        try:
            return KeyedStream(self, key_selector(self.record_type, key, key_type))
        except JobDefinitionError as e:
            raise type(e)(f"The stream {self.name!r} cannot be keyed: {e}") from e

    @overload
    def process(self, step: str, function: RecordFunction[RecordT, ResultT]) -> ProcessedStream[ResultT]: ...
    @overload
    def process(
        self, step: str, function: RecordFunction[RecordT, Any], *, output: type[ResultT] | str
    ) -> ProcessedStream[ResultT]: ...
    def process(
        self, step: str, function: RecordFunction[RecordT, Any], *, output: Any = None
    ) -> ProcessedStream[Any]:
        """Run a process function on records without a key. `step` is the stable name that identifies its state.

        The records of each source partition are processed in order and share operator states (`OperatorListState`,
        `UnionListState`). Settings, broadcast states and commands to the step work as in keyed steps.
        """
        return self._keyed_by_place().process(step, function, output=output)

    def window_all(self, assigner: WindowAssigner) -> WindowedStream[int, RecordT]:
        """Put all records into the same windows, regardless of key. A single task processes all of them."""
        return WindowedStream(self.key_by(_all_alike, key_type=int), assigner)

    def connect(self, *controls: BroadcastStream[Any]) -> ConnectedStream[None, RecordT]:
        """Connect this stream, which has no key, with any number of broadcast control streams."""
        return self._keyed_by_place().connect(*controls)

    def _data(self) -> StepInput:
        return self._keyed_by_place()

    def _unchanged(self, described: DescribedStream) -> DataStream[RecordT]:
        return DataStream(described)

    _selected = _stream_of = _looked_up = _unchanged

    def _stream(self) -> DescribedStream:
        return self

    def _over_of(self, step: step_nodes.DescribedStep) -> ProcessedStream[Any]:
        return ProcessedStream(step)

    def _keyed_by_place(self) -> KeyedStream[None, RecordT]:
        self.check_port()
        return KeyedStream(self, place_selector(self.record_type))

    def broadcast(self) -> BroadcastStream[RecordT]:
        """Broadcast this control stream: each record takes effect for the whole step that it is connected to."""
        self.check_port()
        if not self.origin.is_control:
            raise JobDefinitionError(
                f"The stream {self.name!r} is not a control stream, and only these are broadcast; declare it with "
                "job.control_stream(...)."
            )
        return BroadcastStream(self)

    def sink_to(
        self,
        name: str,
        *,
        protobuf: Any = None,
        changes: SinkChanges | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        """Write the records to the sink of that name; a binding connects it to its destination (`-D name=URI`).

        `protobuf` is the generated message class for bindings with `format=protobuf`, if the stream's schema is not
        a protobuf message itself. A sink takes a changelog if `changes` says how: as "records", with the kind of each
        change in the field `_change`, or as "upserts", the last change of each `key`, which defaults to that of the
        changelog. A deletion is then a message without a body in Kafka, and elsewhere a record with the kind `-D`.
        """
        add_sink(self, name, protobuf, changes, key)


class ProcessedStream(DataStream[RecordT]):
    """The main output of a step, with access to its side outputs."""

    def __init__(self, step: step_nodes.DescribedStep) -> None:
        super().__init__(step)
        self._step = step

    def stamp_control_version(self) -> ProcessedStream[Any]:
        """Add the field `control_version` to each record: the control version under which it was made.

        It is the version of the newest control record or command that took effect for the key or for the whole step,
        or 0 if none did. A control record or command without a version counts as the previous version plus one.
        """
        return ProcessedStream(self._step.stamped())

    def side_output(self, name: str) -> DataStream[Any]:
        """Return the stream of records that the function emits to a side output."""
        return DataStream(self._step.side_output(name))


class BroadcastStream(StepInput, Generic[RecordT]):
    """A control stream whose records take effect for all keys."""

    def __init__(self, stream: DataStream[RecordT]) -> None:
        super().__init__(stream, None)


class KeyedStream(
    KeyedInput,
    ExpressionMethods["KeyedStream[KeyT, RecordT]", "KeyedStream[KeyT, Any]"],
    JoinMethods["ProcessedStream[Any]"],
    LookupMethods["DataStream[Any]"],
    Generic[KeyT, RecordT],
):
    """A stream partitioned by key, `KeyedStream[int, Reading]`. For type checkers, a key taken from fields is `Any`."""

    def __init__(self, stream: DataStream[RecordT], key: KeySelector) -> None:
        super().__init__(stream, key)

    def _data(self) -> StepInput:
        return self

    def _unchanged(self, described: DescribedStream) -> KeyedStream[KeyT, RecordT]:
        return KeyedStream(DataStream(described), self.key)

    def _selected(self, described: DescribedStream) -> KeyedStream[KeyT, Any]:
        return KeyedStream(DataStream(described), selected_key(self.key, described))

    def _left(self) -> KeyedInput:
        return self

    def _looked_up(self, described: DescribedStream) -> DataStream[Any]:
        return DataStream(described)

    def _joined(self, described: step_nodes.DescribedStep) -> ProcessedStream[Any]:
        return ProcessedStream(described)

    def connect(
        self, *controls: KeyedStream[KeyT, Any] | BroadcastStream[Any]
    ) -> ConnectedStream[KeyT, RecordT]:
        """Connect this stream with any number of control streams, each keyed by the same type or broadcast."""
        check_connections(self, self.key, controls)
        return ConnectedStream(self, controls)

    @overload
    def process(self, step: str, function: RecordFunction[RecordT, ResultT]) -> ProcessedStream[ResultT]: ...
    @overload
    def process(
        self, step: str, function: RecordFunction[RecordT, Any], *, output: type[ResultT] | str
    ) -> ProcessedStream[ResultT]: ...
    def process(
        self, step: str, function: RecordFunction[RecordT, Any], *, output: Any = None
    ) -> ProcessedStream[Any]:
        """Run a process function on the records. `step` is the stable name that identifies its state."""
        return ProcessedStream(
            step_nodes.add_process(step, check_function(function, step, connected=False), [self], output)
        )

    def reduce(self, step: str, function: Callable[[RecordT, RecordT], RecordT]) -> ProcessedStream[RecordT]:
        """Reduce the records of each key, and emit the result so far after each record, at the record's event time.

        `function` takes the result so far and a record, and combines them into one record of the same type. The first
        record of a key is emitted unchanged. The step keeps the state `reduced`.

        >>> job = Job("rooms")
        >>> readings = job.data_stream("readings", schema="room INT, celsius DOUBLE")
        >>> def hotter(one, other):
        ...     return one if one.celsius >= other.celsius else other
        >>> hottest = readings.key_by("room").reduce("hottest", hotter)
        >>> hottest.record_type.field_names
        ('room', 'celsius')
        """
        return ProcessedStream(step_nodes.add_rolling_reduce(step, function, self))

    def aggregate(
        self, step: str, function: AggregateFunction[RecordT, Any, Any], *, output: Any = None
    ) -> ProcessedStream[Any]:
        """Aggregate the records of each key, and emit the result so far after each record, at the record's event time.

        Emits the fields of the key and those of the result, or `value` if the result is a single value. `output` is
        the type of the result if `get_result` is not annotated. The step keeps the state `accumulator`.

        >>> class Span(AggregateFunction):
        ...     def create_accumulator(self) -> list[float]:
        ...         return []
        ...     def add(self, record, bounds: list[float]) -> list[float]:
        ...         return [min([record.celsius, *bounds]), max([record.celsius, *bounds])]
        ...     def get_result(self, bounds: list[float]) -> float:
        ...         return bounds[1] - bounds[0]
        >>> readings = Job("rooms").data_stream("readings", schema="room INT, celsius DOUBLE")
        >>> readings.key_by("room").aggregate("span", Span()).record_type.field_names
        ('room', 'value')
        """
        return ProcessedStream(step_nodes.add_rolling_aggregate(step, function, self, output))

    def count(self, step: str) -> ProcessedStream[Any]:
        """Count the records of each key, and emit the count so far after each record.

        Emits the fields of the key and `value`, an integer. The step keeps the state `count`.

        >>> visits = Job("site").data_stream("visits", schema="page STRING")
        >>> visits.key_by("page").count("visits-by-page").record_type.field_names
        ('page', 'value')
        """
        return ProcessedStream(step_nodes.add_rolling_count(step, self))

    def sum(self, step: str, field: str) -> ProcessedStream[Any]:
        """Sum a numeric field over the records of each key, and emit the sum so far after each record.

        Emits the fields of the key and `value`, a double. Null values are ignored.
        """
        return ProcessedStream(step_nodes.add_rolling_field(step, "sum", field, self))

    def min(self, step: str, field: str) -> ProcessedStream[Any]:
        """Emit the smallest value of a numeric field so far, like `sum`; null until there is a value."""
        return ProcessedStream(step_nodes.add_rolling_field(step, "min", field, self))

    def max(self, step: str, field: str) -> ProcessedStream[Any]:
        """Emit the largest value of a numeric field so far, like `sum`; null until there is a value."""
        return ProcessedStream(step_nodes.add_rolling_field(step, "max", field, self))

    def mean(self, step: str, field: str) -> ProcessedStream[Any]:
        """Emit the mean of a numeric field so far, like `sum`; null until there is a value."""
        return ProcessedStream(step_nodes.add_rolling_field(step, "mean", field, self))

    def window(self, assigner: WindowAssigner) -> WindowedStream[KeyT, RecordT]:
        """Put the records of each key into windows, such as `ps.TumblingWindows("10s")`."""
        return WindowedStream(self, assigner)


class ConnectedStream(Generic[KeyT, RecordT]):
    """A data stream connected with control streams."""

    def __init__(self, data: KeyedStream[KeyT, RecordT], controls: Sequence[StepInput]) -> None:
        self._data = data
        self._controls = controls

    @overload
    def process(
        self, step: str, function: ConnectedRecordFunction[RecordT, ResultT]
    ) -> ProcessedStream[ResultT]: ...
    @overload
    def process(
        self, step: str, function: ConnectedRecordFunction[RecordT, Any], *, output: type[ResultT] | str
    ) -> ProcessedStream[ResultT]: ...
    def process(
        self, step: str, function: ConnectedRecordFunction[RecordT, Any], *, output: Any = None
    ) -> ProcessedStream[Any]:
        """Run a connected process function. `step` is the stable name that identifies its state."""
        checked = check_function(function, step, connected=True)
        # Broadcast control records take effect before keyed ones.
        controls = sorted(self._controls, key=lambda control: control.key is not None)
        return ProcessedStream(step_nodes.add_process(step, checked, [*controls, self._data], output))


class WindowedStream(WindowAggregates["ProcessedStream[Any]"], Generic[KeyT, RecordT]):
    """The records of each key in windows. Set when windows fire and what they drop, then how to process their records.

    `trigger`, `evictor` and `allowed_lateness` return a new windowed stream; the other methods add a step. The step has
    the side output "late", with the records that arrived after their windows had been cleaned up.

    >>> clicks = Job("clicks").data_stream(
    ...     "clicks", schema="user STRING, at BIGINT", event_time="at", watermarks=Watermarks.bounded("5s")
    ... )
    >>> windowed = clicks.key_by("user").window(TumblingWindows("1m")).allowed_lateness("10s")
    """

    def __init__(self, keyed: KeyedStream[KeyT, RecordT], assigner: WindowAssigner) -> None:
        super().__init__(assigner, keyed)

    @overload
    def reduce(
        self, step: str, function: Callable[[RecordT, RecordT], RecordT]
    ) -> ProcessedStream[RecordT]: ...
    @overload
    def reduce(
        self,
        step: str,
        function: Callable[[RecordT, RecordT], RecordT],
        window_function: WindowRecordFunction[KeyT, RecordT, ResultT],
    ) -> ProcessedStream[ResultT]: ...
    @overload
    def reduce(
        self,
        step: str,
        function: Callable[[RecordT, RecordT], RecordT],
        window_function: WindowRecordFunction[KeyT, RecordT, Any],
        *,
        output: type[ResultT] | str,
    ) -> ProcessedStream[ResultT]: ...
    def reduce(
        self,
        step: str,
        function: Callable[[RecordT, RecordT], RecordT],
        window_function: Any = None,
        *,
        output: Any = None,
    ) -> ProcessedStream[Any]:
        """Reduce the records of each window to one. Only the result so far is kept.

        `function` takes the result so far and a record, and combines them into one record. The step emits the result,
        or passes it to `window_function`.
        """
        return self._step(step, Reduced(function, window_function), output)

    @overload
    def aggregate(
        self, step: str, function: AggregateFunction[RecordT, Any, Any], *, output: Any = None
    ) -> ProcessedStream[Any]: ...
    @overload
    def aggregate(
        self,
        step: str,
        function: AggregateFunction[RecordT, Any, AggregateT],
        window_function: WindowRecordFunction[KeyT, AggregateT, ResultT],
    ) -> ProcessedStream[ResultT]: ...
    @overload
    def aggregate(
        self,
        step: str,
        function: AggregateFunction[RecordT, Any, AggregateT],
        window_function: WindowRecordFunction[KeyT, AggregateT, Any],
        *,
        output: type[ResultT] | str,
    ) -> ProcessedStream[ResultT]: ...
    def aggregate(
        self,
        step: str,
        function: AggregateFunction[RecordT, Any, Any],
        window_function: Any = None,
        *,
        output: Any = None,
    ) -> ProcessedStream[Any]:
        """Aggregate the records of each window. Only the accumulator is kept.

        Emits the fields of the key, `window_start`, `window_end`, and the fields of the result, or `value` if it is a
        single value. With a `window_function`, emits the records that it makes of the result. `output` is the type of
        the result, or of the records of the window function, if it is not annotated.
        """
        return self._step(step, Aggregated(function, window_function), output)

    @overload
    def process(
        self, step: str, function: WindowRecordFunction[KeyT, RecordT, ResultT]
    ) -> ProcessedStream[ResultT]: ...
    @overload
    def process(
        self,
        step: str,
        function: WindowRecordFunction[KeyT, RecordT, Any],
        *,
        output: type[ResultT] | str,
    ) -> ProcessedStream[ResultT]: ...
    def process(
        self, step: str, function: WindowRecordFunction[KeyT, RecordT, Any], *, output: Any = None
    ) -> ProcessedStream[Any]:
        """Keep all records of each window, and pass them to a window function when it fires."""
        return self._step(step, AllRecords(cast("WindowFunction", function)), output)

    def _step(self, step: str, contents: WindowContents, output: Any) -> ProcessedStream[Any]:
        described = step_nodes.add_windows(step, self.keyed, contents, self.options, output)
        return ProcessedStream(described)


def _all_alike(record: Any) -> int:  # noqa: ARG001  # as a key function
    return 0
