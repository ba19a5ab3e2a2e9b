"""Gathered entries: everything that a slot has stored, spilled to disk when it is large (no Spark)."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Final

import pyarrow as pa

from penstock.state.stored_blocks import Content

__all__ = ["GatheredEntries"]

# At most this much of a slot is in memory.
_MAX_BYTES: Final = 32 << 20


class GatheredEntries(Mapping[str, Content]):
    """A mapping of names to bytes, filled by `add`. Values on disk are views of a file, read only when used."""

    def __init__(self) -> None:
        self._held: Final[dict[str, bytes]] = {}
        self._held_bytes = 0
        self._places: Final[dict[str, tuple[int, int]]] = {}
        # An unnamed file: nothing of it remains when the worker ends.
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self._view = memoryview(b"")

    def add(self, name: str, content: pa.Buffer) -> None:
        """Add the bytes of a name."""
        if self._held_bytes + content.size <= _MAX_BYTES:
            self._held[name] = content.to_pybytes()
            self._held_bytes += content.size
            return
        if self._file is None:
            # Without a buffer, a write that fails raises here.
            self._file = tempfile.TemporaryFile(prefix="penstock-slot-", buffering=0)  # noqa: SIM115  # it is read from later
        self._places[name] = self._file_bytes, content.size
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]
        self._file_bytes += content.size

    def __getitem__(self, name: str) -> Content:
        if name in self._held:
            return self._held[name]
        place, size = self._places[name]
        if len(self._view) < place + size:
            assert self._file is not None
            self._view = memoryview(mmap.mmap(self._file.fileno(), self._file_bytes, access=mmap.ACCESS_READ))
        return self._view[place : place + size]

    def __iter__(self) -> Iterator[str]:
        yield from self._held
        yield from self._places

    def __len__(self) -> int:
        return len(self._held) + len(self._places)
