"""Window options: which windows there are, when they fire, and what leaves them."""

from __future__ import annotations

import copy
from typing import Any, Self

from penstock.base.durations import Duration
from penstock.windows.assigners import WindowAssigner
from penstock.windows.evictors import Evictor
from penstock.windows.triggers import Trigger

__all__ = ["WindowOptions"]


class WindowOptions:
    """An assigner with the options that go with it, by name. Every method gives a new one."""

    def __init__(self, assigner: WindowAssigner) -> None:
        self.options: dict[str, Any] = {"assigner": assigner}

    def trigger(self, trigger: Trigger) -> Self:
        """Let windows fire as a trigger says, in place of the assigner's own."""
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> Self:
        """Let an evictor drop records when windows fire. All records are kept until then."""
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Keep windows by event time for so long behind their end; each late record fires them again."""
        return self._with(lateness=lateness)

    def _with(self, **options: Any) -> Self:
        found = copy.copy(self)
        found.options = self.options | options
        return found
