"""Stream validation: checks transforms, connections and unions when a job is described."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import JobDefinitionError
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.keys import KeySelector
from penstock.operators.watermarks import INGESTION_TIME
from penstock.streams.described_stream import DescribedStream, StepInput
from penstock.streams.graph import Port, TransformKind

__all__ = ["check_connections", "check_transform", "check_union", "counting_time"]


def check_transform(kind: TransformKind, function: Any) -> None:
    """Raise JobDefinitionError when a transform cannot use the function."""
    if not callable(function):
        raise JobDefinitionError(f"{kind} needs a function, not {function!r}.")
    called = getattr(function, "__name__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise JobDefinitionError(f"{kind} needs a plain function, but {called} is async.")
    if kind != "flat_map" and inspect.isgeneratorfunction(function):
        raise JobDefinitionError(
            f"{kind} needs a function that returns one value, but {called} yields; use flat_map."
        )
    many = _returns_many(function)
    if kind == "map" and many is True:
        raise JobDefinitionError(
            f"map needs a function that returns one record, but {called} is annotated to return several; use flat_map."
        )
    if kind == "flat_map" and many is False:
        raise JobDefinitionError(
            f"flat_map needs a function that returns several records, but {called} is annotated to return one; use map."
        )


def _returns_many(function: Callable[[Any], Any]) -> bool | None:
    """Return whether the return annotation is an iterable; None when that is unknown."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or kind in (type(None), types.UnionType, str, bytes):
        return None
    return issubclass(kind, Iterable) and not issubclass(kind, Mapping)


def check_connections(data: StepInput, key: KeySelector, controls: Sequence[Any]) -> None:
    """Raise JobDefinitionError when the control streams cannot be connected to data with that key."""
    if not controls:
        raise JobDefinitionError(
            "connect needs at least one control stream: readings.connect(settings.key_by(...))."
        )
    for number, control in enumerate(controls):
        _check_connectable(data.stream, key, control)
        if any(control.key == c.key and control.stream.same_as(c.stream) for c in controls[:number]):
            raise JobDefinitionError(
                f"The stream {control.stream.name!r} is connected twice with the same key, so each of its records "
                "would take effect twice. Connect it once."
            )


def _check_connectable(data: DescribedStream, key: KeySelector, control: Any) -> None:
    if isinstance(control, DescribedStream):
        raise JobDefinitionError(
            f"Key the stream {control.name!r} before connecting it ({control.name}.key_by(...)), or broadcast it "
            f"({control.name}.broadcast())."
        )
    if not isinstance(control, StepInput):
        raise JobDefinitionError(f"connect takes keyed or broadcast control streams, not {control!r}.")
    if not control.stream.is_control:
        raise JobDefinitionError(
            f"The stream {control.stream.name!r} is not a control stream; declare it with job.control_stream(...)."
        )
    if control.stream.graph is not data.graph:
        raise JobDefinitionError(
            f"The stream {control.stream.name!r} belongs to another job. Declare it in this one."
        )
    if control.key is not None and key.by_place:
        raise JobDefinitionError(
            f"The stream {data.name!r} has no key, so the keys of {control.stream.name!r} mean nothing. "
            f"Key both ({data.name}.key_by(...)), or broadcast the control stream "
            f"({control.stream.name}.broadcast())."
        )
    if control.key is not None and not control.key.key_type.equals(key.key_type):
        raise JobDefinitionError(
            f"The keys of {data.name!r} ({key.key_type}) and {control.stream.name!r} "
            f"({control.key.key_type}) differ in type. Key both by the same type."
        )


def check_union(streams: Sequence[DescribedStream]) -> None:
    """Raise JobDefinitionError when streams cannot be united."""
    first = streams[0]
    if len(streams) == 1:
        raise JobDefinitionError(f"union needs at least one other stream: {first.name}.union(more).")
    ports: set[Port] = set()
    for stream in streams:
        if isinstance(stream, StepInput) and stream.key is not None:
            raise JobDefinitionError(
                f"Unite the stream {stream.stream.name!r} before it is keyed: {first.name}.union(...).key_by(...)."
            )
        if not isinstance(stream, DescribedStream):
            raise JobDefinitionError(f"union takes data streams, not {stream!r}.")
        if stream.graph is not first.graph:
            raise JobDefinitionError(
                f"The stream {stream.name!r} belongs to another job. Declare it in this one."
            )
        if stream.is_control:
            raise JobDefinitionError(
                f"The stream {stream.name!r} is a control stream, but a union is for data streams. connect takes any "
                "number of control streams."
            )
        stream.graph.check_port(stream.port)
        found = stream.graph.united(stream.port)
        if not ports.isdisjoint(found):
            raise JobDefinitionError(
                f"The stream {stream.name!r} is in a union twice, so each of its records would count twice. Name it "
                "once."
            )
        ports.update(found)
        _check_alike(first, stream)


def _check_alike(one: DescribedStream, other: DescribedStream) -> None:
    """Raise JobDefinitionError when two streams of a union differ in type or time."""
    names = f"{one.name!r} and {other.name!r}"
    if (one.origin.changes is None) != (other.origin.changes is None):
        plain = one if one.origin.changes is None else other
        raise JobDefinitionError(
            f"Of the streams {names} of a union, only one is a changelog. Make the other one a changelog too: "
            f"{plain.name}.as_changelog()."
        )
    difference = one.record_type.difference(other.record_type)
    if difference:
        raise JobDefinitionError(
            f"The streams {names} of a union have records of different types: {difference}. Convert them to one "
            f"type first, such as {other.name}.map(function, output=SCHEMA)."
        )
    if counting_time(one) != counting_time(other):
        raise JobDefinitionError(
            f"The streams {names} of a union differ in event time: {_format_time(one)}, and {_format_time(other)}. "
            "Declare the same for both: job.data_stream(..., event_time=FIELD), or with_event_time(FIELD) after a step."
        )
    if one.has_watermarks != other.has_watermarks:
        has, has_not = (one, other) if one.has_watermarks else (other, one)
        raise JobDefinitionError(
            f"The stream {has.name!r} of a union has watermarks, but {has_not.name!r} has none, so the union cannot "
            "have a watermark. Declare watermarks for both (job.data_stream(..., watermarks=...)), or for neither."
        )


def counting_time(stream: DescribedStream) -> str | None:
    """Return the event time of a stream in a union: None if it has neither an event-time field nor watermarks."""
    time = stream.origin.time
    return time if time != EVENT_TIME or stream.has_watermarks else None


def _format_time(stream: DescribedStream) -> str:
    time = stream.origin.time
    if time is None:
        return f"{stream.name!r} has none"
    names = {INGESTION_TIME: "the ingestion time", EVENT_TIME: "the one under which its records were emitted"}
    return f"that of {stream.name!r} is {names.get(time, repr(time))}"
