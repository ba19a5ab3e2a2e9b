"""Model suspensions: notice versions whose calls hung, so that the run continues without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.jobs.events import RunEvents
from penstock.models.library_places import FolderPlace
from penstock.models.suspensions import Suspension, find_suspensions

__all__ = ["ModelSuspensions"]


class ModelSuspensions:
    """The suspensions in the library of a job; those found at the start are not new.

    `on_note` gets a sentence about each new one, and `events` records it.
    """

    def __init__(self, library: FolderPlace, on_note: Callable[[str], None], events: RunEvents) -> None:
        self._library: Final = library
        self._on_note: Final = on_note
        self._events: Final = events
        self._seen: Final[set[Suspension]] = set(find_suspensions(library))

    def note_new(self) -> bool:
        """Note the suspensions since the last call; return whether there were any."""
        self._library.take_in()
        new = [found for found in find_suspensions(self._library) if found not in self._seen]
        self._seen.update(new)
        for found in new:
            self._on_note(
                f"Version {found.version!r} of the model {found.model!r} of step {found.step!r} is suspended: "
                f"{found.reason}. The version before scores what it worked on, and its policy rolls it back."
            )
            details = msgspec.to_builtins(found)
            self._events.add("model-suspended", {name: details[name] for name in _DETAILS}, by="")
        return bool(new)

    def in_force(
        self, versions: Mapping[str, Mapping[str, Mapping[str, Any]]]
    ) -> dict[str, dict[str, dict[str, str]]]:
        """Return the reasons of those that count for the present versions, by step, model and version.

        Called before each commit, so that the library has what tasks have left.
        """
        self._library.take_in()
        reasons: dict[str, dict[str, dict[str, str]]] = {}
        for found in find_suspensions(self._library):
            version = versions.get(found.step, {}).get(found.model, {}).get(found.version)
            if version is not None and version.get("command") == found.command:
                reasons.setdefault(found.step, {}).setdefault(found.model, {})[found.version] = found.reason
        return reasons


_DETAILS: Final = ("step", "model", "version", "reason")
