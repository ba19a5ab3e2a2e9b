"""Group aggregates: a row per group with the aggregates of its rows, as a changelog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.types import type_of_fields
from penstock.state.ttl import Ttl
from penstock.state.values import KeyedState, ValueState
from penstock.tables.accumulators import Opened
from penstock.tables.bound_aggregates import BoundAggregate
from penstock.tables.changes import change_codes, changelog_type, diff_rows, kinds_column, signs
from penstock.tables.group_keys import GroupKey
from penstock.tables.row_difference import differ
from penstock.tables.state_names import state_names
from penstock.tables.table_step import TableInput, TableResult, TableStep, latest_times

__all__ = ["GroupAggregates", "group_aggregates"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ROWS: Final = "group_rows"
"""The state with the number of rows of a group."""


class GroupAggregates(TableStep):
    """The aggregates of each group. `group_aggregates` declares the states in a subclass."""

    def __init__(
        self, key: GroupKey, aggregates: Sequence[BoundAggregate], names: Mapping[str, str], *, retracts: bool
    ) -> None:
        self._key: Final = key
        self._aggregates: Final = tuple(aggregates)
        self._names: Final = dict(names)
        self._retracts: Final = retracts
        self._rows: Final = type_of_fields([*key.fields_of_group, *(one.result for one in aggregates)])
        self.output = changelog_type(self._rows)

    def update(self, given: TableInput) -> TableResult:
        """Add records to their groups, and return the groups whose results differ."""
        before_rows = given.stored[_ROWS].fill_null(0).to_numpy(zero_copy_only=False)
        weights = signs(change_codes(given.batch)) if self._retracts else None
        after_rows = before_rows + _sums(given.slots, weights, len(before_rows))
        exists, remains = before_rows > 0, after_rows > 0
        befores: list[pa.Array] = []
        afters: list[pa.Array] = []
        stored: dict[str, pa.Array] = {}
        failures: list[tuple[int, str]] = []
        for one in self._aggregates:
            if one.accumulator is None:
                befores.append(pa.array(before_rows))
                afters.append(pa.array(after_rows))
                continue
            name = self._names[one.name]
            opened = one.accumulator.open(given.stored[name])
            befores.append(opened.results())
            was_beyond = opened.beyond()
            opened.add(one.given(given.batch, given.slots, weights))
            afters.append(opened.results())
            failures += _failures(one, opened, was_beyond, remains)
            stored[name] = opened.to_arrow(remains)
        stored[_ROWS] = pa.array(np.where(remains, after_rows, 0), mask=~remains)
        batch, slots = self._changes(given, (exists, befores), (remains, afters))
        return TableResult(batch, slots, stored, latest_times(given, slots), failures=failures)

    def _changes(
        self, given: TableInput, before: tuple[Mask, list[pa.Array]], after: tuple[Mask, list[pa.Array]]
    ) -> tuple[pa.RecordBatch | None, Ints]:
        keys = given.keys
        differs = np.zeros(len(keys), bool)
        for one, other in zip(before[1], after[1], strict=True):
            differs |= differ(one, other)
        slots, has_after, kinds = diff_rows(before[0], after[0], differs, wants_before=given.wants_before)
        if not len(slots):
            return None, slots
        picked = pa.array(np.where(has_after, slots + len(keys), slots))
        columns = self._key.group_columns(keys.take(pa.array(slots)))
        columns += [
            pa.concat_arrays([one, other]).take(picked)
            for one, other in zip(before[1], after[1], strict=True)
        ]
        columns = [
            column.cast(field.arrow_type) for column, field in zip(columns, self._rows.fields, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays([*columns, kinds_column(kinds)], schema=self.output.schema)
        return batch, slots


def _sums(slots: Ints, weights: Ints | None, groups: int) -> Ints:
    if weights is None:
        return np.bincount(slots, minlength=groups).astype(np.int64)
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, slots, weights)
    return sums


def _failures(
    one: BoundAggregate, opened: Opened, was_beyond: Mask | None, remains: Mask
) -> list[tuple[int, str]]:
    """Return the dead letters of groups whose result has just left its type."""
    beyond = opened.beyond()
    if beyond is None or was_beyond is None:
        return []
    kind = one.result.arrow_type
    reason = f"the aggregate {one.name!r} of the group is beyond {kind}; it is null until it fits again"
    return [(int(slot), reason) for slot in np.flatnonzero(beyond & ~was_beyond & remains)]


def group_aggregates(
    key: GroupKey, aggregates: Sequence[BoundAggregate], ttl: Ttl | None, *, retracts: bool
) -> GroupAggregates:
    """Return the function of a step, with a state for each aggregate. `retracts` if its input is a changelog."""
    names = state_names([one for one in aggregates if one.accumulator is not None], GroupAggregates)
    states: dict[str, Any] = {_ROWS: ValueState(int)}
    for one in aggregates:
        if one.accumulator is not None:
            states[names[one.name]] = one.accumulator.state()
    found: KeyedState
    for name, found in states.items():
        found.ttl = ttl
        found.name = name
    kind = type("GroupAggregates", (GroupAggregates,), states)
    made: GroupAggregates = kind(key, aggregates, names, retracts=retracts)
    return made
