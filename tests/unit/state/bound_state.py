"""A declared state, bound to a key group for a test."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock.state.group_state import GroupState, state_schema
from penstock.state.slot_tables import SlotTables
from penstock.state.values import KeyedState
from penstock.testing.memory_entries import MemoryEntries

__all__ = ["AtWork", "state_at"]

# A state does not keep its key group in memory.
_KEPT: Final[list[AtWork]] = []


class AtWork:
    """A bound state; `at` moves it to a key and starts a record."""

    def __init__(self, declared: KeyedState, *, checks: bool = False) -> None:
        declared.name = declared.name or "kept"
        self._declared = declared
        self._checks = checks
        self._entries = MemoryEntries({})
        self._bind()

    def _bind(self) -> None:
        specs = [self._declared.spec()]
        self._tables = SlotTables(state_schema(pa.int64(), specs), self._entries)
        self.group = GroupState(specs, self._tables.table(0))
        self.column = self.group.columns[self._declared.name]
        self.state: Any = self._declared.run_time[self._checks](self.column, self.group.cursor)
        self.state.describe(self._declared)

    def at(self, key: int) -> Any:
        self.group.cursor.undo.clear()
        self.group.cursor.key = key
        return self.state

    def raised(self) -> None:
        """Undo the record's changes, as after an exception."""
        self.group.cursor.take_back()

    def flush(self) -> None:
        self.group.flush()
        self.state.refresh()

    def reload(self) -> int:
        """Reload as for the next micro-batch; return how many keys hold state."""
        changes = self.group.changes()
        if changes is not None:
            self._tables.put(0, changes)
            self._tables.store()
        self._bind()
        keys = self._tables.keys
        self.group.settled_keys()
        self.state.refresh()
        return keys


def state_at(key: int, declared: KeyedState, *, checks: bool = False) -> Any:
    """Return a declared state of a key, without state."""
    work = AtWork(declared, checks=checks)
    _KEPT.append(work)
    return work.at(key)
