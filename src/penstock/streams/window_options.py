"""Window options: the assigner of windows, when they fire, and what they drop."""

from __future__ import annotations

import copy
from typing import Any, Self

from penstock.base.durations import Duration
from penstock.windows.assigners import WindowAssigner
from penstock.windows.evictors import Evictor
from penstock.windows.triggers import Trigger

__all__ = ["WindowOptions"]


class WindowOptions:
    """An assigner and its options, by name. Every method returns a new instance."""

    def __init__(self, assigner: WindowAssigner) -> None:
        self.options: dict[str, Any] = {"assigner": assigner}

    def trigger(self, trigger: Trigger) -> Self:
        """Fire windows by this trigger instead of the assigner's default."""
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> Self:
        """Drop records by this evictor when windows fire. All records are kept until then."""
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Keep event-time windows for this long after their end; each late record fires them again."""
        return self._with(lateness=lateness)

    def _with(self, **options: Any) -> Self:
        found = copy.copy(self)
        found.options = self.options | options
        return found
