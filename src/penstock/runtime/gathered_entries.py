"""Gathered entries: all that a slot has stored, on disk where it is too much for the memory (no Spark)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Final

import pyarrow as pa

__all__ = ["GatheredEntries"]

# So much of a slot is in memory.
_MOST_BYTES: Final = 64 << 20


class GatheredEntries(Mapping[str, bytes]):
    """Bytes by names, as they are added."""

    def __init__(self) -> None:
        self._held: Final[dict[str, bytes]] = {}
        self._held_bytes = 0
        self._places: Final[dict[str, tuple[int, int]]] = {}
        # Without a name: nothing is left of it when the worker ends.
        self._file: IO[bytes] | None = None

    def add(self, name: str, content: pa.Buffer) -> None:
        """Take the bytes of a name."""
        if self._held_bytes + content.size <= _MOST_BYTES:
            self._held[name] = content.to_pybytes()
            self._held_bytes += content.size
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-slot-")  # noqa: SIM115  # it is read from later
        self._places[name] = self._file.seek(0, 2), content.size
        self._file.write(content)

    def __getitem__(self, name: str) -> bytes:
        if name in self._held:
            return self._held[name]
        place, size = self._places[name]
        assert self._file is not None
        self._file.seek(place)
        return self._file.read(size)

    def __iter__(self) -> Iterator[str]:
        yield from self._held
        yield from self._places

    def __len__(self) -> int:
        return len(self._held) + len(self._places)
