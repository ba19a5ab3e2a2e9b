"""Broadcast lookups: add to each record the fields of a dimension that every task of the step holds whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.expression import Condition
from penstock.joins.held_rows import HeldRows
from penstock.joins.lookup_join import NO_RECORD
from penstock.joins.pair_expressions import NONE, PairExpressions, Pairs
from penstock.operators.expression_transforms import make_settings, read_parameters
from penstock.operators.functions import BatchContext, ConnectedProcessFunction, Context
from penstock.records.types import RecordType
from penstock.state.shared import BroadcastState, Setting

__all__ = ["BroadcastLookup", "broadcast_lookup"]


class BroadcastLookup(ConnectedProcessFunction):
    """Joins a record with the latest record of a broadcast dimension whose field equals a field of the record."""

    dimension: Any

    def __init__(
        self,
        kinds: tuple[RecordType, RecordType],
        on: tuple[str, str],
        deleted: Condition | None,
        expressions: PairExpressions,
        types: Mapping[str, pa.DataType],
        missing: str,
    ) -> None:
        self._kinds: Final = kinds
        self._on: Final = on
        self._deleted: Final = deleted
        self._expressions: Final = expressions
        self._types: Final = {name: types[name] for name in expressions.parameters}
        self._missing: Final = missing

    def process_control(self, record: Any, ctx: Context) -> None:  # noqa: ARG002  # as declared
        """Take over a record of the dimension. One whose key is null is an error, which makes a dead letter."""
        key = getattr(record, self._on[1])
        if key is None:
            raise ValueError(f"the field {self._on[1]!r} of the dimension is null")
        if self._deleted is not None:
            mask, failures = self._deleted.rows(
                self._kinds[1].batch([record]), read_parameters(self, self._types)
            )
            if failures:
                raise ValueError(failures[0])
            if mask[0]:
                self.dimension.remove(key)
                return
        self.dimension.put(key, record)

    def process_batch(
        self,
        records: pa.RecordBatch,
        ctx: BatchContext,  # noqa: ARG002  # as declared
    ) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """Return the records with the fields of the dimension. Raises ValueError if one fails."""
        left = HeldRows.numbered(records, self._kinds[0])
        known = list(self.dimension.items())
        right = HeldRows.numbered(self._kinds[1].batch([record for _, record in known]), self._kinds[1])
        column = records.column(self._on[0])
        keys = self._kinds[1].field(self._on[1]).to_arrow([key for key, _ in known]).cast(column.type)
        places = pc.index_in(column, value_set=keys)
        # SQL's null equals nothing.
        places = pc.if_else(column.is_valid(), places, None)
        found = places.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.arange(records.num_rows)
        values, sides = read_parameters(self, self._types), (left, right)
        matched = np.flatnonzero(found != NONE)
        pairs = Pairs(matched, found[matched], matched, {})
        mask, failures = self._expressions.true(pairs, sides, values)
        _raise_first(failures)
        missing = np.ones(records.num_rows, bool)
        missing[matched[mask]] = False
        if missing.any() and self._missing == "dead_letter":
            raise ValueError(NO_RECORD)
        if self._missing != "null":
            rows = rows[~missing]
        found[missing] = NONE
        batch, failures = self._expressions.selected(Pairs(rows, found[rows], rows, {}), sides, values)
        _raise_first(failures)
        return batch, rows


def _raise_first(failures: Mapping[int, str]) -> None:
    if failures:
        raise ValueError(next(iter(failures.values())))


def broadcast_lookup(settings: Mapping[str, Setting[Any]], key: Any, *arguments: Any) -> BroadcastLookup:
    """Return the function of a step with these settings; `key` is the type of the dimension's key in Python."""
    kinds: tuple[RecordType, RecordType] = arguments[0]
    names = make_settings(settings)
    names["dimension"] = BroadcastState(key, kinds[1].python_class)
    made: Any = type("BroadcastLookup", (BroadcastLookup,), names)
    found: BroadcastLookup = made(*arguments)
    return found
