"""Bulk answers: the outcome of each operation of a bulk request, by its status."""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec

__all__ = ["BulkAnswer", "BulkItem", "Fate", "fate_of"]

_NOW_OR_LATER: Final = (429, 500, 502, 503, 504)
# These are about the index or the login, not about the record.
_PLACE: Final = (401, 403, 404, 405)
# Errors with the status 400 that any record would have.
_OF_THE_INDEX: Final = ("index_closed_exception", "routing_missing_exception")
_OF_THE_SETTINGS: Final = re.compile(
    r"only write ops with an op_type of create are allowed in data streams"
    r"|no write index is defined for alias"
    r"|pipeline with id \[.*\] does not exist"
    r"|Validation Failed: 1: this action would add \[\d+\].* shards"
)
_SETTINGS: Final = ("illegal_argument_exception", "validation_exception")


class Fate(enum.Enum):
    """What is done about an operation: nothing, a dead letter, another try, or the run ends."""

    DONE = "done"
    REFUSED = "refused"
    PASSING = "passing"
    FATAL = "fatal"


class BulkItem(msgspec.Struct):
    """The status of one operation, and its error if it failed."""

    status: int
    error: Any = None

    @property
    def reason(self) -> str:
        """The reason of a failure, in one line."""
        error = self.error
        parts: list[str] = []
        while isinstance(error, dict):
            parts.append(f"{error.get('type', '')}: {error.get('reason', '')}")
            error = error.get("caused_by")
        return " ".join("; ".join(parts or [str(self.error)]).split())

    @property
    def is_of_the_index(self) -> bool:
        """Whether the index, or a setting of the server, is at fault: a closed index, a data stream, an alias."""
        if not isinstance(self.error, dict):
            return False
        kind = self.error.get("type", "")
        # Only what the server says itself: the reasons of other errors, and causes, may quote a record.
        said = _OF_THE_SETTINGS.match(str(self.error.get("reason", "")))
        return kind in _OF_THE_INDEX or (kind in _SETTINGS and said is not None)


class BulkAnswer(msgspec.Struct):
    """The answer to a bulk request: an item for each operation, under the name of the operation."""

    errors: bool
    items: list[dict[str, BulkItem]] = []


def fate_of(operation: str, item: BulkItem) -> Fate:
    """Return what is done about an operation.

    A conflict says that a newer version exists, so the write has come too late to matter; a deletion of a missing
    document has nothing to do.

    >>> fate_of("index", BulkItem(409)), fate_of("index", BulkItem(429)), fate_of("index", BulkItem(400))
    (<Fate.DONE: 'done'>, <Fate.PASSING: 'passing'>, <Fate.REFUSED: 'refused'>)
    """
    missing = operation == "delete" and item.status == 404 and item.error is None
    if item.status < 300 or item.status == 409 or missing:
        return Fate.DONE
    if item.status in _NOW_OR_LATER:
        return Fate.PASSING
    return Fate.FATAL if item.status in _PLACE or item.is_of_the_index else Fate.REFUSED
