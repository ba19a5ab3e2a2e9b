"""Committed files: the files that the commits of a table have added, in order; the interface of lakes as sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import ExternalSystemError, PenstockError

__all__ = ["CommittedFile", "LakeRows", "TableCommits", "TableGoneError", "changed_error"]

LakeRows: TypeAlias = tuple[pa.RecordBatch, Mapping[str, str | None]]
"""Rows of a file, and the columns, as text, that have the same value in all rows of it."""


class TableGoneError(PenstockError):
    """A table cannot be read any further from the position of a checkpoint."""

    fault = "user"
    retryable = False


@dataclass(frozen=True)
class CommittedFile:
    """A file that a commit has added. `detail` has what a worker needs to read it, as plain data."""

    size: int
    rows: int
    detail: Mapping[str, Any]


class TableCommits(Protocol):
    """The commits of a table, by growing versions. It travels to workers, which only read files."""

    def open(self) -> str:
        """Open the table, and return its id, which a table in its place would not have."""

    def newest(self) -> int:
        """Return the newest version; 0 if nothing was committed."""

    def files_at(self, version: int) -> Sequence[CommittedFile]:
        """Return all files of a version, in a fixed order."""

    def added(self, after: int, upto: int) -> Iterator[tuple[int, Sequence[CommittedFile]]]:
        """Yield each version after `after`, with the files that it has added."""

    def read(self, detail: Mapping[str, Any], fields: Sequence[str]) -> Iterator[LakeRows]:
        """Yield the rows of a file, in order, with the columns that it has of these. Runs in a worker."""


def changed_error(stream: str, place: str, version: int, what: str) -> ExternalSystemError:
    """Return the error for a commit that is not only an addition."""
    return ExternalSystemError(
        f"Stream {stream!r}: version {version} of {place} {what}, and a stream only takes rows that are added. To read "
        "on without what it has changed, start the job with changed=skip in the URI."
    )
