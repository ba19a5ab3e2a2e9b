"""Explanation: the streams, steps and sinks of a job, and the state that each step keeps, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.expressions.value_types import sql_name
from penstock.joins.join_step import JoinStep
from penstock.joins.table_lookup import TableLookup
from penstock.operators.functions import ProcessFunction
from penstock.operators.watermarks import INGESTION_TIME
from penstock.operators.window_step import WindowStep
from penstock.records.types import RecordType
from penstock.state.shared import Setting, declared_shared
from penstock.state.values import KeyedState
from penstock.streams.graph import (
    ChangelogNode,
    EventTimeNode,
    ExpressionNode,
    Node,
    ProcessNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    inputs,
)
from penstock.streams.job_description import JobDescription
from penstock.windows.assigners import WindowAssigner

__all__ = ["explain"]


def explain(job: JobDescription, of: Sequence[str] | None = None) -> str:
    """Return a line for each node of a job, in order; only for those that lead to the nodes `of`, if it is given."""
    nodes = job.graph.nodes
    wanted = set(nodes) if of is None else set()
    waiting = list(of or ())
    while waiting:
        one = waiting.pop()
        if one not in wanted:
            wanted.add(one)
            waiting += [port.node for port in inputs(nodes[one])]
    numbers = {node: number for number, node in enumerate((n for n in nodes if n in wanted), 1)}
    lines: list[str] = []
    for name, number in numbers.items():
        node = nodes[name]
        before = " and ".join(
            f"{numbers[port.node]}{f' ({port.output})' if port.output else ''}" for port in inputs(node)
        )
        first, *more = _lines(node)
        what, _, rest = first.partition(":")
        source = f" of {before}" if before else ""
        lines.append(f"{number}. {what}{source}{':' + rest if rest else ''}")
        lines += [f"   {line}" for line in more]
    return "\n".join(lines)


def _lines(node: Node) -> list[str]:
    match node:
        case SourceNode():
            return _source(node)
        case ExpressionNode():
            return [f"{node.kind} {node.name}: {node.expression.sql}"]
        case TransformNode():
            return [f"{node.kind} {node.name}"]
        case EventTimeNode():
            return [f"event time: {node.time}"]
        case UnionNode():
            return [f"union {node.name}"]
        case ChangelogNode():
            return ["changelog"]
        case SinkNode():
            taken = (
                "" if node.upsert_key is None else f": upserts by {', '.join(node.upsert_key) or 'one row'}"
            )
            return [f"sink {node.name}{taken}"]
        case ProcessNode():
            return _step(node)


def _source(node: SourceNode) -> list[str]:
    kind = "control stream" if node.is_control else "data stream"
    lines = [f"{kind} {node.name} ({_fields(node.record_type)})"]
    if node.time is not None:
        time = "arrival" if node.time == INGESTION_TIME else node.time
        bound = None if node.watermarks is None else node.watermarks.bound_ms
        marks = "" if bound is None else f"; the watermark is {_length(bound)} behind"
        lines.append(f"event time: {time}{marks}")
    return lines


def _step(node: ProcessNode) -> list[str]:
    function: Any = node.function
    key = node.key
    keys = dict.fromkeys(edge.key for edge in node.edges if edge.key is not None)
    names = " and ".join(", ".join(one.fields) or "(all alike)" for one in keys)
    by = "by source partition" if key.by_place else f"by key {names}"
    lines = [f"step {node.step}", f"shuffled {by}"]
    expression = getattr(function, "expression", None)
    if expression is not None:
        lines[0] += f": {expression.sql}"
    if isinstance(function, WindowStep):
        lines.append(f"windows: {_windows(function.spec.assigner)}")
    if isinstance(function, TableLookup):
        pairs = " and ".join(f"{mine} = {its}" for mine, its in function.on)
        lines.append(f"looked up in the table {function.table} by {pairs}")
    settings = [name for name, one in declared_shared(type(function)).items() if isinstance(one, Setting)]
    lines += [
        f"setting {name}: {getattr(function, name).default!r}, which commands to {node.step} change"
        for name in settings
    ]
    lines += [f"state {line}" for line in _states(function)] or ["state: none"]
    return lines


def _states(function: ProcessFunction) -> list[str]:
    found = []
    if isinstance(function, WindowStep):
        contents = next(
            (f.type for f in function.state().spec().arrow_type.value_type if f.name == "result"), None
        )
        held = "all their records" if contents is None else _parts(contents)
        found.append(
            f"windows: the open windows of each key, with {held}; until the watermark passes their end"
        )
    states = find_declarations(type(function), KeyedState)
    if isinstance(function, JoinStep):
        states = {**states, **function.states()}
    for name, state in states.items():
        ttl = "" if state.ttl is None else ", which expires"
        found.append(f"{name}: {type(state).__name__} of {sql_name(state.spec().arrow_type)}{ttl}")
    return found


def _parts(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return ", ".join(f"{field.name} {sql_name(field.type)}" for field in kind)
    return sql_name(kind)


def _windows(assigner: WindowAssigner) -> str:
    return f"{type(assigner).__name__}, by {'event' if assigner.is_event_time else 'processing'} time"


def _length(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _fields(kind: RecordType) -> str:
    return ", ".join(f"{field.name} {sql_name(field.arrow_type)}" for field in kind.fields)
