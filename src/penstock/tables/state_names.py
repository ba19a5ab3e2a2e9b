"""State names: the names of the states of aggregates, which are those of their results where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.tables.bound_aggregates import BoundAggregate

__all__ = ["state_names"]

_TAKEN: Final = ("key", "group_rows", "output", "waiting", "past")


def state_names(aggregates: Sequence[BoundAggregate], function: type) -> dict[str, str]:
    """Return the name of the state of each aggregate in a class: that of the aggregate, unless the class uses it."""
    found: dict[str, str] = {}
    for one in aggregates:
        name = one.name
        while name in _TAKEN or hasattr(function, name) or name in found.values():
            name = f"{name}_state"
        found[one.name] = name
    return found
