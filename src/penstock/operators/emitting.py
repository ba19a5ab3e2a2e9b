"""Emitting outside of blocks: what commands and broadcast control records emit, with the keys they emit it under."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.operators.binding import Binding
from penstock.operators.blocks import DeadLetter

__all__ = ["Emissions", "Emitted", "Origin"]

Origin = Callable[[str], DeadLetter]


class Emitted(NamedTuple):
    """A record that was emitted, the key, version and time under which it was, and what makes a dead letter of it."""

    output: str
    record: Any
    key: Any
    version: int | None
    time: dt.datetime | None
    origin: Origin


class Emissions:
    """What was emitted so far, in order. What is emitted outside of a key is kept in the first slot only."""

    def __init__(self, binding: Binding, *, first: bool) -> None:
        self._binding: Final = binding
        self._first: Final = first
        self._found: list[Emitted] = []
        self.origin: Origin | None = None

    def side_output(self, name: str, record: Any) -> None:
        """Take a record for an output."""
        cursor = self._binding.cursor
        key = cursor.key
        if key is None and not self._first:
            return
        version = self._binding.version() if self._binding.core.stamped else None
        assert self.origin is not None
        self._found.append(Emitted(name, record, key, version, cursor.time, self.origin))

    def __len__(self) -> int:
        return len(self._found)

    def forget(self, count: int) -> None:
        """Keep only the first `count`."""
        del self._found[count:]

    def outputs(self) -> list[str]:
        """The outputs that got anything."""
        return list(dict.fromkeys(one.output for one in self._found))

    def of(self, output: str) -> list[Emitted]:
        """What one output got."""
        return [one for one in self._found if one.output == output]
