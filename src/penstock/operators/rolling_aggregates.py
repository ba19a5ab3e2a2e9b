"""Rolling aggregates: after each record of a key what all of its records so far come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.errors import JobDefinitionError
from penstock.operators.functions import Context, ProcessFunction
from penstock.operators.keys import KeySelector
from penstock.operators.window_step import key_fields
from penstock.records.schemas import without_none
from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.folded_states import AggregateFunction, AggregatingState, ReducingState
from penstock.state.state_spec import value_spec
from penstock.state.values import ValueState
from penstock.windows.field_aggregates import FieldAggregate, Totals
from penstock.windows.window_functions import Aggregated

__all__ = ["RollingCount", "RollingFieldAggregate", "RollingFunction", "rolling_aggregate", "rolling_reduce"]


class RollingFunction(ProcessFunction):
    """Emits one record for each that comes, at its event time: what `fold` gives of it and those before.

    Attributes:
        output: the type of what is emitted.

    """

    output: RecordType

    def process_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        """Fold the record into the state of its key."""
        yield self.fold(record, ctx)

    def fold(self, record: Any, ctx: Context) -> Any:
        """The record to emit."""
        raise NotImplementedError


class KeyedResults:
    """Results with the fields of their key: those of a result that is a record, else one field `value`."""

    def __init__(self, key: KeySelector, result: Any) -> None:
        spec = value_spec("value", without_none(result)[0])
        keys = key_fields(key)
        self._has_parts: Final = len(keys) > 1
        self._names: Final = () if spec.record_type is None else spec.record_type.field_names
        value = [Field("value", spec.python_type, spec.arrow_type, nullable=True)]
        fields = value if spec.record_type is None else spec.record_type.fields
        self.record_type: Final = type_of_fields([*keys, *fields])

    def record(self, key: Any, result: Any) -> Any:
        """The record with a result."""
        values = [getattr(result, name) for name in self._names] if self._names else [result]
        return self.record_type.python_class(*(key if self._has_parts else (key,)), *values)


class RollingCount(RollingFunction):
    """How many records of the key there were."""

    count = ValueState(int)

    def __init__(self, key: KeySelector) -> None:
        self._results: Final = KeyedResults(key, int)
        self.output = self._results.record_type

    def fold(self, record: Any, ctx: Context) -> Any:  # noqa: ARG002, D102  # as declared
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        return self._results.record(ctx.key, count)


class RollingFieldAggregate(RollingFunction):
    """One of `AGGREGATES` of a field."""

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
    """What an aggregate function makes of an accumulator; `rolling_aggregate` declares its state."""

    accumulator: AggregatingState[Any, Any, Any]

    def __init__(self, key: KeySelector, result: Any) -> None:
        self._results: Final = KeyedResults(key, result)
        self.output = self._results.record_type

    def fold(self, record: Any, ctx: Context) -> Any:  # as declared
        self.accumulator.add(record)
        return self._results.record(ctx.key, self.accumulator.get())


class RollingReduce(RollingFunction):
    """What a reduce function makes of records; `rolling_reduce` declares its state."""

    reduced: ReducingState[Any]

    def __init__(self, output: RecordType) -> None:
        self.output = output

    def fold(self, record: Any, ctx: Context) -> Any:  # noqa: ARG002  # as declared
        self.reduced.add(record)
        return self.reduced.get()


def rolling_aggregate(
    aggregate: AggregateFunction[Any, Any, Any], key: KeySelector, result: Any
) -> RollingAggregate:
    """The function of an aggregate; `result` is the type of its results, where no annotation says it.

    JobDefinitionError or SchemaError when its accumulators or results cannot be kept or emitted.
    """
    contents = Aggregated(aggregate)
    kind = type("RollingAggregate", (RollingAggregate,), {"accumulator": AggregatingState(aggregate)})
    found: RollingAggregate = kind(key, result if result is not None else contents.result_type)
    return found


def rolling_reduce(function: Callable[[Any, Any], Any], records: RecordType) -> RollingReduce:
    """The function that reduces records to one of their type. JobDefinitionError for what cannot do that."""
    if not callable(function):
        raise JobDefinitionError(
            f"A reduce function takes two records and returns one, and {function!r} cannot."
        )
    kind = type("RollingReduce", (RollingReduce,), {"reduced": ReducingState(records, function)})
    found: RollingReduce = kind(records)
    return found
