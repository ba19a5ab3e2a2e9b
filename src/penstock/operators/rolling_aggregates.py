"""Rolling aggregates: emit, after each record of a key, the aggregate of all of its records so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.errors import JobDefinitionError
from penstock.operators.functions import Context, ProcessFunction
from penstock.operators.keys import KeySelector
from penstock.operators.window_step import key_fields
from penstock.records.nested_values import without_none
from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.folded_states import AggregateFunction, AggregatingState, ReducingState
from penstock.state.state_spec import value_spec
from penstock.state.values import ValueState
from penstock.windows.field_aggregates import FieldAggregate, Totals
from penstock.windows.window_functions import Aggregated

__all__ = ["RollingCount", "RollingFieldAggregate", "RollingFunction", "rolling_aggregate", "rolling_reduce"]


class RollingFunction(ProcessFunction):
    """A function that emits one record per input record, at its event time: the result of `fold`.

    Attributes:
        output: the type of the emitted records.

    """

    output: RecordType

    def process_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        """Fold the record into the state of its key, and emit the result."""
        yield self.fold(record, ctx)

    def fold(self, record: Any, ctx: Context) -> Any:
        """Return the record to emit for this record and those before it."""
        raise NotImplementedError


class KeyedResults:
    """Results with the fields of their key: then the fields of the result if it is a record, else one field `value`."""

    def __init__(self, key: KeySelector, result: Any) -> None:
        spec = value_spec("value", without_none(result)[0])
        keys = key_fields(key)
        self._has_parts: Final = len(keys) > 1
        self._names: Final = () if spec.record_type is None else spec.record_type.field_names
        value = [Field("value", spec.python_type, spec.arrow_type, nullable=True)]
        fields = value if spec.record_type is None else spec.record_type.fields
        self.record_type: Final = type_of_fields([*keys, *fields])

    def record(self, key: Any, result: Any) -> Any:
        """Return the record with a result and its key."""
        values = [getattr(result, name) for name in self._names] if self._names else [result]
        return self.record_type.python_class(*(key if self._has_parts else (key,)), *values)


class RollingCount(RollingFunction):
    """The number of records of the key so far."""

    count = ValueState(int)

    def __init__(self, key: KeySelector) -> None:
        self._results: Final = KeyedResults(key, int)
        self.output = self._results.record_type

    def fold(self, record: Any, ctx: Context) -> Any:  # noqa: ARG002, D102  # as declared
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        return self._results.record(ctx.key, count)


class RollingFieldAggregate(RollingFunction):
    """One of `AGGREGATES` of a field so far."""

    totals = ValueState(Totals)

    def __init__(self, aggregate: FieldAggregate, key: KeySelector) -> None:
        self._results: Final = KeyedResults(key, float)
        self.output = self._results.record_type
        self._aggregate: Final = aggregate

    def fold(self, record: Any, ctx: Context) -> Any:  # noqa: D102  # as declared
        totals = self._aggregate.add(record, self.totals.get() or Totals())
        self.totals.set(totals)
        return self._results.record(ctx.key, self._aggregate.get_result(totals))


class RollingAggregate(RollingFunction):
    """The result of an aggregate function so far; `rolling_aggregate` declares its state."""

    accumulator: AggregatingState[Any, Any, Any]

    def __init__(self, key: KeySelector, result: Any) -> None:
        self._results: Final = KeyedResults(key, result)
        self.output = self._results.record_type

    def fold(self, record: Any, ctx: Context) -> Any:  # as declared
        self.accumulator.add(record)
        return self._results.record(ctx.key, self.accumulator.get())


class RollingReduce(RollingFunction):
    """The result of a reduce function so far; `rolling_reduce` declares its state."""

    reduced: ReducingState[Any]

    def __init__(self, output: RecordType) -> None:
        self.output = output

    def fold(self, record: Any, ctx: Context) -> Any:  # noqa: ARG002  # as declared
        self.reduced.add(record)
        return self.reduced.get()


def rolling_aggregate(
    aggregate: AggregateFunction[Any, Any, Any], key: KeySelector, result: Any
) -> RollingAggregate:
    """Return the step function of an aggregate; `result` is the type of its results if it is not annotated.

    Raises JobDefinitionError or SchemaError when its accumulators cannot be stored, or its results cannot be emitted.
    """
    contents = Aggregated(aggregate)
    kind = type("RollingAggregate", (RollingAggregate,), {"accumulator": AggregatingState(aggregate)})
    found: RollingAggregate = kind(key, result if result is not None else contents.result_type)
    return found


def rolling_reduce(function: Callable[[Any, Any], Any], records: RecordType) -> RollingReduce:
    """Return the step function that reduces records to one. Raises JobDefinitionError if `function` is not callable."""
    if not callable(function):
        raise JobDefinitionError(
            f"A reduce function takes two records and returns one, but {function!r} is not a function."
        )
    kind = type("RollingReduce", (RollingReduce,), {"reduced": ReducingState(records, function)})
    found: RollingReduce = kind(records)
    return found
