"""Delta merge: the changes of a micro-batch as one commit that replaces and deletes rows of a Delta table by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.lakes.upsert_rows import GONE

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

__all__ = ["merge_changes"]


def merge_changes(
    table: DeltaTable, changes: pa.Table, key: Sequence[str], properties: CommitProperties
) -> None:
    """Replace, add or delete the row of each key, with one commit. Raises what the library raises."""
    names = [name for name in changes.schema.names if name != GONE]
    values = {_quote(name): f"changed.{_quote(name)}" for name in names}
    merger = table.merge(
        changes,
        " AND ".join(_equal(changes, name) for name in key),
        source_alias="changed",
        target_alias="present",
        # A stream has no bounds, by which files without these keys could be left out.
        streamed_exec=False,
        commit_properties=properties,
    )
    is_gone = f"changed.{_quote(GONE)}"
    merger.when_matched_delete(is_gone).when_matched_update(values).when_not_matched_insert(
        values, f"NOT {is_gone}"
    ).execute()


def _equal(changes: pa.Table, name: str) -> str:
    one, other = f"present.{_quote(name)}", f"changed.{_quote(name)}"
    # Only without the second part can rows be found by a hash.
    if not changes.column(name).null_count:
        return f"{one} = {other}"
    return f"({one} = {other} OR ({one} IS NULL AND {other} IS NULL))"


def _quote(name: str) -> str:
    return f"`{name}`"
