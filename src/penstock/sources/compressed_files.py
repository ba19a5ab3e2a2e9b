"""Compressed files: the expanded content of a file, read forwards and in blocks."""

from __future__ import annotations

import bz2
import io
from typing import Any, Final

import pyarrow as pa

from penstock.sources.file_errors import UnreadableFileError, is_of_system

__all__ = ["ExpandedBlocks", "ExpandedContent", "compression_of"]

_PIECE_BYTES: Final = 1 << 18
_BUFFER_BYTES: Final = 1 << 20
_STEPS: Final = (512, 1)
_CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def compression_of(path: str) -> str | None:
    """Return the compression that the ending of a file's name stands for; None for a plain file.

    >>> compression_of("readings-1.jsonl.gz")
    'gzip'
    >>> compression_of("readings-1.jsonl")
    """
    return next((codec for ending, codec in _CODECS.items() if path.endswith(ending)), None)


class _Bz2Stream:
    """The content of consecutive bzip2 streams. Arrow fails at an empty stream."""

    def __init__(self, segment: Any) -> None:
        self._segment: Final = segment
        self._expander: bz2.BZ2Decompressor | None = None

    def read(self, size: int) -> bytes:
        """Return up to so many bytes; none at the end. Raises OSError for damage."""
        while True:
            given = b""
            if self._expander is None or self._expander.eof:
                given = (self._expander.unused_data if self._expander else b"") or self._segment.read(
                    _PIECE_BYTES
                )
                if not given:
                    return b""
                self._expander = bz2.BZ2Decompressor()
            elif self._expander.needs_input and not (given := self._segment.read(_PIECE_BYTES)):
                raise OSError("Truncated compressed stream")
            if found := self._expander.decompress(given, size):
                return found

    def readinto(self, buffer: Any) -> int:
        """Read up to as many bytes as a buffer takes, and return how many there were."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class _ExpandedFile(io.RawIOBase):
    """The content of a compressed file, which can be read forwards.

    It reads no more than the first `end` bytes of the file, so what is appended to the file changes nothing. Only the
    block that is read is in memory, however much the file expands to. A file that expands to more than `limit` bytes
    raises UnreadableFileError at that position, and so does one whose bytes are damaged.
    """

    def __init__(self, path: str, end: int, limit: int) -> None:
        self._limit: Final = limit
        self._end: Final = end
        self._codec: Final = compression_of(path)
        self._position = 0
        self._damage: OSError | None = None
        # The system's errors when the file is opened are the caller's.
        self._file: Final[Any] = pa.OSFile(path)
        self._stream: Final[Any] = self._expanded()

    def readable(self) -> bool:
        """Return whether the file can be read, as Python's own files."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return how many there were."""
        left = self._limit - self._position
        piece = memoryview(buffer)[:left] if left else memoryview(bytearray(1))
        count = 0
        try:
            if self._damage is None:
                count = int(self._stream.readinto(piece))
        except OSError as e:
            if is_of_system(e):
                raise
            self._damage = e
            count = self._before_damage(piece)
        if self._damage is not None and not count:
            where = f"after the first {self._position} bytes of its content"
            reason = f"The file cannot be expanded {where}: {self._damage}"
            raise UnreadableFileError(reason, self._position) from self._damage
        if count and not left:
            raise UnreadableFileError(
                f"The file expands to more than {self._limit} bytes; what comes after them is not read. If that much "
                "is right, raise max_expanded_bytes.",
                self._limit,
            )
        self._position += count
        return count

    def _expanded(self) -> Any:
        segment = self._file.get_stream(0, self._end)
        if self._codec == "bz2":
            return _Bz2Stream(segment)
        return pa.CompressedInputStream(segment, self._codec) if self._end else segment

    def _before_damage(self, piece: memoryview) -> int:
        """Repeat the read that met the damage, in ever smaller steps; return the number of bytes before the damage.

        Arrow returns nothing of a read that fails, and a small file may be read at once.
        """
        count = 0
        for step in _STEPS:
            try:
                stream, skipped = self._expanded(), 0
                while skipped < self._position + count:
                    skipped += len(stream.read(min(_PIECE_BYTES, self._position + count - skipped)))
                while count < len(piece) and (found := stream.readinto(piece[count : count + step])):
                    count += found
            except OSError as e:
                if is_of_system(e):
                    raise
        return count

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()


class ExpandedBlocks:
    """Blocks of the content of a compressed file, each at or after the place of the one before.

    Bytes that cannot be expanded end the content with its last whole line; a block that begins there raises
    UnreadableFileError.
    """

    def __init__(self, path: str, end: int, limit: int) -> None:
        self._file: Final = _ExpandedFile(path, end, limit)
        self._held = bytearray()
        self._begin = 0
        self._error: UnreadableFileError | None = None

    def read_at(self, size: int, position: int) -> bytes:
        """Return the bytes from a position on; fewer than `size` at the end."""
        del self._held[: position - self._begin]
        self._begin = position
        while len(self._held) < size and self._error is None:
            try:
                piece = self._file.read(min(_PIECE_BYTES, size - len(self._held)))
            except UnreadableFileError as e:
                self._error = e
                del self._held[self._held.rfind(b"\n") + 1 :]
                break
            if not piece:
                break
            self._held += piece
        if self._error is not None and not self._held:
            raise UnreadableFileError(str(self._error), position)
        return bytes(memoryview(self._held)[:size])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ExpandedContent(io.BufferedReader):
    """The content of a compressed file, of which the first `end` bytes are read, for readers in other threads.

    It ends where the file cannot be expanded or read; `ended_by` then is the error. An error raised within Arrow's
    reader of CSV may stop it forever, or overtake blocks that were read earlier. Opening raises OSError.
    """

    def __init__(self, path: str, end: int, limit: int) -> None:
        self._expanded: Final = _QuietFile(path, end, limit)
        super().__init__(self._expanded, _BUFFER_BYTES)

    @property
    def ended_by(self) -> Exception | None:
        """What has ended the content early: UnreadableFileError, or an error of the system; None if nothing has."""
        return self._expanded.ended_by


class _QuietFile(_ExpandedFile):
    """An expanded file that ends at an error."""

    ended_by: Exception | None = None

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return how many there were; 0 from an error on."""
        if self.ended_by is None:
            try:
                return super().readinto(buffer)
            except (OSError, MemoryError, UnreadableFileError) as e:
                self.ended_by = e
        return 0
