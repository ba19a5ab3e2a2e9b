"""Staged changes: the upserts and deletions of a task as a file that the commit of a table reads and merges."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.lakes.upsert_rows import UpsertRows

__all__ = ["ChangeStage", "StagedChanges", "last_changes", "read_staged_changes"]

_MEMORY_BYTES: Final = 32 << 20


class StagedChanges(msgspec.Struct, frozen=True):
    """A complete file of changes, in the order in which they came."""

    path: str


class ChangeStage:
    """The changes of one task, in one file that only the commit reads.

    Args:
        path: the name of the file.
        rows: how records become rows.
        save: writes a file, durably, when it is complete.
        remove: removes a file.

    """

    def __init__(
        self,
        path: str,
        rows: UpsertRows,
        save: Callable[[str, IO[bytes]], None],
        remove: Callable[[str], None],
    ) -> None:
        self._path: Final = path
        self._rows: Final = rows
        self._save: Final = save
        self._remove: Final = remove
        self._file: Any = None
        self._writer: Any = None
        self._is_saved = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records."""
        if self._writer is None:
            self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115  # closed with the stage
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(self._file, self._rows.staged_schema, options=options)
        self._writer.write_batch(self._rows.of(batch))

    def finish(self) -> list[StagedChanges]:
        """Complete the file, durably, and return it; nothing if no changes came."""
        if self._writer is None:
            return []
        self._writer.close()
        self._file.seek(0)
        self._save(self._path, self._file)
        self._is_saved = True
        self._file.close()
        return [StagedChanges(self._path)]

    def discard(self) -> None:
        """Remove the file. Never raises."""
        with suppress(Exception):
            if self._file is not None:
                self._file.close()
            if self._is_saved:
                self._remove(self._path)


def read_staged_changes(content: bytes) -> pa.Table:
    """Return the changes of a file."""
    return pa.ipc.open_stream(content).read_all()


def last_changes(parts: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the last change of each key, in the order of these.

    >>> changes = pa.table({"id": [1, 2, 1], "n": [5, 6, 7]})
    >>> last_changes([changes], ["id"]).to_pylist()
    [{'id': 2, 'n': 6}, {'id': 1, 'n': 7}]
    """
    table = pa.concat_tables(parts).combine_chunks()
    numbers = np.zeros(len(table), np.int64)
    for name in key:
        encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
    # The first of each key from behind is its last.
    last = len(table) - 1 - np.unique(numbers[::-1], return_index=True)[1]
    return table.take(pa.array(np.sort(last)))
