"""Stored runs: the tables of a slot some key groups at a time, for those who read all of a state that is large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from penstock.state.group_table import GroupTable
from penstock.state.slot_tables import (
    HEAD,
    Entries,
    Head,
    Only,
    SlotTables,
    head_of,
    piece_groups,
    piece_name,
    stored_piece,
)

__all__ = ["RUN_BYTES", "stored_runs", "stored_table"]

RUN_BYTES: Final = 32 << 20
"""About how much of a state is in memory at once. A key group is never divided."""


def stored_runs(
    schema: pa.Schema, entries: Entries, most_bytes: int | None = None
) -> Iterator[dict[int, GroupTable]]:
    """The tables of a slot's key groups, in their order, some at a time: about so many bytes, or one key group."""
    stored = entries.get(HEAD)
    if stored is None:
        return
    head = head_of(stored)
    runs = list(_runs(head, RUN_BYTES if most_bytes is None else most_bytes))
    if len(runs) < 2:
        tables = SlotTables(schema, entries).tables
        if tables:
            yield tables
        return
    names = [piece_name(version.number, n) for version in head.versions for n in range(version.pieces)]
    groups_of = {name: piece_groups(stored_piece(entries, name)) for name in names}
    for run in runs:
        pieces = frozenset(name for name, groups in groups_of.items() if groups & run)
        yield SlotTables(schema, entries, only=Only(run, pieces)).tables


def stored_table(schema: pa.Schema, entries: Entries, key_group: int) -> GroupTable:
    """The table of one key group of a slot."""
    found = SlotTables(schema, entries, only=Only(frozenset([key_group]), None))
    return found.table(key_group)


def _runs(head: Head, most_bytes: int) -> Iterator[frozenset[int]]:
    waiting: list[int] = []
    size = 0
    for group, known in sorted(head.groups.items()):
        if waiting and size + known.size > most_bytes:
            yield frozenset(waiting)
            waiting, size = [], 0
        waiting.append(group)
        size += known.size
    if waiting:
        yield frozenset(waiting)
