"""Lease places: numbered leases of runs, next to a checkpoint in a folder, or with it on an object store."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from penstock.base.durable import write_atomically
from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.checkpoints.stored_home import place_of_home
from penstock.checkpoints.stored_log import ObjectsOfLog
from penstock.errors import CheckpointMissingError
from penstock.objects.object_folder import IN_HASTE, ObjectFolder

__all__ = ["KILL", "LEASES", "TERMINATE", "LeasePlace", "leases_in", "leases_of"]

_SUFFIX: Final = ".lease"
LEASES: Final = "leases"
TERMINATE: Final = "terminate"
KILL: Final = "kill"


class LeasePlace(Protocol):
    """The place of the leases of runs on a checkpoint. Methods raise OSError or PenstockError if it does not answer."""

    beat_s: float
    """How often a run reports, in seconds."""

    def prepare(self, *, is_first: bool) -> None:
        """Prepare to claim a lease. Raises CheckpointMissingError without any unless it is for a first run."""

    def numbers(self) -> list[int]:
        """Return the numbers of all leases, sorted."""

    def read(self, number: int) -> bytes | None:
        """Return a lease, None without one."""

    def claim(self, number: int, content: bytes) -> bool:
        """Create a lease unless there is one of this number; return whether it is this one that has the number."""

    def replace(self, number: int, content: bytes) -> None:
        """Replace a lease."""

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove leases, and the requests to their runs."""

    def ask(self, number: int, what: str, content: bytes = b"") -> None:
        """Write a request to the run of a lease: to end, with TERMINATE or KILL, or with the content."""

    def asked(self, number: int, what: str) -> bytes | None:
        """Return the content of a request, None without one."""

    def look(self, number: int) -> tuple[int, Collection[str]]:
        """Return the newest number, -1 without any, and the requests to the run of a lease."""


def leases_of(checkpoint: str) -> LeasePlace:
    """Return the place of the leases for a checkpoint: a folder, or a URI on an object store."""
    if not is_stored(checkpoint):
        return _FolderLeases(Path(checkpoint))
    place = place_of_home(checkpoint)
    return leases_in(ObjectFolder(place, {}, IN_HASTE), place.shown)


def leases_in(objects: ObjectsOfLog, shown: str) -> LeasePlace:
    """Return the place of the leases for a checkpoint whose objects are given, and its URI for messages."""
    return _StoreLeases(objects, shown)


def _number_of(name: str) -> int | None:
    number = name.removesuffix(_SUFFIX)
    return int(number) if name.endswith(_SUFFIX) and number.isdigit() else None


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(number for name in names if (number := _number_of(name)) is not None)


def _of(numbers: Sequence[int], names: Iterable[str]) -> list[str]:
    """Return the names of leases, and of the requests to their runs."""
    wanted = {str(number) for number in numbers}
    return [name for name in names if name.partition(".")[0] in wanted]


def _look(number: int, names: Sequence[str]) -> tuple[int, list[str]]:
    asked = [name.partition(".")[2] for name in _of([number], names) if not name.endswith(_SUFFIX)]
    return max(_numbers(names), default=-1), asked


class _FolderLeases:
    """Leases as files in a folder next to that of the checkpoint."""

    beat_s = 1.0

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint: Final = checkpoint
        self._folder: Final = checkpoint.with_name(f"{checkpoint.name}.{LEASES}")

    def prepare(self, *, is_first: bool) -> None:
        if is_first:
            self._folder.mkdir(parents=True, exist_ok=True)
        elif not self._folder.is_dir():
            raise CheckpointMissingError(
                f"The job has run with the checkpoint {self._checkpoint}, but {self._folder.name} next to it is "
                "missing. Mount the disk or share that has them."
            )

    def numbers(self) -> list[int]:
        return _numbers(self._names())

    def read(self, number: int) -> bytes | None:
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None

    def claim(self, number: int, content: bytes) -> bool:
        hidden = self._folder / f".{number}-{os.getpid()}-{threading.get_ident()}"
        try:
            hidden.write_bytes(content)
            # A link fails if the number is taken: only one run gets it.
            os.link(hidden, self._path(number))
        except FileExistsError:
            return False
        finally:
            hidden.unlink(missing_ok=True)
        return True

    def replace(self, number: int, content: bytes) -> None:
        write_atomically(self._path(number), content, durable=False)

    def remove(self, numbers: Sequence[int]) -> None:
        for name in _of(numbers, self._names()):
            (self._folder / name).unlink(missing_ok=True)

    def ask(self, number: int, what: str, content: bytes = b"") -> None:
        write_atomically(self._folder / f"{number}.{what}", content, durable=False)

    def asked(self, number: int, what: str) -> bytes | None:
        try:
            return (self._folder / f"{number}.{what}").read_bytes()
        except FileNotFoundError:
            return None

    def look(self, number: int) -> tuple[int, Collection[str]]:
        return _look(number, self._names())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)  # noqa: PTH208  # quicker
        except FileNotFoundError:
            return []

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}{_SUFFIX}"


class _StoreLeases:
    """Leases as objects below the prefix of a checkpoint. Each is created once, and then replaced by its run only."""

    # Each report is a list and a put.
    beat_s = 3.0

    def __init__(self, objects: ObjectsOfLog, shown: str) -> None:
        self._objects: Final = objects
        self._shown: Final = shown

    def prepare(self, *, is_first: bool) -> None:
        if not is_first and not self.numbers():
            raise CheckpointMissingError(
                f"The job has run with the checkpoint {self._shown}, but there are no {LEASES} in it. Correct the "
                "address of the store, or put the objects back from a copy."
            )

    def numbers(self) -> list[int]:
        return _numbers(self._names())

    def read(self, number: int) -> bytes | None:
        return self._objects.find(self._name(number))

    def claim(self, number: int, content: bytes) -> bool:
        if self._objects.create(self._name(number), content):
            return True
        # The answer to the request that has created it may be lost, and the client has asked again.
        return self._objects.find(self._name(number)) == content

    def replace(self, number: int, content: bytes) -> None:
        self._objects.put(self._name(number), io.BytesIO(content))

    def remove(self, numbers: Sequence[int]) -> None:
        if numbers:
            self._objects.remove([f"{LEASES}/{name}" for name in _of(numbers, self._names())])

    def ask(self, number: int, what: str, content: bytes = b"") -> None:
        self._objects.put(f"{LEASES}/{number}.{what}", io.BytesIO(content))

    def asked(self, number: int, what: str) -> bytes | None:
        return self._objects.find(f"{LEASES}/{number}.{what}")

    def look(self, number: int) -> tuple[int, Collection[str]]:
        return _look(number, list(self._names()))

    def _names(self) -> Iterator[str]:
        return self._objects.names(LEASES)

    def _name(self, number: int) -> str:
        return f"{LEASES}/{number}{_SUFFIX}"
