"""Undo: what a value was before the current record changed it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ABSENT", "LONGER", "Undo", "take_back", "undo_of"]

ABSENT: Final = object()
LONGER: Final = object()


# What a value was before the current record changed it: the values it belongs to, its key, the value, ABSENT where
# there was none. Of a list that got longer: the list, its length before, LONGER. A plain tuple, since one is made for
# each change.
Undo = tuple[Any, Any, Any]


def take_back(undo: Undo) -> None:
    """Put a value back as it was."""
    values, key, before = undo
    if before is ABSENT:
        values.pop(key, None)
    elif before is LONGER:
        del values[key:]
    else:
        values[key] = before


def undo_of(values: dict[Any, Any], key: Any) -> Undo:
    """What takes back a change of a key that is about to be made."""
    return (values, key, values.get(key, ABSENT))
