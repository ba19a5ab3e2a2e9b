"""Top rows: the first rows of each group by some order, as a changelog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import Field, RecordType, type_of_fields
from penstock.state.lists import ListState, elements, offsets_of_lengths
from penstock.state.ttl import Ttl
from penstock.tables.changes import (
    DELETE,
    INSERT,
    change_codes,
    changelog_type,
    diff_rows,
    kinds_column,
    signs,
)
from penstock.tables.ordering import OrderBy, order_of, same_rows
from penstock.tables.table_step import TableInput, TableResult, TableStep, latest_times

__all__ = ["TopRows", "top_rows"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ROWS: Final = "rows"
# This many rows are sorted, and then the others are compared with the first ones of these.
_PART: Final = 4_096


class TopRows(TableStep):
    """The first rows of each group.

    With a `rank`, a row is identified by its place: the new row at a place updates the old one. The same holds, without
    a field for the rank, if the rows `replace` each other. Otherwise rows are added and deleted.
    """

    def __init__(
        self,
        rows: RecordType,
        count: int,
        orders: Sequence[OrderBy],
        rank: str | None,
        *,
        replaces: bool,
        retracts: bool,
        expires: bool,
    ) -> None:
        self._rows: Final = rows
        self._count: Final = count
        self._orders: Final = tuple(orders)
        self._rank: Final = rank
        self._by_place: Final = rank is not None or replaces
        self._retracts: Final = retracts
        self._expires: Final = expires
        ranks = [] if rank is None else [Field(rank, int, pa.int64(), nullable=False)]
        self.output = changelog_type(type_of_fields([*rows.fields, *ranks]))

    def update(self, given: TableInput) -> TableResult:
        """Put records into the order of their groups, and return the changes among the first rows."""
        stored = given.stored[_ROWS]
        groups = len(stored)
        kind = stored.type.value_type
        held = elements(stored) if groups else pa.array([], kind)
        held_places = pc.list_parent_indices(stored).to_numpy().astype(np.int64)
        names = list(self._rows.field_names)
        new = pa.StructArray.from_arrays([given.batch.column(name) for name in names], fields=list(kind))
        slots = given.slots
        both = pa.concat_arrays([held, new])
        places = np.concatenate([held_places, slots])
        if not self._retracts:
            kept = self._contenders(both, places, len(held), groups)
            if len(kept) < len(places):
                both, places = both.take(pa.array(kept)), places[kept]
        weights = np.ones(len(places), np.int64)
        if self._retracts:
            weights[len(held) :] = signs(change_codes(given.batch))
        codes = order_of(both, self._orders, names)
        order = np.lexsort([*codes[::-1], places])
        if self._retracts:
            order = order[_remaining(order, [places, *codes], weights)]
        ranks = _ranks(places[order])
        before = np.flatnonzero(_ranks(held_places) < self._count)
        top = order[ranks < self._count]
        kept = order if self._retracts else top
        batch, moved = self._changes(both, places, codes, before, top, wants_before=given.wants_before)
        lists = pa.ListArray.from_arrays(
            offsets_of_lengths(np.bincount(places[kept], minlength=groups)), both.take(pa.array(kept))
        ).cast(stored.type)
        changed = None
        if not self._retracts and not self._expires:
            # Rows are only deleted when others are added.
            changed = np.unique(places[kept[kept >= len(held)]])
        times = latest_times(given, moved)
        return TableResult(batch, moved, {_ROWS: lists}, times, changed=changed)

    def _contenders(self, both: pa.Array, places: Ints, held: int, groups: int) -> Ints:
        """Return the rows that may be among the first ones: those held, and those not after the last of their group.

        Rows are sorted a part at a time, and each part rules out most of those after it, so few are sorted at all.
        """
        codes = [one.codes(pc.struct_field(both, one.field)) for one in self._orders]
        ordered, rest = np.arange(held), np.arange(held, len(places))
        size = max(_PART, 2 * self._count * groups)
        while True:
            last = ordered[_ranks(places[ordered]) == self._count - 1]
            if len(last):
                limits = [_of_groups(code[last], places[last], groups) for code in codes]
                ordered = ordered[~_are_behind(ordered, places, codes, limits)]
                rest = rest[~_are_behind(rest, places, codes, limits)]
            if len(rest) <= size:
                return np.concatenate([np.arange(held), np.sort(ordered[ordered >= held]), rest])
            some = np.concatenate([ordered, rest[:size]])
            rest = rest[size:]
            ordered = some[np.lexsort([*(code[some] for code in reversed(codes)), places[some]])]
            size *= 2

    def _changes(
        self,
        both: pa.Array,
        places: Ints,
        codes: Sequence[Ints],
        before: Ints,
        after: Ints,
        *,
        wants_before: bool,
    ) -> tuple[pa.RecordBatch | None, Ints]:
        """Return the changes from some rows to others, each sorted by group and rank, and the group of each change."""
        if self._by_place:
            rows, ranks, kinds = self._replacements(places, codes, before, after, wants_before=wants_before)
        else:
            gone, come = np.setdiff1d(before, after), after[~np.isin(after, before)]
            rows = np.concatenate([gone, come])
            kinds = np.repeat([DELETE, INSERT], [len(gone), len(come)])
            order = np.lexsort((kinds == INSERT, places[rows]))
            rows, kinds, ranks = rows[order], kinds[order], np.empty(0, np.int64)
        if not len(rows):
            return None, rows
        columns = both.take(pa.array(rows)).flatten()
        if self._rank is not None:
            columns.append(pa.array(ranks + 1))
        batch = pa.RecordBatch.from_arrays([*columns, kinds_column(kinds)], schema=self.output.schema)
        return batch, places[rows]

    def _replacements(
        self, places: Ints, codes: Sequence[Ints], before: Ints, after: Ints, *, wants_before: bool
    ) -> tuple[Ints, Ints, Ints]:
        """Return the rows, ranks and kinds of changes where rows are identified by their rank."""
        spots = [places[rows] * self._count + _ranks(places[rows]) for rows in (before, after)]
        known = np.unique(np.concatenate(spots))
        found = np.full((2, len(known)), -1)
        for number, rows in enumerate((before, after)):
            found[number, np.searchsorted(known, spots[number])] = rows
        was, is_now = found >= 0
        differs = ~same_rows(codes, *found)
        at, has_after, kinds = diff_rows(was, is_now, differs, wants_before=wants_before)
        rows = np.where(has_after, found[1, at], found[0, at])
        return rows, known[at] % self._count, kinds


def _of_groups(values: Ints, places: Ints, groups: int) -> Ints:
    """Return a value for each group: the largest possible for those without one."""
    found = np.full(groups, np.iinfo(np.int64).max)
    found[places] = values
    return found


def _are_behind(rows: Ints, places: Ints, codes: Sequence[Ints], limits: Sequence[Ints]) -> Mask:
    """Return which rows come after the limit of their group, in the order of their codes, the first one first."""
    groups = places[rows]
    behind, equal = np.zeros(len(rows), bool), np.ones(len(rows), bool)
    for code, limit in zip(codes, limits, strict=True):
        found, most = code[rows], limit[groups]
        behind |= equal & (found > most)
        equal &= found == most
    return behind


def _ranks(places: Ints) -> Ints:
    """Return the number of each row within its group, from 0; the rows of a group follow each other."""
    if not len(places):
        return places
    starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
    return np.arange(len(places)) - np.repeat(starts, np.diff(np.append(starts, len(places))))


def _remaining(order: Ints, codes: Sequence[Ints], weights: Ints) -> Mask:
    """Return which of the sorted rows remain when each row that is taken away has removed an equal one."""
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.logical_or.reduce([code[order][1:] != code[order][:-1] for code in codes])
    if not len(order):
        return is_first
    starts = np.flatnonzero(is_first)
    sorted_weights = weights[order]
    lengths = np.diff(np.append(starts, len(order)))
    net = np.repeat(np.add.reduceat(sorted_weights, starts), lengths)
    added = np.cumsum(sorted_weights > 0)
    before: Ints = np.repeat(added[starts] - (sorted_weights[starts] > 0), lengths)
    found: Mask = (sorted_weights > 0) & (added - before <= net)
    return found


def top_rows(
    rows: RecordType,
    count: int,
    orders: Sequence[OrderBy],
    ttl: Ttl | None,
    *,
    rank: str | None = None,
    replaces: bool = False,
    retracts: bool = False,
) -> TopRows:
    """Return the function of a step that keeps the first rows of each group; all rows if some may be taken away."""
    state = ListState(rows, ttl=ttl)
    state.name = _ROWS
    kind = type("TopRows", (TopRows,), {_ROWS: state})
    found: TopRows = kind(
        rows, count, orders, rank, replaces=replaces, retracts=retracts, expires=ttl is not None
    )
    return found
