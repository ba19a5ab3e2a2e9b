"""Answer places: where tasks keep answers, with the checkpoint and durably: in its folder, or in its store.

What is kept under a name never changes. A run that keeps its checkpoint in a store may lose its disk after outputs of a
micro-batch have become visible, so its tasks write answers into the store themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from penstock.base.durable import write_once
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.objects.object_stores import Place

__all__ = ["ANSWERS", "AnswerPlace", "AnswersInFolder", "AnswersInStore"]


ANSWERS: Final = "answers"
"""The folder of answers in the library of models, and in a store."""


@dataclass(frozen=True)
class AnswersInFolder:
    """Answers in a folder that all tasks reach."""

    folder: str

    def names(self, below: str) -> list[str]:
        """Return the names of what is kept in a folder of the place. Raises OSError."""
        return [f"{below}/{path.name}" for path in Path(self.folder, below).glob("*.json")]

    def read(self, name: str) -> bytes:
        """Return what is kept under a name. Raises OSError."""
        return Path(self.folder, name).read_bytes()

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content unless something is kept already, durably; return what is kept. Raises OSError."""
        return content if write_once(Path(self.folder, name), content) else self.read(name)

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is no longer needed. Raises OSError."""
        for name in names:
            Path(self.folder, name).unlink(missing_ok=True)


@dataclass(frozen=True)
class AnswersInStore:
    """Answers as objects below a place. `settings` are as in ObjectFolder. All methods raise ExternalSystemError."""

    place: Place
    settings: tuple[tuple[str, str], ...]

    def names(self, below: str) -> list[str]:
        """Return the names of what is kept in a folder of the place."""
        return [f"{below}/{name}" for name in self._objects.names(below)]

    def read(self, name: str) -> bytes:
        """Return what is kept under a name."""
        return self._objects.read(name)

    def keep_first(self, name: str, content: bytes) -> bytes:
        """Keep content unless something is kept already; return what is kept."""
        return content if self._objects.create(name, content) else self.read(name)

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is no longer needed."""
        self._objects.remove(names)

    @property
    def _objects(self) -> ObjectFolder:
        return ObjectFolder(self.place, dict(self.settings), AT_WORK)


AnswerPlace: TypeAlias = AnswersInFolder | AnswersInStore
