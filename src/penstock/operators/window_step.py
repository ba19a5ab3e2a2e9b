"""Window steps: the function of a step with windows, and the records that it emits."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.base.instants import FIRST_MS, LAST_MS
from penstock.errors import JobDefinitionError, SchemaError
from penstock.operators.functions import ProcessFunction, result_record_type
from penstock.operators.handlers import declared_handlers
from penstock.operators.keys import KeySelector
from penstock.records.nested_values import without_none
from penstock.records.schemas import record_type as make_record_type
from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.shared import Setting, declared_shared
from penstock.state.state_spec import value_spec
from penstock.state.transient import TransientField
from penstock.state.values import KeyedState
from penstock.windows.assigners import GlobalWindows
from penstock.windows.emissions import Emission
from penstock.windows.field_aggregates import FieldAggregate, FieldStatistics
from penstock.windows.operator import WindowOperator, WindowSpec
from penstock.windows.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    PurgingTrigger,
    Trigger,
)
from penstock.windows.window import GLOBAL, Window
from penstock.windows.window_functions import Aggregated, Reduced, WindowContents, WindowFunction
from penstock.windows.window_parameters import Parameter
from penstock.windows.window_state import WINDOWS, CheckedWindowState, WindowState

__all__ = [
    "LATE",
    "ObjectOutput",
    "ResultOutput",
    "WindowOutput",
    "WindowStep",
    "key_fields",
    "window_output",
    "window_step",
]

LATE: Final = "late"
"""The side output for records that arrive after their windows have been cleaned up."""

Ints = npt.NDArray[np.int64]

_TIME: Final = pa.timestamp("us", "UTC")
_BOUNDS: Final = ("window_start", "window_end")
# Triggers that never use the clock; others may.
_WITHOUT_CLOCK: Final = (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
)


class WindowOutput:
    """The records that windows emit, as columns."""

    def __init__(self, record_type: RecordType) -> None:
        self.record_type: Final = record_type

    def batch(self, panes: Sequence[Emission], key_type: pa.DataType) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the emitted records, in order, and the key of each. Raises SchemaError if a result does not fit."""
        raise NotImplementedError


class ObjectOutput(WindowOutput):
    """The records of a window function, unchanged."""

    def batch(self, panes: Sequence[Emission], key_type: pa.DataType) -> tuple[pa.RecordBatch, pa.Array]:  # noqa: D102  # as declared
        keys = [pane.key for pane in panes for _ in pane.results]
        results = [result for pane in panes for result in pane.results]
        return self.record_type.batch(results), pa.array(keys, key_type)


class ResultOutput(WindowOutput):
    """The result of each window, with its key and its bounds.

    The fields are those of the key, then `window_start` and `window_end` (null for the global window), then those of
    the result.
    """

    def __init__(self, record_type: RecordType, parts: int, result: RecordType | Field) -> None:
        super().__init__(record_type)
        self._parts: Final = parts
        self._result: Final = result

    def batch(self, panes: Sequence[Emission], key_type: pa.DataType) -> tuple[pa.RecordBatch, pa.Array]:  # noqa: D102  # as declared
        panes = [pane for pane in panes if pane.results]
        keys = pa.array([pane.key for pane in panes], key_type)
        results = [pane.results[0] for pane in panes]
        if isinstance(self._result, RecordType):
            values = self._result.batch(results).columns
        else:
            values = [self._result.to_arrow(results)]
        bounds = [_bounds(name, [pane.window for pane in panes]) for name in _BOUNDS]
        return self._combine(keys, bounds, values), keys

    def columns(
        self, keys: pa.Array, starts_ms: Ints, ends_ms: Ints, values: list[pa.Array]
    ) -> pa.RecordBatch:
        """Return the records of windows, given the fields of their results as columns."""
        bounds = [pa.array(times * 1000).cast(_TIME) for times in (starts_ms, ends_ms)]
        return self._combine(keys, bounds, values)

    def _combine(self, keys: pa.Array, bounds: list[pa.Array], values: list[pa.Array]) -> pa.RecordBatch:
        key_columns = keys.flatten() if pa.types.is_struct(keys.type) else [keys]
        columns = [*key_columns[: self._parts], *bounds, *values]
        cast = [column.cast(f.arrow_type) for column, f in zip(columns, self.record_type.fields, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.record_type.schema)


def _bounds(name: str, windows: list[Window]) -> pa.Array:
    """Return the starts or ends of windows, null for the global window. Raises SchemaError if one is out of range."""
    at = _BOUNDS.index(name)
    times = [None if window == GLOBAL else window[at] for window in windows]
    for time_ms in times:
        if time_ms is not None and not FIRST_MS <= time_ms <= LAST_MS:
            raise SchemaError(
                f"field {name!r} cannot hold a value: {time_ms} lies beyond the years 1 to 9999"
            )
    return pa.array([None if time_ms is None else time_ms * 1000 for time_ms in times], pa.int64()).cast(
        _TIME
    )


class ParameterSetting(Setting[Any]):
    """A window parameter as a setting of the step. It takes effect at the cut, since a window has a single value."""

    has_history = False

    def __init__(self, value_type: Any, default: Any, parameter: Parameter) -> None:
        super().__init__(value_type, default)
        self._parameter: Final = parameter

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a value from JSON. Raises msgspec.ValidationError if it is invalid for the windows."""
        value = super().value_of(data)
        try:
            self._parameter.check(value)
        except JobDefinitionError as e:
            raise msgspec.ValidationError(str(e)) from None
        return value


class WindowStep(ProcessFunction):
    """The function of a step with windows. `WindowRun` processes its records and timers.

    `parameters` are those of the windows, by the names of the settings that change them.
    """

    def __init__(self, spec: WindowSpec, record_type: RecordType, output: WindowOutput) -> None:
        self.spec = spec
        self.output = output
        self.record_type = record_type
        # Invalid options raise here, when the job is described.
        self.operator = WindowOperator(spec)
        self.parameters = parameters_of(spec, self.operator)
        self.state().spec()

    @property
    def is_event_time(self) -> bool:
        """Whether the windows need watermarks."""
        if self.spec.assigner.is_event_time:
            return True
        trigger = _inside(self.operator.trigger)
        if isinstance(self.spec.assigner, GlobalWindows):
            # An EventTimeTrigger there only waits for the end of time, which does not need watermarks.
            return isinstance(trigger, ContinuousEventTimeTrigger)
        return isinstance(trigger, EventTimeTrigger | ContinuousEventTimeTrigger)

    @property
    def wants_clock(self) -> bool:
        """Whether windows may fire while no records arrive."""
        return self.is_by_clock or not isinstance(_inside(self.operator.trigger), _WITHOUT_CLOCK)

    @property
    def is_by_clock(self) -> bool:
        """Whether these are processing-time windows."""
        assigner = self.spec.assigner
        return not assigner.is_event_time and not isinstance(assigner, GlobalWindows)

    @property
    def awaits_end(self) -> bool:
        """Whether windows may fire when time ends, even if records have no event time."""
        trigger = _inside(self.operator.trigger)
        return self.wants_clock or isinstance(trigger, EventTimeTrigger | ContinuousEventTimeTrigger)

    def begin(self, settings: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """Apply the current settings and bind the states. Called once for all key groups of a slot."""
        for name, parameter in self.parameters.items():
            value = settings[name].get()
            if value != parameter.given:
                parameter.set(value)
        windows = states[WINDOWS]
        self.operator.check = windows.check if isinstance(windows, CheckedWindowState) else None
        function = self.spec.contents.function
        if function is not None:
            for name in states.keys() & vars(type(self)).keys():
                setattr(function, name, states[name])

    def state(self) -> WindowState:
        """Return the hidden state that holds the open windows."""
        contents, operator = self.spec.contents, self.operator
        folded: Any = None
        if operator.folds:
            folded = (
                contents.accumulator_type
                if isinstance(contents, Aggregated)
                else self.record_type.python_class
            )
        function = contents.function
        return WindowState(
            self.record_type,
            folded,
            operator.trigger.state_type,
            None if function is None else function.window_state,
        )


def window_output(
    contents: WindowContents, record_type: RecordType, key: KeySelector, declared: Any
) -> WindowOutput:
    """Return the output of windows: records of the window function, reduced records, or results.

    Raises JobDefinitionError if the window function is annotated to return None.
    """
    function = contents.function
    if function is not None:
        if declared is not None:
            return ObjectOutput(make_record_type(declared))
        found = result_record_type(function.process, _who(function))
        if found is None:
            raise JobDefinitionError(
                f"{_who(function)} is annotated to return None, so it would emit nothing. Annotate what it emits."
            )
        return ObjectOutput(found)
    if isinstance(contents, Reduced):
        return ObjectOutput(record_type)
    assert isinstance(contents, Aggregated)
    result = without_none(declared if declared is not None else contents.result_type)[0]
    fields = key_fields(key)
    bounds = [Field(name, dt.datetime, _TIME, nullable=True) for name in _BOUNDS]
    spec = value_spec("value", result)
    if spec.record_type is not None:
        kind = spec.record_type
        return ResultOutput(type_of_fields([*fields, *bounds, *kind.fields]), len(fields), kind)
    value = Field("value", result, spec.arrow_type, nullable=True)
    return ResultOutput(type_of_fields([*fields, *bounds, value]), len(fields), value)


def _who(function: WindowFunction) -> str:
    return f"{type(function).__name__}.process"


def key_fields(key: KeySelector) -> list[Field]:
    """Return the fields of a result that hold the key, in the key's types."""
    if key.fields:
        return [dataclasses.replace(key.record_type.field(name), nullable=False) for name in key.fields]
    if len(key.parts) == 1:
        return [Field("key", key.parts[0].python_type, key.key_type, nullable=False)]
    return [
        Field(f"key_{number}", part.python_type, kind.type, nullable=False)
        for number, (part, kind) in enumerate(zip(key.parts, key.key_type, strict=True))
    ]


def parameters_of(spec: WindowSpec, operator: WindowOperator) -> dict[str, Parameter]:
    """Return the parameters of windows by name; those of trigger and evictor have the prefix of that word."""
    found: dict[str, Parameter] = {}
    for prefix, part in (
        ("", spec.assigner),
        ("trigger_", _inside(operator.trigger)),
        ("evictor_", operator.evictor),
        ("", spec.contents.aggregate if _has_parameters(spec.contents) else None),
    ):
        for name, value in vars(part).items() if part is not None else ():
            # A default trigger has the parameter of the assigner.
            if isinstance(value, Parameter) and all(value is not other for other in found.values()):
                found[f"{prefix}{name.lstrip('_')}"] = value
    if spec.assigner.is_event_time:
        found["allowed_lateness"] = operator.lateness
    return found


def _has_parameters(contents: WindowContents) -> TypeGuard[Aggregated]:
    """Return whether commands may change the aggregation, such as to another aggregate of the field."""
    if not isinstance(contents, Aggregated) or isinstance(contents.aggregate, FieldStatistics):
        return False
    # Without a field, records can only be counted.
    return not isinstance(contents.aggregate, FieldAggregate) or contents.aggregate.field is not None


def _inside(trigger: Trigger) -> Trigger:
    return trigger.inner if isinstance(trigger, PurgingTrigger) else trigger


def _check_declared(function: type) -> None:
    """Raise JobDefinitionError when a window function declares something that only process functions may."""
    for name, found in [
        *declared_shared(function).items(),
        *find_declarations(function, TransientField).items(),
    ]:
        raise JobDefinitionError(
            f"{function.__name__} declares {name!r}, a {type(found).__name__}, but a window function can only have "
            "keyed states. Declare it in a process function after the windows."
        )
    if declared_handlers(function):
        raise JobDefinitionError(
            f"{function.__name__} has a command handler, but a window function takes no commands. Handle them in a "
            "process function after the windows."
        )


def _setting_of(parameter: Parameter) -> ParameterSetting:
    given = parameter.given
    if isinstance(given, dt.timedelta):
        given = f"{parameter.value}ms"
    elif parameter.is_fractional:
        given = float(given)
    return ParameterSetting(type(given), given, parameter)


def window_step(spec: WindowSpec, record_type: RecordType, output: WindowOutput) -> WindowStep:
    """Return the function of a step, with a setting for each parameter and the states of its window function.

    Raises JobDefinitionError when the parts do not fit together.
    """
    function = spec.contents.function
    names: dict[str, Any] = {}
    if function is not None:
        _check_declared(type(function))
        names.update(find_declarations(type(function), KeyedState))
    for name, parameter in parameters_of(spec, WindowOperator(spec)).items():
        if name in names:
            raise JobDefinitionError(
                f"{type(function).__name__} declares the state {name!r}, but the windows have a setting of that name. "
                "Rename the state."
            )
        names[name] = _setting_of(parameter)
    given = {} if function is None else dict(function.side_outputs)
    if LATE in given:
        raise JobDefinitionError(
            f"{type(function).__name__} has a side output {LATE!r}, which all windows have; rename it."
        )
    names["side_outputs"] = {**given, LATE: record_type}
    kind = type("Windows", (WindowStep,), names)
    found: WindowStep = kind(spec, record_type, output)
    return found
