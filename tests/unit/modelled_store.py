"""A model of an object store: objects are created once, answers are lost, and requests arrive late or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Literal

from penstock.errors import ExternalSystemError

__all__ = ["Fate", "ModelledStore"]

Fate = Literal["well", "answer lost", "fails", "fails but arrives", "fails and arrives late"]
"""What becomes of a request: with a lost answer, the client has asked again; with the others, it has given up."""


class ModelledStore:
    """Objects in memory; `fate` decides what becomes of each request that writes."""

    def __init__(self, fate: Callable[[], Fate] = lambda: "well") -> None:
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.requests = 0
        self.replaces = False
        self._fate = fate
        self._one = threading.Lock()

    def forget(self, name: str) -> None:
        """Have an object gone."""
        self.objects.pop(name, None)

    def arrive(self) -> None:
        """Let the requests arrive that are under way."""
        for name, content in self.late:
            self.objects.setdefault(name, content)
        self.late.clear()

    def create(self, name: str, content: bytes) -> bool:
        self.requests += 1
        fate = self._fate()
        if fate == "fails and arrives late":
            self.late.append((name, content))
        if fate.startswith("fails") and fate != "fails but arrives":
            raise ExternalSystemError(f"{name} cannot be written.")
        with self._one:
            if name in self.objects and not self.replaces:
                return False
            self.objects[name] = content
        if fate == "fails but arrives":
            raise ExternalSystemError(f"{name} cannot be written.")
        return fate != "answer lost"

    def put(self, name: str, content: IO[bytes]) -> None:
        self.requests += 1
        if self._fate().startswith("fails"):
            raise ExternalSystemError(f"{name} cannot be written.")
        with self._one:
            self.objects[name] = content.read()

    def find(self, name: str) -> bytes | None:
        self.requests += 1
        return self.objects.get(name)

    def holds(self, name: str) -> bool:
        self.requests += 1
        return name in self.objects

    def remove(self, names: Sequence[str]) -> None:
        self.requests += 1
        if self._fate().startswith("fails"):
            raise ExternalSystemError("Objects cannot be removed.")
        with self._one:
            for name in names:
                self.objects.pop(name, None)

    def remove_unfinished(self) -> None:
        """Nothing is left: an object is there whole or not at all."""

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        self.requests += 1
        with self._one:
            names = list(self.objects)
        found = sorted(name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/"))
        return iter([name for name in found if name > after])
