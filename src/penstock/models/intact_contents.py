"""Intact contents: which files this process has seen to have the content of their hash, so that a cut need not wait."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["IntactContents", "intact_contents"]

_MAX_KNOWN: Final = 1000


class IntactContents:
    """Files that were read whole and found intact; one that has changed since is read again."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[tuple[str, int, int, int, int], None]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def is_intact(self, path: Path, read: Callable[[Path], str]) -> bool:
        """Return whether a file has the content whose hash is its name; `read` returns that of what it finds.

        Raises FileNotFoundError.
        """
        found = path.stat()
        key = (str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        with self._lock:
            if key in self._known:
                return True
        if read(path) != path.name:
            return False
        with self._lock:
            self._known[key] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return True


intact_contents: Final = IntactContents()
"""Those of this process."""
