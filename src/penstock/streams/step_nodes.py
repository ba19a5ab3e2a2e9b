"""Step nodes: adds process functions, windows and rolling aggregates to the graph of a job, as steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import JobDefinitionError, SchemaError
from penstock.joins.join_step import JoinStep
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.functions import ProcessFunction, output_type, read_result_type
from penstock.operators.rolling_aggregates import (
    RollingCount,
    RollingFieldAggregate,
    RollingFunction,
    rolling_aggregate,
    rolling_reduce,
)
from penstock.operators.watermarks import INGESTION_TIME
from penstock.operators.window_step import LATE, WindowStep, window_output, window_step
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.state.folded_states import AggregateFunction
from penstock.streams.described_stream import DescribedStream, KeyedInput, StepInput
from penstock.streams.graph import Graph, Port, ProcessNode, described_type, is_given, output_name
from penstock.streams.origin import Origin, protobuf_source
from penstock.streams.step_validation import (
    check_clock,
    check_event_time,
    check_number,
    check_owners,
    check_states,
    check_step,
)
from penstock.tables.table_step import TableStep
from penstock.windows.distinct_counts import DistinctCount
from penstock.windows.field_aggregates import FieldAggregate
from penstock.windows.operator import WindowSpec
from penstock.windows.value_hashes import can_be_hashed
from penstock.windows.window_functions import WindowContents

__all__ = [
    "DescribedStep",
    "add_process",
    "add_rolling_aggregate",
    "add_rolling_count",
    "add_rolling_field",
    "add_rolling_reduce",
    "add_table_step",
    "add_windows",
    "distinct_count",
]


class DescribedStep(DescribedStream):
    """The main output of a step, with access to its side outputs."""

    def __init__(self, graph: Graph, node: ProcessNode, main: RecordType, origin: Origin) -> None:
        super().__init__(graph, Port(node.id), main, origin)
        self._node = node

    def stamped(self) -> DescribedStep:
        """Return the step with the control version on each record that it emits.

        Raises JobDefinitionError when the stream is already in use, and for a join.
        """
        self.check_port()
        if isinstance(self._node.function, TableStep):
            raise JobDefinitionError(
                f"The stream {self.name!r} is a table, whose rows come from many records; they have no control version."
            )
        if isinstance(self._node.function, JoinStep):
            raise JobDefinitionError(
                f"Step {self._node.step!r} is a join, whose records have no control version. Stamp those of a step "
                "after it."
            )
        if any(True for _ in self.graph.consumers(self.port)):
            raise JobDefinitionError(
                f"The stream {self.name!r} is stamped after it was used; call stamp_control_version() before using it."
            )
        node = dataclasses.replace(self._node, stamped=True)
        try:
            kind = node.outputs[""]
        except SchemaError as e:
            raise SchemaError(f"Step {node.step!r}: {e}") from e
        self.graph.replace(node)
        return DescribedStep(self.graph, node, kind, self.origin.of(kind, None))

    def side_output(self, name: str) -> DescribedStream:
        """Return the stream of a side output. Raises JobDefinitionError when the function does not declare it."""
        if name not in self._node.outputs or not name:
            known = ", ".join(repr(n) for n in self._node.outputs if n) or "none"
            raise JobDefinitionError(
                f"Step {self._node.step!r} has no side output {name!r}; its function declares {known} in side_outputs."
            )
        protobuf = protobuf_source(None, self._node.function.side_outputs[name], f"Side output {name!r}")
        kind = self._node.outputs[name]
        origin = _origin_of(self._node, name, kind, protobuf)
        return DescribedStream(self.graph, Port(self._node.id, name), kind, origin)


def add_process(
    step: str, function: ProcessFunction, inputs: Sequence[StepInput], output: Any
) -> DescribedStep:
    """Add a step with a process function. `inputs` are the control streams, then the data."""
    data = inputs[-1]
    check_step(step, data.stream)
    check_states(function, step)
    check_owners(function, step, data.stream, data.key)
    check_clock(function, step, data.stream)
    schema = output if output is not None else read_result_type(type(function).process_record)
    main = described_type(schema, f"Step {step!r}") if is_given(schema) else output_type(function, None, step)
    return _add_step(step, function, inputs, main, protobuf_source(None, schema, f"Step {step!r}"))


def add_rolling_field(step: str, aggregate: str, field: str, keyed: KeyedInput) -> DescribedStep:
    """Add a step that emits the aggregate of a field so far after each record."""
    check_number(step, aggregate, keyed.stream.record_type, field)
    return _add_rolling(step, RollingFieldAggregate(FieldAggregate(aggregate, field), keyed.key), keyed)


def add_rolling_count(step: str, keyed: KeyedInput) -> DescribedStep:
    """Add a step that emits the number of records so far after each record."""
    return _add_rolling(step, RollingCount(keyed.key), keyed)


def add_rolling_aggregate(
    step: str, aggregate: AggregateFunction[Any, Any, Any], keyed: KeyedInput, output: Any
) -> DescribedStep:
    """Add a step that emits the result of an aggregate function over all records so far after each record."""
    try:
        function = rolling_aggregate(aggregate, keyed.key, output)
    except (JobDefinitionError, SchemaError) as e:
        raise type(e)(f"Step {step!r}: {e}") from e
    return _add_rolling(step, function, keyed)


def add_rolling_reduce(step: str, reduce: Callable[[Any, Any], Any], keyed: KeyedInput) -> DescribedStep:
    """Add a step that emits all records so far, reduced to one, after each record."""
    try:
        function = rolling_reduce(reduce, keyed.stream.record_type)
    except JobDefinitionError as e:
        raise JobDefinitionError(f"Step {step!r}: {e}") from None
    return _add_rolling(step, function, keyed)


def _add_rolling(step: str, function: RollingFunction, keyed: KeyedInput) -> DescribedStep:
    return add_process(step, function, [keyed], function.output)


def add_windows(
    step: str, keyed: KeyedInput, contents: WindowContents, options: Mapping[str, Any], output: Any
) -> DescribedStep:
    """Add a step with windows; `options` are their assigner, trigger, evictor and lateness."""
    stream, key = keyed.stream, keyed.key
    check_step(step, stream)
    try:
        spec = WindowSpec(contents=contents, late_output=True, **options)
        made = window_output(contents, stream.record_type, key, output)
        function = window_step(spec, stream.record_type, made)
    except (JobDefinitionError, SchemaError) as e:
        raise type(e)(f"Step {step!r}: {e}") from e
    check_states(function, step)
    if function.is_event_time:
        check_event_time(step, stream)
    protobuf = protobuf_source(None, output, f"Step {step!r}")
    return _add_step(step, function, [keyed], made.record_type, protobuf)


def add_table_step(step: str, function: TableStep, data: KeyedInput) -> DescribedStep:
    """Add a step that computes a table."""
    check_states(function, step)
    check_clock(function, step, data.stream)
    return _add_step(step, function, [data], function.output, None)


def distinct_count(step: str, stream: DescribedStream, field: str, accuracy: float) -> DistinctCount:
    """Return the approximate distinct count of a field. Raises JobDefinitionError when its type has none."""
    kind = stream.record_type.field(field).arrow_type
    if not can_be_hashed(kind):
        raise JobDefinitionError(
            f"Step {step!r}: the field {field!r} is {kind}, which has no distinct count. Name a field "
            "of integers, floating-point numbers, text, bytes, booleans, dates or timestamps, or write your own "
            "function."
        )
    try:
        return DistinctCount(field, accuracy)
    except JobDefinitionError as e:
        raise JobDefinitionError(f"Step {step!r}: {e}") from None


def _add_step(
    step: str,
    function: ProcessFunction,
    inputs: Sequence[StepInput],
    main: RecordType | None,
    protobuf: ProtobufSource | None,
) -> DescribedStep:
    """Add a step with its side outputs to the graph."""
    outputs: dict[str, RecordType] = {} if main is None else {"": main}
    outputs |= _side_outputs(function, step)
    node = ProcessNode(f"step/{step}", step, function, tuple(part.edge() for part in inputs), outputs)
    graph = inputs[0].stream.graph
    graph.add(node)
    kind = main if main is not None else record_type("nothing BOOLEAN")
    return DescribedStep(graph, node, kind, _origin_of(node, "", kind, protobuf))


def _origin_of(node: ProcessNode, output: str, kind: RecordType, protobuf: ProtobufSource | None) -> Origin:
    """Return the origin of the records that a step emits to an output."""
    time, function = node.edges[-1].time, node.function
    given = Origin(output_name(node.step, output), is_control=False, protobuf=protobuf, time=time)
    origin = given.of(kind, protobuf)
    if isinstance(function, RollingFunction) and origin.time not in (None, INGESTION_TIME):
        # If a record is reduced to an older one, its result still has the time of the newer record.
        return dataclasses.replace(origin, time=EVENT_TIME)
    if time is None or not isinstance(function, WindowStep) or output == LATE:
        return origin
    if function.spec.contents.function is not None and origin.time not in (EVENT_TIME, INGESTION_TIME):
        # The window function has set the event-time field of the records that it made.
        return origin
    return dataclasses.replace(origin, time=EVENT_TIME)


def _side_outputs(function: ProcessFunction, step: str) -> dict[str, RecordType]:
    """Return the record types of the function's side outputs."""
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
