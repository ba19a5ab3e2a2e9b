"""Delta files: the files of a Delta table in a folder or in an object store, and how they become durable."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from penstock.base.durable import make_folder, sync_file, sync_file_system, sync_folder
from penstock.bindings.types import DeltaBinding
from penstock.errors import PenstockError
from penstock.lakes.stage_task import Stage
from penstock.lakes.staged_files import FileStage, StagedFile
from penstock.objects.object_folder import AT_WORK, IN_HASTE, ObjectFolder
from penstock.objects.object_stores import store_of
from penstock.sinks.object_sink import open_folder

__all__ = ["DeltaFiles", "check_reach", "delta_files", "storage_options"]

# A request of the library without an answer ends after these, like those of obstore.
_LIMITS: Final = {"connect_timeout": "5s", "timeout": "60s", "max_retries": "3", "retry_timeout": "60s"}

_OPTIONS: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
    "virtual_hosted_style_request": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}


class DeltaFiles(Protocol):
    """The files of a table, by their paths below it. Writes are durable when a method returns."""

    def stage(self, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> Stage:
        """Return a stage for the files of a task."""

    def save(self, path: str, content: IO[bytes]) -> None:
        """Write a file."""

    def find(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""

    def holds(self, path: str) -> bool:
        """Return whether there is a file."""

    def open(self, path: str) -> Any:
        """Return a context manager of a local file with the content. Raises OSError if there is none."""

    def remove(self, path: str) -> None:
        """Remove a file if it is there. Never raises."""

    def check(self) -> None:
        """Check that files can be written. Raises OSError, or a PenstockError."""

    def settle(self) -> None:
        """Make the library's writes durable."""

    def settle_log(self, first: int, last: int) -> None:
        """Make the commits of some versions durable, with the files that make reading them faster."""


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def stage(self, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> Stage:
        return FileStage(self._folder, name, schema, partition_by)

    def save(self, path: str, content: IO[bytes]) -> None:
        place = self._folder / path
        make_folder(place.parent)
        with place.open("xb") as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(place.parent)

    def find(self, path: str) -> bytes | None:
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def holds(self, path: str) -> bool:
        return (self._folder / path).exists()

    @contextmanager
    def open(self, path: str) -> Iterator[Path]:
        yield self._folder / path

    def remove(self, path: str) -> None:
        with suppress(OSError):
            (self._folder / path).unlink(missing_ok=True)

    def check(self) -> None:
        make_folder(self._folder)
        with tempfile.TemporaryFile(dir=self._folder):
            pass

    def settle(self) -> None:
        sync_file_system(self._folder)

    def settle_log(self, first: int, last: int) -> None:
        log = self._folder / "_delta_log"
        names = [f"{version:020}.json" for version in range(first, last + 1)]
        checkpoints = [f"{version:020}.checkpoint.parquet" for version in range(first, last + 1)]
        found = [log / name for name in (*names, *checkpoints, "_last_checkpoint")]
        for path in found:
            if path.exists():
                sync_file(path)
        sync_folder(log)


class _StoredFiles:
    """Files in an object store, where each is there whole or not at all, and durable."""

    def __init__(self, binding: DeltaBinding) -> None:
        self._objects: Final[ObjectFolder] = open_folder(binding, AT_WORK)

    def stage(self, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> Stage:
        return _StoredStage(self._objects, name, schema, partition_by)

    def save(self, path: str, content: IO[bytes]) -> None:
        self._objects.put(path, content)

    def find(self, path: str) -> bytes | None:
        return self._objects.find(path)

    def holds(self, path: str) -> bool:
        return self._objects.holds(path)

    @contextmanager
    def open(self, path: str) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile() as file:
            self._objects.copy(path, file)
            file.flush()
            yield Path(file.name)

    def remove(self, path: str) -> None:
        with suppress(PenstockError):
            self._objects.remove([path])

    def check(self) -> None:
        """Do nothing: the table is opened, or created, there."""

    def settle(self) -> None:
        """Do nothing: what the library has written is durable."""

    def settle_log(self, first: int, last: int) -> None:
        """Do nothing: what the library has written is durable."""


class _StoredStage:
    """The files of a task, written to the disk of its machine first, and put into the store when they are complete."""

    def __init__(
        self, objects: ObjectFolder, name: str, schema: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        self._objects: Final = objects
        # Removed with this object, also when its worker forgets it.
        self._folder: Final = tempfile.TemporaryDirectory(prefix="penstock-delta-")
        self._stage: Final = FileStage(Path(self._folder.name), name, schema, partition_by)
        self._put: Final[list[str]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._stage.add(batch)

    def finish(self) -> list[StagedFile]:
        done = self._stage.finish()
        for file in done:
            with (Path(self._folder.name) / file.path).open("rb") as content:
                self._objects.put(file.path, content)
            self._put.append(file.path)
        self._folder.cleanup()
        return done

    def discard(self) -> None:
        self._stage.discard()
        with suppress(Exception):
            self._folder.cleanup()
        if self._put:
            with suppress(PenstockError):
                self._objects.remove(self._put)


def delta_files(binding: DeltaBinding) -> DeltaFiles:
    """Return the files of the table of a binding."""
    return _StoredFiles(binding) if binding.bucket else _LocalFiles(binding.path)


def storage_options(binding: DeltaBinding) -> dict[str, str] | None:
    """Return how the library reaches the table, with the secrets as this process has them; None for a folder."""
    if not binding.bucket:
        return None
    folder = open_folder(binding, AT_WORK)
    store: Any = store_of(folder.place, folder.environ, AT_WORK)
    config: dict[str, Any] = dict(store.config)
    found = {name: str(config[known]) for known, name in _OPTIONS.items() if config.get(known) is not None}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    return {**found, **_LIMITS}


def check_reach(binding: DeltaBinding) -> None:
    """Check that the store answers, sooner than the library would find out. Raises a PenstockError if not."""
    if binding.bucket:
        open_folder(binding, IN_HASTE).holds("_delta_log/_last_checkpoint")
