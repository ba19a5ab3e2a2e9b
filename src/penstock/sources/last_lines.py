"""Last lines: the end of a file, to check whether its last record is complete."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["last_line"]

_LINE_ENDS: Final = b"\r\n"
_MOST_BYTES: Final = 1 << 16


def last_line(path: str) -> bytes | None:
    """Return the last line of a file that is not empty; None if it has none, or only a very long one.

    Raises OSError when the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        begin = max(0, size - _MOST_BYTES)
        content = os.pread(descriptor, _MOST_BYTES, begin).rstrip(_LINE_ENDS)
    finally:
        os.close(descriptor)
    at = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
    return content[at:] if content and (at or not begin) else None
