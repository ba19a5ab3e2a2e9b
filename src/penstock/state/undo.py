"""Undo: the value from before the current record changed it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ABSENT", "LONGER", "Undo", "take_back", "undo_of"]

ABSENT: Final = object()
LONGER: Final = object()


# The value from before the current record changed it: the dict that it belongs to, its key, and the value, or ABSENT if
# there was none. For a list that became longer: the list, its previous length, and LONGER. A plain tuple, since every
# change creates one.
Undo = tuple[Any, Any, Any]


def take_back(undo: Undo) -> None:
    """Restore a value."""
    values, key, before = undo
    if before is ABSENT:
        values.pop(key, None)
    elif before is LONGER:
        del values[key:]
    else:
        values[key] = before


def undo_of(values: dict[Any, Any], key: Any) -> Undo:
    """Return the undo entry for an upcoming change of a key."""
    return (values, key, values.get(key, ABSENT))
