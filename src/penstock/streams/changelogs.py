"""Changelogs in a job's description: which streams are tables that change, and which steps take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import JobDefinitionError

__all__ = ["Changes", "Upserts", "refuse_changelog"]


@dataclass(frozen=True)
class Upserts:
    """Records of a source that are rows of a table: each replaces the one before with the same key.

    `kind` is the field with the kind of a change; a record of the kind `-D` deletes the row, and `-U` is ignored.
    Without it, no record deletes. Use with `job.data_stream(..., changelog=...)`. A step of the name `step`, which
    defaults to that of the stream and `-table`, keeps the rows.

    >>> customers = Job("shop").data_stream(
    ...     "customers", schema="id INT, town STRING, op STRING", changelog=Upserts("id", kind="op")
    ... )
    >>> customers.record_type.field_names, customers.changelog_key
    (('id', 'town', '_change'), ('id',))
    """

    key: str | Sequence[str]
    kind: str | None = None
    step: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the key."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)


@dataclass(frozen=True)
class Changes:
    """A changelog: `key` are the fields that identify a row of its table, or None if they are not known.

    Without a field in `key` the table has one row.
    """

    key: tuple[str, ...] | None = None

    def renamed(self, names: Mapping[str, str]) -> Changes:
        """Return the changelog after a selection; `names` has the fields that it copies, by their earlier names."""
        if self.key is None or not all(name in names for name in self.key):
            return Changes()
        return dataclasses.replace(self, key=tuple(names[name] for name in self.key))


def refuse_changelog(changes: Changes | None, stream: str, who: str, remedy: str = "") -> None:
    """Raise JobDefinitionError when a stream of that name is a changelog, which `who` does not take."""
    if changes is None:
        return
    raise JobDefinitionError(
        f"{who} takes records, but {stream!r} is a changelog, which updates and deletes rows. "
        + (
            remedy
            or "Use group_by(...) with aggregate, top or deduplicate; or call as_records() to process each change as a "
            "record."
        )
    )
