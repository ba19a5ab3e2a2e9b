"""Intact contents: the files whose hashes this process has verified, so that a cut need not wait for that."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["IntactContents", "intact_contents"]

_MAX_KNOWN: Final = 1000


class IntactContents:
    """Files that were read whole and found intact; one that has changed since is read again."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[Hashable, None]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def is_intact(self, identity: Hashable, sha256: str, read: Callable[[], str]) -> bool:
        """Return whether a file has the content with a hash; `read` returns that of what it finds.

        `identity` is another one when the file has changed.
        """
        with self._lock:
            if identity in self._known:
                return True
        if read() != sha256:
            return False
        with self._lock:
            self._known[identity] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return True


intact_contents: Final = IntactContents()
"""Those of this process."""
