"""Step validation: checks the names, states, fields and times of steps when a job is described."""

from __future__ import annotations

import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.errors import JobDefinitionError, SchemaError
from penstock.models.group import ModelGroup
from penstock.models.model import Model
from penstock.models.orders import MODEL_ORDERS
from penstock.operators.functions import ProcessFunction
from penstock.operators.handlers import declared_handlers
from penstock.operators.keys import KeySelector
from penstock.records.types import RecordType
from penstock.state.shared import BroadcastState, Setting, declared_shared
from penstock.state.transient import TransientField
from penstock.state.values import KeyedState
from penstock.streams.changelogs import refuse_changelog
from penstock.streams.described_stream import DescribedStream

__all__ = ["check_clock", "check_event_time", "check_number", "check_owners", "check_states", "check_step"]


def check_step(step: str, data: DescribedStream, *, takes_changes: bool = False) -> None:
    """Raise JobDefinitionError for an invalid step name, and for a step without a data stream that it takes."""
    if not isinstance(step, str) or not step or "/" in step:
        raise JobDefinitionError(f"{step!r} is not a step name: it must not be empty or contain a slash.")
    if data.is_control:
        raise JobDefinitionError(
            f"Step {step!r} has no data stream: {data.name!r} is a control stream. Connect it to a data stream, or "
            "declare it with job.data_stream(...)."
        )
    if not takes_changes:
        refuse_changelog(data.origin.changes, data.name, f"Step {step!r}")


def check_number(step: str, aggregate: str, kind: RecordType, field: str) -> None:
    """Raise JobDefinitionError when a field to aggregate is not numeric."""
    arrow = kind.field(field).arrow_type
    if not (pa.types.is_integer(arrow) or pa.types.is_floating(arrow)):
        raise JobDefinitionError(
            f"Step {step!r}: the field {field!r} is {arrow}, but {aggregate} needs a number. Name another field, or "
            "write your own function."
        )


def check_event_time(step: str, stream: DescribedStream, does: str = "has event-time windows") -> None:
    """Raise JobDefinitionError when a stream has no event time or watermarks for a step that needs them."""
    remedy = 'Declare it: job.data_stream(..., event_time="at", watermarks=ps.Watermarks.bounded("5s"))'
    remedy += '; or use processing-time windows (time="processing").' if "windows" in does else "."
    if stream.origin.time is None:
        raise JobDefinitionError(
            f"Step {step!r} {does}, but the records of {stream.name!r} have no event time. {remedy}"
        )
    if not stream.has_watermarks:
        raise JobDefinitionError(
            f"Step {step!r} {does}, but the stream {stream.name!r} has no watermarks. {remedy}"
        )


def check_states(function: ProcessFunction, step: str) -> None:
    """Raise when a declared state cannot be stored, or is not declared in the body of the class.

    Raises SchemaError for a type that cannot be stored, else JobDefinitionError.
    """
    for name, state in find_declarations(type(function), KeyedState).items():
        if state.name != name:
            raise JobDefinitionError(
                f"Step {step!r} uses one {type(state).__name__} under two names, {name!r} and {state.name!r}; declare "
                "one for each."
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
    for name, group in find_declarations(type(function), ModelGroup).items():
        try:
            group.check()
        except SchemaError as e:
            raise SchemaError(f"{name!r} of step {step!r}: {e}") from e
    _check_models(function, step)
    for name, value in vars(function).items():
        if isinstance(value, KeyedState | Setting | BroadcastState | TransientField):
            raise JobDefinitionError(
                f"Step {step!r} sets its state {name!r} on the instance; declare it in the body of the class "
                f"{type(function).__name__}."
            )


def _check_models(function: ProcessFunction, step: str) -> None:
    """Raise JobDefinitionError when two models have one name, or a handler takes a command that changes models."""
    kind = type(function)
    models = [found for found in declared_shared(kind).values() if isinstance(found, Model)]
    names = [found.model for found in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JobDefinitionError(
            f"Step {step!r} declares two models {twice!r}; commands could not tell them apart. Give one another name."
        )
    for handler in declared_handlers(kind).values():
        if models and handler.kind in MODEL_ORDERS:
            raise JobDefinitionError(
                f"{kind.__name__}.{handler.method} handles the command {handler.kind!r}, which changes the versions of "
                f"the models of step {step!r}; choose another kind."
            )


def check_owners(
    function: ProcessFunction, step: str, data: DescribedStream, key: KeySelector | None
) -> None:
    """Raise JobDefinitionError when a function declares keyed states or handlers in a step without a key.

    Likewise for operator states in a step with a key.
    """
    has_key = key is not None and not key.by_place
    for name, state in find_declarations(type(function), KeyedState).items():
        kind = type(state).__name__
        if state.by_key and not has_key:
            raise JobDefinitionError(
                f"Step {step!r} has no key, but its {kind} {name!r} is a keyed state. Key the stream "
                f"({data.name}.key_by(...)), or declare an operator state, such as ps.OperatorListState."
            )
        if not state.by_key and has_key:
            raise JobDefinitionError(
                f"Step {step!r} has a key, but its {kind} {name!r} is for steps without a key. Declare a keyed state "
                f"(ps.ListState), or process the stream without a key ({data.name}.process(...))."
            )
    for handler in declared_handlers(type(function)).values():
        if handler.scope == "key" and not has_key:
            raise JobDefinitionError(
                f"Step {step!r} has no key, but {type(function).__name__}.{handler.method} takes commands to keys. "
                f'Write on_command({handler.kind!r}, scope="step").'
            )


def check_clock(function: ProcessFunction, step: str, data: DescribedStream) -> None:
    """Raise JobDefinitionError when values expire or policies look at event time, but the records have none."""
    for name, state in find_declarations(type(function), KeyedState).items():
        if state.ttl is not None and state.ttl.time == "event" and data.origin.time is None:
            raise JobDefinitionError(
                f"State {name!r} of step {step!r} expires by event time, but the records of {data.name!r} have none. "
                'Declare the field (job.data_stream(..., event_time="at")), or use Ttl(..., time="processing").'
            )
    for name, model in declared_shared(type(function)).items():
        if isinstance(model, Model) and model.policy.default.time == "event" and not data.has_watermarks:
            raise JobDefinitionError(
                f"The policy of the model {name!r} of step {step!r} looks at event time, but the stream {data.name!r} "
                'has no watermarks. Declare them (job.data_stream(..., event_time="at", '
                'watermarks=ps.Watermarks.bounded("5s"))), or use ModelPolicy(time="processing").'
            )
