"""Held files: the open files of a task, one for each combination of partition values, written in large groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

__all__ = ["HeldFiles", "OpenFile", "PartitionValues"]

PartitionValues: TypeAlias = tuple[Any, ...]
_HELD_BYTES: Final = 64 << 20
_MAX_OPEN: Final = 64

DoneT = TypeVar("DoneT")
DoneT_co = TypeVar("DoneT_co", covariant=True)


class OpenFile(Protocol[DoneT_co]):
    """A file that is being written."""

    def write(self, records: Sequence[pa.RecordBatch]) -> None:
        """Write records as one group."""

    def close(self) -> DoneT_co:
        """Complete the file, durably, and return its description."""

    def abandon(self) -> None:
        """Remove the file, which may not have been begun."""


class HeldFiles(Generic[DoneT]):
    """The files of one task. `open_file` begins one for a combination of values."""

    def __init__(self, open_file: Callable[[PartitionValues], OpenFile[DoneT]]) -> None:
        self._open_file: Final = open_file
        self._open: Final[dict[PartitionValues, tuple[OpenFile[DoneT], list[pa.RecordBatch]]]] = {}
        self._held_bytes = 0
        self.done: Final[list[DoneT]] = []

    def add(self, batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> None:
        """Take records, with the partition values of each. They are written in large groups, better to read."""
        for values, rows in _parted(batch, keys):
            if values not in self._open:
                if len(self._open) >= _MAX_OPEN:
                    self._close_oldest()
                self._open[values] = (self._open_file(values), [])
            self._open[values][1].append(rows)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _HELD_BYTES:
            for file, held in self._open.values():
                _write(file, held)
            self._held_bytes = 0

    def finish(self) -> list[DoneT]:
        """Complete all files, and return them."""
        while self._open:
            self._close_oldest()
        return self.done

    def abandon(self) -> None:
        """Remove the files that are not complete. Never raises."""
        for file, _ in self._open.values():
            with suppress(Exception):
                file.abandon()

    def _close_oldest(self) -> None:
        values = next(iter(self._open))
        file, held = self._open[values]
        _write(file, held)
        self.done.append(file.close())
        del self._open[values]


def _write(file: OpenFile[Any], held: list[pa.RecordBatch]) -> None:
    if held:
        file.write(held)
        held.clear()


def _parted(
    batch: pa.RecordBatch, keys: Sequence[pa.Array]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the records of each combination of values, in their order."""
    if not keys or not len(batch):
        yield from [((), batch)] if len(batch) else []
        return
    codes = np.zeros(len(batch), np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = batch.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        yield tuple(key[order[start]].as_py() for key in keys), ordered.slice(start, end - start)
