"""Changes: the kinds of changes of a table, which travel as the last field of its records."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.types import Field, RecordType, type_of_fields

__all__ = [
    "CHANGE",
    "KINDS",
    "Change",
    "change_codes",
    "changelog_type",
    "diff_rows",
    "kinds_column",
    "row_type",
]

CHANGE: Final = "_change"
"""The field of a changelog's records with the kind of the change."""


class Change(enum.Enum):
    """The kind of a change: a new row, a row before its update, a row after its update, or a removed row."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"


KINDS: Final = tuple(kind.value for kind in Change)
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FIELD: Final = Field(CHANGE, Change, pa.string(), nullable=False)


@functools.cache
def _kinds() -> pa.Array:
    return pa.array(KINDS)


def changelog_type(rows: RecordType) -> RecordType:
    """Return the type of a changelog's records. Raises SchemaError if rows have a field of the reserved name."""
    if CHANGE in rows.field_names:
        raise SchemaError(
            f"The field {CHANGE!r} is that of changelogs, for the kind of a change; rename yours."
        )
    return type_of_fields([*rows.fields, _FIELD])


def row_type(records: RecordType) -> RecordType:
    """Return the type of the rows of a changelog: its records without the kind of the change."""
    return type_of_fields([field for field in records.fields if field.name != CHANGE])


def change_codes(batch: pa.RecordBatch) -> Ints:
    """Return the kind of each record of a changelog, by its place in `KINDS`."""
    found: Ints = pc.index_in(batch.column(CHANGE), value_set=_kinds()).to_numpy().astype(np.int64)
    return found


def signs(codes: Ints) -> Ints:
    """Return 1 for each change that adds a row, and -1 for each that takes one away."""
    return np.where((codes == INSERT) | (codes == UPDATE_AFTER), 1, -1)


def kinds_column(codes: Ints) -> pa.Array:
    """Return the field with the kinds of changes."""
    return _kinds().take(pa.array(codes))


def diff_rows(
    before: Mask, after: Mask, differs: Mask, *, wants_before: bool = True
) -> tuple[Ints, Mask, Ints]:
    """Return the changes that lead from one table with a row per slot to another.

    `before` and `after` tell where there is a row. Returns the slot of each change, whether it has the row after, and
    its kind; the two changes of an update follow each other. Unless `wants_before`, the first one is left out.
    """
    updated = before & after & differs
    parts: Sequence[tuple[Mask, bool, int]] = (
        (before & ~after, False, DELETE),
        (updated & wants_before, False, UPDATE_BEFORE),
        (updated, True, UPDATE_AFTER),
        (after & ~before, True, INSERT),
    )
    found = [np.flatnonzero(mask) for mask, _, _ in parts]
    lengths = [len(slots) for slots in found]
    slots = np.concatenate(found)
    has_after = np.repeat([is_after for _, is_after, _ in parts], lengths)
    kinds = np.repeat([kind for _, _, kind in parts], lengths)
    order = np.lexsort((has_after, slots))
    return slots[order], has_after[order], kinds[order]
