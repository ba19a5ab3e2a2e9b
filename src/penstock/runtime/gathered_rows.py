"""Gathered rows: all rows of a slot in a micro-batch, in a fixed order, spilled to disk when large (no Spark)."""

from __future__ import annotations

import functools
import itertools
import operator
import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Any, Final, Self

from penstock.runtime.packed_rows import PackedRow

__all__ = ["GatheredRows", "StoredBody", "in_memory", "pieces_of_groups"]

# At most this many bytes of a slot's bodies are in memory.
_MAX_BYTES: Final = 64 << 20


class GatheredRows:
    """The rows of a slot by destination. A context manager, which removes what is on disk when it exits.

    Each list is sorted, so it does not depend on the order of arrival. A body may be on disk: its length is known, and
    `in_memory` reads its content.
    """

    def __init__(self, rows: Iterable[PackedRow]) -> None:
        # An unnamed file: nothing of it remains when the worker ends.
        self._file: IO[bytes] | None = None
        self._held_bytes = 0
        try:
            gathered = sorted(map(self._keep, rows))
        except BaseException:
            self._close()
            raise
        by_destination = operator.attrgetter("destination")
        self.lists: Final = {
            name: list(part) for name, part in itertools.groupby(gathered, key=by_destination)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _keep(self, row: PackedRow) -> PackedRow:
        """Return the row with its body in memory or, above the limit, on disk, where it may already be."""
        if isinstance(row.body, StoredBody):
            return row
        size = len(row.body)
        if self._held_bytes + size <= _MAX_BYTES:
            self._held_bytes += size
            return row
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-rows-")  # noqa: SIM115  # it is read from later
        place = self._file.seek(0, 2)
        self._file.write(row.body)
        return row._replace(body=StoredBody(self._file, place, size))


@functools.total_ordering
class StoredBody:
    """A body on disk. Comparing it reads it, which only happens for rows that are otherwise equal."""

    __slots__ = ("_file", "_place", "_size")
    __hash__ = None  # type: ignore[assignment]  # not needed

    def __init__(self, file: IO[bytes], place: int, size: int) -> None:
        self._file: Final = file
        self._place: Final = place
        self._size: Final = size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        self._file.seek(self._place)
        return self._file.read(self._size)

    def __eq__(self, other: object) -> bool:
        return bytes(self) == _content(other)

    def __lt__(self, other: object) -> bool:
        return bytes(self) < _content(other)


def _content(body: Any) -> bytes:
    return bytes(body)


def in_memory(row: PackedRow) -> PackedRow:
    """Return the row with its body as bytes."""
    return row if isinstance(row.body, bytes) else row._replace(body=bytes(row.body))


def pieces_of_groups(rows: Iterable[PackedRow], max_bytes: int) -> Iterator[list[PackedRow]]:
    """Split sorted rows into lists of whole key groups. A list is full once it has `max_bytes`."""
    piece: list[PackedRow] = []
    size = 0
    for _, group in itertools.groupby(rows, key=operator.attrgetter("key_group")):
        if size >= max_bytes:
            yield piece
            piece, size = [], 0
        found = list(group)
        piece += found
        size += sum(len(row.body) for row in found)
    if piece:
        yield piece
