"""File errors: whether the content of a file is at fault, or the system that reads it."""

from __future__ import annotations

__all__ = ["UnreadableFileError", "is_of_system"]


class UnreadableFileError(Exception):
    """The content of a file cannot be parsed from `offset` on; the message says why. Only the file log sees it.

    The bytes of the file are at fault. When the system cannot read them, OSError or MemoryError is raised.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def is_of_system(error: Exception) -> bool:
    """Return whether the system caused an error of Arrow.

    Arrow raises OSError for damaged bytes as well; only the system's own errors have a number.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)
