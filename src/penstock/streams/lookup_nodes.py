"""Lookup nodes: adds joins with a dimension, by key or broadcast, to the graph of a job, as steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.base.durations import Duration, milliseconds
from penstock.errors import JobDefinitionError
from penstock.expressions.columns import Column
from penstock.joins.broadcast_lookup import broadcast_lookup
from penstock.joins.join_step import join_step
from penstock.joins.lookup_join import LookupJoin
from penstock.operators.event_times import EVENT_TIME
from penstock.streams.described_stream import DescribedStream, KeyedInput, StepInput
from penstock.streams.join_nodes import (
    JoinOptions,
    add_join,
    check_how,
    check_key_types,
    compile_deletion,
    compile_expressions,
)
from penstock.streams.lookup_table import LookupTable
from penstock.streams.step_nodes import add_process
from penstock.streams.step_validation import check_step
from penstock.streams.table_lookup_nodes import Pairs, add_table_lookup

__all__ = ["LookupOptions", "add_lookup_join"]


@dataclass(frozen=True)
class LookupOptions:
    """The options of lookups alone: the fields that a broadcast one compares, deletions, and missing records."""

    on: Pairs | None
    deleted: str | Column | None
    missing: Literal["dead_letter"] | None
    wait: Duration | None


def add_lookup_join(
    step: str, left: StepInput, dimension: Any, lookup: LookupOptions, options: JoinOptions
) -> DescribedStream:
    """Add a step that looks records up in a dimension. Raises JobDefinitionError when something does not fit."""
    check_step(step, left.stream)
    check_how(step, options.how, ("inner", "left"))
    if lookup.missing not in (None, "dead_letter"):
        raise JobDefinitionError(
            f"Step {step!r}: missing={lookup.missing!r} is not 'dead_letter'. Leave it out to drop records without a "
            "match (how='inner') or to emit them with nulls (how='left')."
        )
    if isinstance(dimension, LookupTable):
        if lookup.deleted is not None or lookup.wait is not None:
            raise JobDefinitionError(
                f"Step {step!r}: deleted and wait are for dimensions that are streams; the table {dimension.name!r} "
                "is asked when a record comes."
            )
        return add_table_lookup(step, left, dimension, lookup.on, lookup.missing, options)
    if not isinstance(dimension, StepInput):
        raise JobDefinitionError(
            f"Step {step!r} looks records up in {dimension!r}. Key the dimension (dimension.key_by(...)), broadcast "
            "a control stream (dimension.broadcast()), or declare a table (job.lookup_table(...))."
        )
    if dimension.stream.graph is not left.stream.graph:
        raise JobDefinitionError(
            f"Step {step!r}: the stream {dimension.stream.name!r} belongs to another job. Declare it in this one."
        )
    dimension.stream.check_port()
    if dimension.key is None:
        return _add_broadcast(step, left, dimension, lookup, options)
    return _add_keyed(step, left, dimension, lookup, options)


def _add_keyed(
    step: str, left: StepInput, dimension: StepInput, lookup: LookupOptions, options: JoinOptions
) -> DescribedStream:
    if not isinstance(left, KeyedInput) or left.key.by_place:
        raise JobDefinitionError(
            f"Step {step!r}: the dimension {dimension.stream.name!r} is keyed, but {left.stream.name!r} is not. Key "
            "it, or broadcast the dimension."
        )
    assert isinstance(dimension, KeyedInput)
    check_key_types(step, left, dimension)
    if lookup.on is not None:
        raise JobDefinitionError(
            f"Step {step!r}: on is for a broadcast dimension; this one is found by its key."
        )
    wait_ms = None
    if lookup.wait is not None:
        wait_ms = milliseconds(lookup.wait, f"Step {step!r}: wait", min_ms=1)
    time = left.stream.origin.time
    if wait_ms is not None and time == EVENT_TIME:
        raise JobDefinitionError(
            f"Step {step!r}: records that wait need their event time in a field. Name it before: "
            "stream.with_event_time(FIELD)."
        )
    expressions, types = compile_expressions(step, left, dimension, options)
    deleted = compile_deletion(step, lookup.deleted, dimension)
    is_control = dimension.stream.is_control
    field = time if time in left.stream.record_type.field_names else None
    function = join_step(
        LookupJoin,
        options.settings,
        (1, 0) if is_control else (0, 1),
        deleted,
        (wait_ms, field),
        (left.stream.record_type, dimension.stream.record_type),
        options.how,
        expressions,
        types,
        has_letters=lookup.missing is not None,
    )
    inputs = (dimension, left) if is_control else (left, dimension)
    return add_join(step, function, inputs, left.stream.origin.time)


def _add_broadcast(
    step: str, left: StepInput, dimension: StepInput, lookup: LookupOptions, options: JoinOptions
) -> DescribedStream:
    on = lookup.on
    if not isinstance(on, tuple) or len(on) != 2 or not isinstance(on[0], str) or not isinstance(on[1], str):
        raise JobDefinitionError(
            f"Step {step!r}: say which fields are equal in the stream and in the broadcast dimension: "
            'on=("room", "id").'
        )
    if lookup.wait is not None:
        raise JobDefinitionError(
            f"Step {step!r}: records cannot wait for a broadcast dimension, which has no key to wait for. Key both "
            "streams."
        )
    kinds = (left.stream.record_type, dimension.stream.record_type)
    mine, its = kinds[0].field(on[0]), kinds[1].field(on[1])
    if not mine.arrow_type.equals(its.arrow_type):
        raise JobDefinitionError(
            f"Step {step!r}: the fields {mine.name!r} ({mine.arrow_type}) and {its.name!r} ({its.arrow_type}) differ "
            "in type. Convert one first, with select."
        )
    expressions, types = compile_expressions(step, left, dimension, options)
    missing = lookup.missing or ("null" if options.how == "left" else "drop")
    deleted = compile_deletion(step, lookup.deleted, dimension)
    function = broadcast_lookup(
        options.settings, its.python_type, kinds, (on[0], on[1]), deleted, expressions, types, missing
    )
    return add_process(step, function, [dimension, left], expressions.record_type)
