"""Rolling aggregates: after each record of a key the aggregate of a field over all of its records so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.operators.functions import Context, ProcessFunction
from penstock.operators.keys import KeySelector
from penstock.operators.window_step import key_fields
from penstock.records.schemas import arrow_type_of
from penstock.records.types import Field, type_of_fields
from penstock.state.values import ValueState
from penstock.windows.field_aggregates import FieldAggregate, Totals

__all__ = ["RollingAggregate"]


class RollingAggregate(ProcessFunction):
    """Emits for each record the fields of its key and the aggregate so far, as `value`."""

    totals = ValueState(Totals)

    def __init__(self, aggregate: FieldAggregate, key: KeySelector) -> None:
        value = Field("value", float, arrow_type_of(float), nullable=True)
        fields = key_fields(key)
        self.output: Final = type_of_fields([*fields, value])
        self._aggregate: Final = aggregate
        self._has_parts: Final = len(fields) > 1

    def process_record(self, record: Any, ctx: Context) -> Iterator[Any]:
        """Add the record."""
        totals = self._aggregate.add(record, self.totals.get() or Totals())
        self.totals.set(totals)
        key = ctx.key if self._has_parts else (ctx.key,)
        yield self.output.python_class(*key, self._aggregate.get_result(totals))
