"""Changelogs in a job's description: which streams are tables that change, and which steps take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import JobDefinitionError

__all__ = ["Changes", "refuse_changelog"]


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
