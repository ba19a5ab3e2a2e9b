"""Stored runs: the tables of a slot, a few key groups at a time, for reading a large state completely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from penstock.state.group_table import GroupTable
from penstock.state.slot_log import HEAD, Head, head_of, needed_bytes
from penstock.state.slot_tables import Only, SlotTables
from penstock.state.stored_blocks import Entries

__all__ = ["RUN_BYTES", "stored_runs", "stored_table"]

RUN_BYTES: Final = 32 << 20
"""About how many bytes of a state are in memory at once. A key group is never split."""


def stored_runs(
    schema: pa.Schema, entries: Entries, max_bytes: int | None = None
) -> Iterator[dict[int, GroupTable]]:
    """Yield the tables of a slot's key groups in order, in runs of about `max_bytes` or one key group."""
    stored = entries.get(HEAD)
    if stored is None:
        return
    head = head_of(stored)
    most = RUN_BYTES if max_bytes is None else max_bytes
    if sum(version.size for version in head.versions) <= most:
        tables = SlotTables(schema, entries).tables
        if tables:
            yield tables
        return
    needed = needed_bytes(head, entries)
    for run in _runs(head, needed, most):
        pieces = frozenset(name for name, sizes in needed.items() if not run.isdisjoint(sizes))
        yield SlotTables(schema, entries, only=Only(run, pieces)).tables


def stored_table(schema: pa.Schema, entries: Entries, key_group: int) -> GroupTable:
    """Return the table of one key group of a slot."""
    found = SlotTables(schema, entries, only=Only(frozenset([key_group]), None))
    return found.table(key_group)


def _runs(head: Head, needed: Mapping[str, Mapping[int, int]], max_bytes: int) -> Iterator[frozenset[int]]:
    """Yield the key groups of each run. Their size includes all rows to load, even those that later rows replace."""
    loaded: Counter[int] = Counter()
    for sizes in needed.values():
        loaded.update(sizes)
    waiting: list[int] = []
    size = 0
    for group in sorted(head.groups):
        if waiting and size + loaded[group] > max_bytes:
            yield frozenset(waiting)
            waiting, size = [], 0
        waiting.append(group)
        size += loaded[group]
    if waiting:
        yield frozenset(waiting)
