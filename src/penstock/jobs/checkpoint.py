"""The checkpoint folder: which job it belongs to, what is fixed for its life, and who is using it."""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import CheckpointError

__all__ = ["Checkpoint", "Lineage", "write_atomically"]

_LOCK_PATIENCE_S: Final = 60.0


class Lineage(msgspec.Struct, frozen=True):
    """What is fixed for the life of a checkpoint.

    `id` names the checkpoint's whole life in sinks. `streams` is the order of the sources in Spark's offset log, and
    `parallelism` the number of state partitions.
    """

    id: str
    job: str
    key_groups: int
    parallelism: int
    streams: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A job's checkpoint on a local or shared folder."""

    folder: Path

    @classmethod
    def open(cls, path: str) -> Checkpoint:
        """The checkpoint at a path, made when it is not there. CheckpointError when it cannot be written."""
        folder = Path(path).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise CheckpointError(
                f"The checkpoint folder {folder} cannot be written ({e.strerror}). Choose another with --checkpoint."
            ) from e
        return cls(folder)

    @property
    def lineage_file(self) -> Path:
        """The file that says whose checkpoint this is."""
        return self.folder / "lineage.json"

    def lineage(self, wanted: Lineage) -> Lineage:
        """The lineage of the checkpoint; `wanted` becomes it when the checkpoint is new.

        Raises CheckpointError when the checkpoint belongs to another job or has other fixed values.
        """
        if not self.lineage_file.exists():
            if any((self.folder / name).exists() for name in ("offsets", "commits", "metadata")):
                raise CheckpointError(
                    f"The checkpoint {self.folder} was not made by penstock. Choose an empty folder with --checkpoint."
                )
            write_atomically(self.lineage_file, msgspec.json.encode(wanted))
            return wanted
        try:
            found = msgspec.json.decode(self.lineage_file.read_bytes(), type=Lineage)
        except msgspec.DecodeError as e:
            raise CheckpointError(
                f"{self.lineage_file} cannot be read: {e}. Restore it, or use a new checkpoint."
            ) from e
        self._check_fits(found, wanted)
        return found

    def _check_fits(self, found: Lineage, wanted: Lineage) -> None:
        advice = "Use the values of the checkpoint, or a new checkpoint."
        if found.job != wanted.job:
            raise CheckpointError(
                f"The checkpoint {self.folder} belongs to the job {found.job!r}, not {wanted.job!r}."
            )
        if found.key_groups != wanted.key_groups:
            raise CheckpointError(
                f"The checkpoint {self.folder} has {found.key_groups} key groups, the job {wanted.key_groups}. {advice}"
            )
        if found.streams != wanted.streams:
            raise CheckpointError(
                f"The checkpoint {self.folder} reads the streams {', '.join(found.streams)}, the job "
                f"{', '.join(wanted.streams)}. {advice}"
            )

    def lock(self, jvm: Any, stop: threading.Event) -> Any:
        """Hold the checkpoint for the life of the JVM that runs the query.

        The lock is the JVM's and not this process's, since after a kill of this process the JVM may still be
        at work for a moment; a restarted job waits for it, unless `stop` is set.
        """
        path = self.folder / "in-use.lock"
        channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            lock = channel.tryLock()
            if lock is not None:
                return lock
            if time.monotonic() > deadline or stop.is_set():
                channel.close()
                raise CheckpointError(
                    f"The checkpoint {self.folder} is in use by another run of the job. Stop that one first."
                )
            time.sleep(0.1)

    def load(self, name: str) -> Any:
        """The content of a JSON file of the checkpoint, or None."""
        path = self.folder / name
        return msgspec.json.decode(path.read_bytes()) if path.exists() else None

    def save(self, name: str, content: Any, *, durable: bool = True) -> None:
        """Write a JSON file of the checkpoint, whole or not at all; without `durable` a power cut may take it back."""
        write_atomically(self.folder / name, msgspec.json.encode(content), durable=durable)


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it has either its old or its new content, also after a crash.

    With `durable` the new content is on disk before it takes the old one's place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
