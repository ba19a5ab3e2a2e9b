"""Spread rows: the rows of tables by ranges of key groups, on disk if they are too many for memory."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.runtime.packed_rows import split_by_key_group

__all__ = ["SpreadRows", "ranges_of"]

# The bytes held in memory before they are written.
_HELD_BYTES: Final = 64 << 20


def ranges_of(slots: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the key groups of all slots in about `count` ranges or more, in order; each range is of one slot only."""
    each = max(1, -(-count // max(len(slots), 1)))
    found = []
    for groups in slots:
        size = max(1, -(-len(groups) // each))
        found += [list(groups[start : start + size]) for start in range(0, len(groups), size)]
    return found


class SpreadRows:
    """Rows by table and range of key groups.

    Args:
        ranges: the key groups of each range; together they are all, in order.
        folder: where rows go that are too many for memory; the caller removes it.

    """

    def __init__(self, ranges: Sequence[Sequence[int]], folder: Path) -> None:
        firsts = [groups[0] for groups in ranges]
        groups = ranges[-1][-1] + 1
        self._count: Final = len(ranges)
        self._range_of: Final = np.array(
            [bisect.bisect_right(firsts, g) - 1 for g in range(groups)], np.uint16
        )
        self._folder: Final = folder
        self._held: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._names: dict[str, int] = {}

    def add(self, table: str, rows: pa.RecordBatch, groups: np.ndarray) -> None:
        """Add rows of a table, with the key group of each row."""
        for place, part in split_by_key_group(rows, self._range_of[groups], self._count):
            self._held.setdefault((table, place), []).append(part)
        self._held_bytes += rows.nbytes
        if self._held_bytes > _HELD_BYTES:
            self._write()

    def rows(self, table: str, place: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table in a range, in the order in which they were added."""
        path = self._path(table, place)
        if path.exists():
            mapped = pa.memory_map(str(path))
            while mapped.tell() < mapped.size():
                yield from pa.ipc.open_stream(mapped)
        yield from self._held.get((table, place), [])

    def _write(self) -> None:
        for (table, place), batches in self._held.items():
            path = self._path(table, place)
            with path.open("ab") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        self._held, self._held_bytes = {}, 0

    def _path(self, table: str, place: int) -> Path:
        return self._folder / f"{self._names.setdefault(table, len(self._names))}-{place}"
