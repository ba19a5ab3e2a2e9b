"""Compressed files: the expanded content of a file, read forwards and in blocks."""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa

from penstock.sources.file_errors import UnreadableFileError, is_of_system

__all__ = ["ExpandedBlocks", "compression_of", "open_expanded"]

_PIECE_BYTES: Final = 1 << 18
_CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def compression_of(path: str) -> str | None:
    """Return the compression that the ending of a file's name stands for; None for a plain file.

    >>> compression_of("readings-1.jsonl.gz")
    'gzip'
    >>> compression_of("readings-1.jsonl")
    """
    return next((codec for ending, codec in _CODECS.items() if path.endswith(ending)), None)


class _ExpandedFile(io.RawIOBase):
    """The content of a compressed file, which can be read forwards.

    It reads no more than the first `end` bytes of the file, so what is appended to the file changes nothing. Only the
    block that is read is in memory, however much the file expands to. A file that expands to more than `limit` bytes
    raises UnreadableFileError at that position, and so does one whose bytes are damaged.
    """

    def __init__(self, path: str, end: int, limit: int) -> None:
        self._limit: Final = limit
        self._position = 0
        # The system's errors when the file is opened are the caller's.
        self._file: Final[Any] = pa.OSFile(path)
        segment = self._file.get_stream(0, end)
        self._stream: Final[Any] = pa.CompressedInputStream(segment, compression_of(path)) if end else segment

    def readable(self) -> bool:
        """Return whether the file can be read, as Python's own files."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return how many there were."""
        left = self._limit - self._position
        try:
            count = int(self._stream.readinto(memoryview(buffer)[:left] if left else bytearray(1)))
        except OSError as e:
            if is_of_system(e):
                raise
            reason = f"The file cannot be expanded after the first {self._position} bytes of its content: {e}"
            raise UnreadableFileError(reason, self._position) from e
        if count and not left:
            raise UnreadableFileError(
                f"The file expands to more than {self._limit} bytes; what comes after them is not read. If that much "
                "is right, raise max_expanded_bytes.",
                self._limit,
            )
        self._position += count
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


def open_expanded(path: str, end: int, limit: int) -> io.BufferedReader:
    """Open the content of a compressed file, of which the first `end` bytes are read. Raises OSError."""
    return io.BufferedReader(_ExpandedFile(path, end, limit), 1 << 20)
