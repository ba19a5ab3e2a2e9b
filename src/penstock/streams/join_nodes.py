"""Join nodes: adds joins of two keyed streams to the graph of a job, as steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.base.durations import Duration, milliseconds
from penstock.errors import ExpressionError, JobDefinitionError
from penstock.expressions.columns import Column
from penstock.expressions.expression import Condition
from penstock.joins.as_of_join import AsOfJoin
from penstock.joins.interval_join import IntervalJoin
from penstock.joins.join_step import JoinStep, join_step
from penstock.joins.pair_expressions import How, PairExpressions, pair_expressions
from penstock.joins.window_join import BOUNDS, CoGroup, JoinWindows, WindowJoin
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.expression_transforms import parameter_types
from penstock.operators.functions import ProcessFunction, result_record_type
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.types import Field, RecordType
from penstock.state.shared import Setting
from penstock.streams.described_stream import KeyedInput, StepInput
from penstock.streams.graph import ProcessNode, described_type
from penstock.streams.origin import Origin
from penstock.streams.step_nodes import DescribedStep
from penstock.streams.step_validation import check_event_time, check_states, check_step
from penstock.windows.assigners import CumulativeWindows, SessionWindows, SlidingWindows, TumblingWindows

__all__ = [
    "JoinOptions",
    "add_as_of_join",
    "add_co_group",
    "add_interval_join",
    "add_join",
    "add_window_join",
    "check_how",
    "check_key_types",
    "compile_deletion",
    "compile_expressions",
    "compile_pairs",
]

HOWS = ("inner", "left", "right", "full")


@dataclass(frozen=True)
class JoinOptions:
    """The options of every join: how, fields, condition, names of the sides, settings of expressions."""

    how: How = "inner"
    fields: Sequence[str | Column] | None = None
    where: str | Column | None = None
    aliases: tuple[str, str] = ("left", "right")
    settings: Mapping[str, Setting[Any]] = field(default_factory=dict)


def add_interval_join(
    step: str, left: KeyedInput, right: Any, bounds: tuple[Duration, Duration], options: JoinOptions
) -> DescribedStep:
    """Add a step that joins records whose times are within bounds. Raises JobDefinitionError."""
    lower_ms, upper_ms = (
        _signed_ms(bound, f"Step {step!r}: {name}")
        for name, bound in zip(("lower", "upper"), bounds, strict=True)
    )
    if lower_ms > upper_ms:
        raise JobDefinitionError(
            f"Step {step!r}: lower={bounds[0]!r} is after upper={bounds[1]!r}, so no records would match. Swap them."
        )
    _check_sides(step, left, right, options.how, HOWS)
    expressions, types = compile_expressions(step, left, right, options)
    kinds = (left.stream.record_type, right.stream.record_type)
    function = join_step(
        IntervalJoin, options.settings, lower_ms, upper_ms, kinds, options.how, expressions, types
    )
    return _add_join(step, function, left, right)


def add_as_of_join(
    step: str, left: KeyedInput, versions: Any, deleted: str | Column | None, options: JoinOptions
) -> DescribedStep:
    """Add a step that joins records with the versions in force at their times. Raises JobDefinitionError."""
    _check_sides(step, left, versions, options.how, ("inner", "left"))
    expressions, types = compile_expressions(step, left, versions, options)
    kinds = (left.stream.record_type, versions.stream.record_type)
    condition = compile_deletion(step, deleted, versions)
    function = join_step(AsOfJoin, options.settings, condition, kinds, options.how, expressions, types)
    return _add_join(step, function, left, versions)


def add_window_join(
    step: str, left: KeyedInput, right: Any, windows: Any, options: JoinOptions
) -> DescribedStep:
    """Add a step that joins the records of both sides in each window. Raises JobDefinitionError."""
    _check_sides(step, left, right, options.how, HOWS)
    assigner = _check_windows(step, windows)
    expressions, types = compile_expressions(step, left, right, options, BOUNDS)
    kinds = (left.stream.record_type, right.stream.record_type)
    function = join_step(WindowJoin, options.settings, assigner, kinds, options.how, expressions, types)
    return _add_join(step, function, left, right)


def add_co_group(
    step: str, left: KeyedInput, right: Any, windows: Any, function: Any, output: Any
) -> DescribedStep:
    """Add a step that gives the records of both sides in each window to a function. Raises JobDefinitionError."""
    _check_sides(step, left, right, "full", HOWS)
    assigner = _check_windows(step, windows)
    if not callable(function) or inspect.isclass(function):
        raise JobDefinitionError(
            f"Step {step!r} needs a function of the key, the window, and the records of both sides, not {function!r}."
        )
    who = f"The function of step {step!r}"
    kind = described_type(output, who) if output is not None else result_record_type(function, who)
    if kind is None:
        raise JobDefinitionError(
            f"{who} is annotated to return None, so it would emit nothing. Annotate what it emits."
        )
    kinds = (left.stream.record_type, right.stream.record_type)
    return _add_join(step, join_step(CoGroup, {}, assigner, kinds, function, kind), left, right)


def _check_windows(step: str, windows: Any) -> JoinWindows:
    """Return windows by event time of a kind that joins know."""
    known = TumblingWindows, SlidingWindows, CumulativeWindows, SessionWindows
    if type(windows) not in known or not windows.is_event_time:
        raise JobDefinitionError(
            f"Step {step!r} joins in {windows!r}; give TumblingWindows, SlidingWindows, CumulativeWindows or "
            "SessionWindows by event time."
        )
    if isinstance(windows, SessionWindows) and windows.gap_ms is None:
        raise JobDefinitionError(
            f"Step {step!r} joins sessions whose gap depends on the record; give a gap that is the same for both sides."
        )
    found: JoinWindows = windows
    return found


def compile_deletion(step: str, deleted: str | Column | None, versions: StepInput) -> Condition | None:
    """Return the condition that says which records delete the version before."""
    if deleted is None:
        return None
    from penstock.expressions.compiler import compile_condition

    try:
        return compile_condition(deleted, versions.stream.record_type)
    except ExpressionError as e:
        raise ExpressionError(f"Step {step!r}: deleted: {e}") from None


def _signed_ms(bound: Any, what: str) -> int:
    """Return a bound in milliseconds; it may be negative."""
    if isinstance(bound, str) and bound.strip().startswith("-"):
        return -milliseconds(bound.strip()[1:].strip(), what)
    return milliseconds(bound, what, min_ms=-(2**53))


def _check_sides(step: str, left: KeyedInput, right: Any, how: str, hows: Sequence[str]) -> None:
    """Raise JobDefinitionError when two streams cannot be joined."""
    check_step(step, left.stream)
    check_how(step, how, hows)
    if not isinstance(right, KeyedInput):
        raise JobDefinitionError(
            f"Step {step!r} joins with {right!r}, which is not a keyed stream. Key it like the left side: "
            "right.key_by(...)."
        )
    check_step(step, right.stream)
    if right.stream.graph is not left.stream.graph:
        raise JobDefinitionError(
            f"Step {step!r}: the stream {right.stream.name!r} belongs to another job. Declare it in this one."
        )
    check_key_types(step, left, right)
    for side in (left.stream, right.stream):
        side.check_port()
        check_event_time(step, side, "joins by event time")


def check_how(step: str, how: str, hows: Sequence[str]) -> None:
    """Raise JobDefinitionError when a join does not have a way to treat records without a match."""
    if how not in hows:
        raise JobDefinitionError(f"Step {step!r}: how={how!r} is not one of {', '.join(map(repr, hows))}.")


def check_key_types(step: str, left: KeyedInput, right: KeyedInput) -> None:
    """Raise JobDefinitionError when the keys of two streams differ in type."""
    if not left.key.key_type.equals(right.key.key_type):
        raise JobDefinitionError(
            f"Step {step!r}: the keys of {left.stream.name!r} ({left.key.key_type}) and {right.stream.name!r} "
            f"({right.key.key_type}) differ in type. Key both by the same type."
        )


def compile_expressions(
    step: str, left: StepInput, right: StepInput, options: JoinOptions, more: tuple[Field, ...] = ()
) -> tuple[PairExpressions, dict[str, Any]]:
    """Check the condition and the fields of a join. Returns them with the types of their parameters."""
    kinds = (left.stream.record_type, right.stream.record_type)
    return compile_pairs(step, kinds, options, JoinStep, more)


def compile_pairs(
    step: str,
    kinds: tuple[RecordType, RecordType],
    options: JoinOptions,
    function: type[ProcessFunction],
    more: tuple[Field, ...] = (),
) -> tuple[PairExpressions, dict[str, Any]]:
    """Check the condition and the fields of a join of records of two types, for a kind of function."""
    types = parameter_types(options.settings, f"Step {step!r}")
    taken = next((name for name in types if hasattr(function, name)), None)
    if taken is not None:
        raise JobDefinitionError(f"Step {step!r} cannot have a setting named {taken!r}; choose another name.")
    given = (options.where, options.fields)
    return pair_expressions(step, kinds, options.how, given, options.aliases, types, more), types


def add_join(
    step: str, function: JoinStep, inputs: tuple[KeyedInput, KeyedInput], time: str | None = EVENT_TIME
) -> DescribedStep:
    """Add a join to the graph. `time` is the event time of its records: EVENT_TIME for one that the join gives them."""
    check_states(function, step)
    main = function.record_type
    outputs = {"": main, **function.side_outputs}
    node = ProcessNode(f"step/{step}", step, function, tuple(one.edge() for one in inputs), outputs)
    graph = inputs[0].stream.graph
    graph.add(node)
    return DescribedStep(graph, node, main, Origin(step, is_control=False, protobuf=None, time=time))


def _add_join(step: str, function: JoinStep, left: KeyedInput, right: KeyedInput) -> DescribedStep:
    by_arrival = left.stream.origin.time == right.stream.origin.time == INGESTION_TIME
    return add_join(step, function, (left, right), INGESTION_TIME if by_arrival else EVENT_TIME)
