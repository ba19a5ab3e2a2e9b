"""An object store on the recorded disk: each object is an atomic file that survives every crash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from recording_disk import RecordingDisk

__all__ = ["DiskStore"]


class DiskStore:
    """The objects below a folder."""

    def __init__(self, disk: RecordingDisk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder

    def put(self, name: str, content: IO[bytes]) -> None:
        self._write(name, content.read())

    def create(self, name: str, content: bytes) -> bool:
        if self.holds(name):
            return False
        self._write(name, content)
        return True

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        hidden = path.with_name(f".{path.name}")
        with self._disk.durably():
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden.write_bytes(content)
            hidden.rename(path)

    def find(self, name: str) -> bytes | None:
        return (self._folder / name).read_bytes() if self.holds(name) else None

    def holds(self, name: str) -> bool:
        return (self._folder / name).exists()

    def remove(self, names: Sequence[str]) -> None:
        with self._disk.durably():
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Do nothing: objects are atomic."""

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        paths = sorted((self._folder / folder).glob("[!.]*"))
        return iter([path.name for path in paths if path.name > after])
