"""Blocks: records, and a note about them, as one piece of a journal that is either whole or detectably torn.

A block is a header, the note, the lengths of the records as little-endian 32-bit numbers, and the records themselves,
any bytes, one after the other. So records are written and read in bulk, without touching each, and a reader can go from
block to block by the headers alone. The header begins with a mark that has the version of the format, and a checksum of
everything after it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CheckpointError
from penstock.sources.base import SourceChunk
from penstock.sources.lines import int64_array

__all__ = [
    "BlockPlace",
    "PackedRecords",
    "block_places",
    "pack_block",
    "read_blocks",
    "read_note",
    "whole_end",
]

_MARK: Final = b"PSJ1"
_HEADER: Final = struct.Struct("<4sIIIQ")
_COUNTS: Final = struct.Struct("<IIQ")
_CHECKED_FROM: Final = _HEADER.size - _COUNTS.size
_LENGTH_BYTES: Final = 4
_AHEAD_BYTES: Final = 1 << 16
_READ_BYTES: Final = 8 << 20
_CHUNK_RECORDS: Final = 500_000
_LARGEST_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True)
class BlockPlace:
    """The position of a block in its file, as bytes [start, end), and what it holds."""

    start: int
    end: int
    records: int
    note_bytes: int


@dataclass(frozen=True)
class PackedRecords:
    """Records, one after the other, and the length of each."""

    lengths: npt.NDArray[np.uint32]
    content: bytes

    @classmethod
    def of(cls, records: Sequence[bytes]) -> PackedRecords:
        """Pack some records."""
        return cls(np.fromiter(map(len, records), "<u4", len(records)), b"".join(records))

    @classmethod
    def merged(cls, parts: Sequence[PackedRecords]) -> PackedRecords:
        """Return the records of several parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts]) if parts else np.zeros(0, "<u4")
        return cls(lengths, b"".join([part.content for part in parts]))

    def __len__(self) -> int:
        return len(self.lengths)


def pack_block(records: PackedRecords, note: bytes = b"") -> bytes:
    """Return a block; its records may have less than 2 GB in all."""
    size = len(records.content)
    assert size <= _LARGEST_BYTES, "a block's records fit one Arrow array"
    counts = _COUNTS.pack(len(records), len(note), size)
    content = b"".join([counts, note, records.lengths.tobytes(), records.content])
    return b"".join([_MARK, zlib.crc32(content).to_bytes(4, "little"), content])


def block_places(descriptor: int, start: int, end: int) -> Iterator[BlockPlace]:
    """Yield the blocks in the bytes [start, end) of a file, by their headers.

    Stops before the first that is not a block, or not complete.
    """
    ahead, at = b"", start
    while True:
        if start + _HEADER.size > at + len(ahead):
            ahead, at = os.pread(descriptor, _AHEAD_BYTES, start), start
        place = _place(ahead[start - at : start - at + _HEADER.size], start)
        if place is None or place.end > end:
            return
        yield place
        start = place.end


def whole_end(descriptor: int, start: int, end: int) -> int:
    """Return the end of the last whole block from `start` on; a whole block is complete and unchanged."""
    for place in block_places(descriptor, start, end):
        if not _is_intact(memoryview(os.pread(descriptor, place.end - place.start, place.start))):
            break
        start = place.end
    return start


def read_note(descriptor: int, place: BlockPlace) -> bytes:
    """Return the note of a block."""
    return os.pread(descriptor, place.note_bytes, place.start + _HEADER.size)


def read_blocks(
    path: str, partition: str, start: int, end: int, content: BinaryIO | None = None
) -> Iterator[SourceChunk]:
    """Yield the records of the blocks in the bytes [start, end) of a file, in order. `content` has these bytes alone.

    The offset of a record is the position of its length in the file. Raises CheckpointError when a block is not as it
    was written, and OSError when the file cannot be read.
    """
    begin = 0 if content is None else start
    with content or Path(path).open("rb") as file:
        while start < end:
            file.seek(start - begin)
            block = file.read(min(_READ_BYTES, end - start))
            place = _place(block[: _HEADER.size], 0)
            if place is not None and place.end > len(block):
                block += file.read(min(place.end, end - start) - len(block))
            chunk = _Chunk(start)
            used = chunk.take(memoryview(block))
            if not used:
                raise CheckpointError(
                    f"The journal's file {path} is damaged at byte {start}. Restore it, or delete the checkpoint."
                )
            yield from chunk.cut(partition)
            start += used


def _place(header: bytes, start: int) -> BlockPlace | None:
    """Return the position of the block with this header, or None when it is not a header."""
    if len(header) < _HEADER.size or not header.startswith(_MARK):
        return None
    _, _, records, note_bytes, size = _HEADER.unpack(header)
    if size > _LARGEST_BYTES:
        return None
    end = start + _HEADER.size + note_bytes + _LENGTH_BYTES * records + size
    return BlockPlace(start, end, records, note_bytes)


def _is_intact(block: memoryview) -> bool:
    return zlib.crc32(block[_CHECKED_FROM:]) == int.from_bytes(block[len(_MARK) : _CHECKED_FROM], "little")


class _Chunk:
    """The records of consecutive blocks, put together."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._lengths: list[npt.NDArray[np.uint32]] = []
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._data: list[memoryview] = []

    def take(self, blocks: memoryview) -> int:
        """Take the blocks that are whole, and return how many bytes they have; 0 when the first is damaged."""
        used = 0
        while (place := _place(bytes(blocks[used : used + _HEADER.size]), used)) is not None:
            if place.end > len(blocks) or not _is_intact(blocks[used : place.end]):
                break
            lengths = used + _HEADER.size + place.note_bytes
            data = lengths + _LENGTH_BYTES * place.records
            self._lengths.append(np.frombuffer(blocks, "<u4", place.records, lengths))
            self._offsets.append(self._start + lengths + np.arange(place.records) * _LENGTH_BYTES)
            self._data.append(blocks[data : place.end])
            used = place.end
        return used

    def cut(self, partition: str) -> Iterator[SourceChunk]:
        """Yield the records as chunks that are not too long."""
        bounds = np.concatenate([[0], *self._lengths]).cumsum()
        offsets = np.concatenate(self._offsets)
        data = pa.py_buffer(b"".join(self._data))
        ends = pa.py_buffer(bounds.astype(np.int32))
        raw = pa.BinaryArray.from_buffers(pa.binary(), len(offsets), [None, ends, data])
        for low in range(0, len(offsets), _CHUNK_RECORDS):
            part = offsets[low : low + _CHUNK_RECORDS]
            yield SourceChunk(partition, int64_array(part), raw=raw.slice(low, len(part)))
