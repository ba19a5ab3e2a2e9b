"""Expression nodes: adds where and select to the graph of a job, as transforms, or as steps if they have settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from penstock.errors import ExpressionError, JobDefinitionError
from penstock.expressions.expression import Condition, Selection
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.expression_transforms import expression_step, parameter_types
from penstock.operators.keys import KeySelector, key_selector
from penstock.streams.described_stream import DescribedStream, StepInput
from penstock.streams.graph import ExpressionNode, Port, ProcessNode
from penstock.streams.step_nodes import add_process
from penstock.tables.changes import CHANGE

__all__ = ["add_expression", "add_select", "add_where", "compile_expression", "selected_key"]


def add_where(
    data: StepInput, condition: Any, settings: Mapping[str, Any] | None, name: str
) -> DescribedStream:
    """Add a condition and return the stream of the records for which it is true. Raises JobDefinitionError."""
    stream = data.stream
    found = _add(data, "where", [condition], settings, name)
    # The records stay as they are, so a message class that fits them still does.
    origin = replace(found.origin, protobuf=stream.origin.protobuf)
    return DescribedStream(found.graph, found.port, stream.record_type, origin)


def add_select(
    data: StepInput, given: Sequence[Any], settings: Mapping[str, Any] | None, name: str
) -> DescribedStream:
    """Add a selection and return the stream of the selected records. Raises JobDefinitionError."""
    return _add(data, "select", given, settings, name)


def selected_key(key: KeySelector, selected: DescribedStream) -> KeySelector:
    """Return the key of a keyed stream after a selection. Raises JobDefinitionError if its fields are not copied."""
    node = selected.graph.nodes[selected.port.node]
    found: Any = node.function if isinstance(node, ProcessNode) else node
    expression: Selection = found.expression
    names = [expression.unchanged.get(field) for field in key.fields]
    if key.function is not None or None in names:
        what = (
            "its function" if key.function is not None else "the fields " + ", ".join(map(repr, key.fields))
        )
        raise JobDefinitionError(
            f"The selection {selected.port.node.partition('/')[2]!r} loses the key of the stream: {what}. Select the "
            "fields of the key unchanged, or select first and key the result: select(...).key_by(...)."
        )
    return key_selector(selected.record_type, tuple(str(name) for name in names), None)


def _add(
    data: StepInput,
    kind: Literal["where", "select"],
    given: Sequence[Any],
    settings: Mapping[str, Any] | None,
    name: str,
) -> DescribedStream:
    stream = data.stream
    stream.check_port()
    number = sum(isinstance(node, ExpressionNode) for node in stream.graph.nodes.values()) + 1
    shown = name or f"{kind}-{number}"
    who = f"The {kind} {shown!r}"
    types = parameter_types(settings or {}, who)
    expression = compile_expression(kind, given, stream, types, who)
    if settings:
        if not name:
            raise JobDefinitionError(
                f'{who} has settings, so it is a step, whose name commands use. Give it one: name="large-amounts".'
            )
        output = stream.record_type if isinstance(expression, Condition) else expression.record_type
        return add_process(name, expression_step(expression, settings, types, who), [data], output)
    return add_expression(stream, expression, shown)


def add_expression(stream: DescribedStream, expression: Condition | Selection, shown: str) -> DescribedStream:
    """Add an expression without settings, under the name `shown`, and return the stream of its results."""
    if isinstance(expression, Condition):
        result, origin = stream.record_type, stream.origin
    else:
        result = expression.record_type
        origin = stream.origin.of(result, None)
        if origin.changes is not None:
            origin = replace(origin, changes=origin.changes.renamed(expression.unchanged))
    kind: Literal["where", "select"] = "where" if isinstance(expression, Condition) else "select"
    time = stream.origin.time if origin.time == EVENT_TIME != stream.origin.time else None
    node = ExpressionNode(
        f"transform/{shown}", shown, kind, expression, stream.port, stream.record_type, result, time
    )
    stream.graph.add(node)
    return DescribedStream(stream.graph, Port(node.id), result, origin)


def compile_expression(
    kind: str, given: Sequence[Any], stream: DescribedStream, types: Mapping[str, Any], who: str
) -> Condition | Selection:
    """Return a checked condition or selection; a selection of a changelog keeps the kind of each change.

    Raises ExpressionError, which names `who`.
    """
    # It imports the parser, which jobs without expressions and workers do without.
    from penstock.expressions.compiler import compile_condition, compile_selection
    from penstock.expressions.sql_text import SqlPart

    try:
        if kind == "where":
            return compile_condition(given[0], stream.record_type, types)
        found = compile_selection(given, stream.record_type, types)
        if stream.origin.changes is not None and CHANGE not in found.record_type.field_names:
            return compile_selection([*given, CHANGE], stream.record_type, types)
        return found
    except ExpressionError as e:
        if isinstance(given[0], SqlPart):
            # The position in its file says more than the names of steps made from it.
            raise
        raise ExpressionError(f"{who} of the stream {stream.name!r}: {e}") from None
