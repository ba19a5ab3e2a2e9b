"""Lines: read a byte range of a file as lines, without copying them and without holding the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.sources.base import BadRecord, SourceChunk
from penstock.sources.compressed_files import ExpandedBlocks

__all__ = ["LineLimits", "bad_chunk", "int64_array", "read_expanded_lines", "read_lines"]

_NEWLINE: Final = 10
_IS_BLANK: Final = np.isin(np.arange(256), [9, 10, 13, 32])
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SHOWN_BYTES: Final = 4096
_NO_END: Final = 1 << 62
_ReadAt: TypeAlias = Callable[[int, int], bytes]
"""A function that returns some bytes at a position, or fewer at the end."""


@dataclass(frozen=True)
class LineLimits:
    """The bytes to read at once (`chunk_bytes`), and the limits of a chunk (`chunk_lines`) and of a line.

    `has_mark` says whether the file may begin with a byte order mark, which is not part of its first line.
    """

    chunk_bytes: int = 8 << 20
    chunk_lines: int = 500_000
    line_bytes: int = 256 << 20
    has_mark: bool = True


_LIMITS: Final = LineLimits()


def read_lines(
    path: str, partition: str, start: int, end: int, limits: LineLimits = _LIMITS
) -> Iterator[SourceChunk]:
    r"""Yield the lines of a file that start in the bytes [start, end), in order.

    So adjacent ranges return every line once, wherever they are cut. The offset of a line is the
    position of its first byte. A line keeps its `\n`, and blank lines after it; blank lines by themselves
    are skipped. A line longer than `limits.line_bytes` becomes a bad record. Raises OSError when the file
    cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:

        def read_at(size: int, position: int) -> bytes:
            return _read_fully(descriptor, size, position)

        first = _first_line(read_at, start, end, limits)
        yield from _lines(read_at, partition, first, end, limits)
    finally:
        os.close(descriptor)


def read_expanded_lines(
    path: str, partition: str, end: int, most_bytes: int, limits: LineLimits = _LIMITS
) -> Iterator[SourceChunk]:
    """Yield the lines of a compressed file, of which the first `end` bytes are read.

    The offset of a line is the position of its first byte in what the file expands to, of which at most `most_bytes`
    are read. Raises UnreadableFileError after the last whole line when more of the file cannot be expanded, and OSError
    when the file cannot be read.
    """
    blocks = ExpandedBlocks(path, end, most_bytes)
    try:
        yield from _lines(blocks.read_at, partition, 0, _NO_END, limits)
    finally:
        blocks.close()


def _lines(
    read_at: _ReadAt, partition: str, position: int, end: int, limits: LineLimits
) -> Iterator[SourceChunk]:
    """Yield the lines that start in the bytes [position, end), of which a line starts at the first."""
    while position < end:
        block, used = _whole_lines(read_at, position, end, limits)
        if used:
            yield from _chunks(block, used, position, partition, limits)
            position += used
        elif block:
            yield _too_long(block, position, partition, limits)
            position = _behind_newline(read_at, position, limits)
        else:
            return


def int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values as an Arrow array, without a copy (and without `pa.array`, which imports pandas first)."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def bad_chunk(partition: str, reason: str, offset: int, raw: bytes) -> SourceChunk:
    """Return a chunk without records that reports the unreadable bytes."""
    bad = BadRecord(reason, partition, offset, raw[:_SHOWN_BYTES])
    return SourceChunk(partition, pa.array([], pa.int64()), raw=pa.array([], pa.binary()), bad=(bad,))


def _first_line(read_at: _ReadAt, start: int, end: int, limits: LineLimits) -> int:
    """Return where the first line that starts in [start, end) starts, or `end` when none does."""
    if start == 0:
        return 0
    return min(end, _behind_newline(read_at, start - 1, limits, end))


def _behind_newline(read_at: _ReadAt, position: int, limits: LineLimits, end: int | None = None) -> int:
    """Return the position after the first newline at or after `position`; without one, where the search ended."""
    while end is None or position < end:
        block = read_at(limits.chunk_bytes, position)
        found = block.find(b"\n")
        if found >= 0:
            return position + found + 1
        if not block:
            break
        position += len(block)
    return position


def _whole_lines(read_at: _ReadAt, position: int, end: int, limits: LineLimits) -> tuple[bytes, int]:
    """Return a block read at a line's start, and how many of its bytes are whole lines that start before `end`.

    A block that is not empty with 0 bytes used begins a line longer than `limits.line_bytes`.
    """
    # Most lines that cross the range's end are short, so a little more than the range is enough.
    size = min(limits.chunk_bytes, end - position + 65_536)
    while True:
        block = read_at(size, position)
        at_end_of_file = len(block) < size
        within = end - position
        if len(block) >= within:
            used = block.find(b"\n", within - 1) + 1
            if used == 0 and at_end_of_file:
                used = len(block)
            if used == 0:
                used = block.rfind(b"\n", 0, within) + 1
        else:
            used = len(block) if at_end_of_file else block.rfind(b"\n") + 1
        if used or at_end_of_file or size > limits.line_bytes:
            return block, used
        size *= 4


def _read_fully(descriptor: int, size: int, position: int) -> bytes:
    block = os.pread(descriptor, size, position)
    while len(block) < size:
        more = os.pread(descriptor, size - len(block), position + len(block))
        if not more:
            break
        block += more
    return block


def _chunks(
    block: bytes, used: int, position: int, partition: str, limits: LineLimits
) -> Iterator[SourceChunk]:
    starts = _line_starts(block, used, may_have_mark=limits.has_mark and position == 0)
    bounds = np.append(starts, used).astype(np.int32)
    data = pa.py_buffer(block)
    for low in range(0, len(starts), limits.chunk_lines):
        count = min(limits.chunk_lines, len(starts) - low)
        offsets = pa.py_buffer(bounds[low : low + count + 1])
        raw = pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, data])
        yield SourceChunk(partition, int64_array(starts[low : low + count] + position), raw=raw)


def _line_starts(block: bytes, used: int, *, may_have_mark: bool) -> npt.NDArray[np.int64]:
    """Return where the lines of a block that are not blank start."""
    values = np.frombuffer(block, np.uint8, used)
    newlines = np.flatnonzero(values == _NEWLINE)
    starts = np.empty(len(newlines) + 1, np.int64)
    starts[0] = len(_BYTE_ORDER_MARK) if may_have_mark and block.startswith(_BYTE_ORDER_MARK) else 0
    np.add(newlines, 1, out=starts[1:])
    if starts[-1] >= used:
        starts = starts[:-1]
    suspects = np.flatnonzero(_IS_BLANK[values[starts]])
    if not len(suspects):
        return starts
    bounds = np.append(starts, used)
    blank = [i for i in suspects.tolist() if not block[bounds[i] : bounds[i + 1]].strip()]
    return np.delete(starts, blank)


def _too_long(block: bytes, position: int, partition: str, limits: LineLimits) -> SourceChunk:
    reason = f"The line is longer than {limits.line_bytes} bytes; only its beginning is kept."
    return bad_chunk(partition, reason, position, block)
