"""File sink: a directory that gets one JSON Lines, CSV or Parquet file a batch, whole or not at all."""

from __future__ import annotations

import errno
import itertools
import os
import re
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from penstock.bindings import FilesBinding
from penstock.durable import make_folder, sync_folder, write_atomically
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, PenstockError
from penstock.records import RecordType
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.part_files import PartWriter, join_parquet, join_text, part_writer

__all__ = ["FilesSink"]

_VISIBLE: Final = re.compile(r"part-(\d{4,})-\d{10,}\.\w+")
_CLAIM: Final = re.compile(r"\.epoch-(\d{4,})")
_NO_HARD_LINKS: Final = (
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EMLINK,
    errno.ENOSYS,
    errno.EXDEV,
)


class _Place(msgspec.Struct):
    """What is fixed for a lineage, and the newest batch that was committed. Kept in the checkpoint."""

    lineage: str
    directory: str
    format: str
    epoch: int
    committed: int = -1


class _Part(msgspec.Struct):
    """A staged file of one task, told to the commit."""

    name: str
    header_bytes: int


class FilesSink:
    """Writes `part-<epoch>-<batch>.<format>` files, each visible only when it is complete.

    Tasks write parts into a hidden folder; the commit joins them in order and gives the file its name. A
    batch that is replayed after a crash finds its file, or the note of its commit, and is not written again.
    The epoch keeps the files of one lineage (a checkpoint's whole life) apart from those of others.
    """

    exactly_once = True
    commits_in_tasks = False

    def __init__(self, binding: FilesBinding) -> None:
        self._binding = binding
        self._folder = Path(binding.directory)
        self._place: _Place | None = None
        self._note: Path | None = None

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Create the directory, clear leftovers of this lineage, and fix its epoch.

        Raises BindingError when the directory cannot be written, CheckpointError for the checkpoint's folder.
        """
        staging = self._staging(lineage)
        try:
            make_folder(staging)
            for leftover in staging.iterdir():
                leftover.unlink(missing_ok=True)
            (staging / "writable").touch()
            (staging / "writable").unlink()
        except OSError as e:
            raise BindingError(
                f"Sink {self._binding.stream!r}: the directory {self._folder} of {self._binding.uri!r} "
                f"cannot be written ({e.strerror}). Make it writable, or bind the sink to another with "
                f"-D {self._binding.stream}={self._binding.format}:DIR."
            ) from e
        name = urllib.parse.quote(self._binding.stream, safe="")
        self._note = Path(checkpoint_folder) / f"files-sink-{name}.json"
        with self._checkpoint_errors():
            self._note.parent.mkdir(parents=True, exist_ok=True)
            known = _read_note(self._note)
        if known is None or not self._still_ours(known, lineage):
            epoch = self._claim_epoch(lineage)
            known = _Place(lineage, str(self._folder), self._binding.format, epoch)
            with self._checkpoint_errors():
                write_atomically(self._note, msgspec.json.encode(known))
        self._place = known

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """A task that writes a hidden part under a name of its own."""
        unique = uuid.uuid4().hex[:12]
        name = f"{context.batch_id:010}-{context.partition:05}-{context.attempt}-{unique}"
        path = self._staging(context.lineage) / f"{name}.{self._binding.format}"
        return _FileTask(path, self._binding, record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Join the parts and make the file visible, unless it was before; then remove the parts."""
        place, note = self._prepared()
        parts = [msgspec.json.decode(message, type=_Part) for message in messages if message]
        target = self._folder / f"part-{place.epoch:04}-{batch_id:010}.{self._binding.format}"
        staging = self._staging(place.lineage)
        if parts and batch_id > place.committed:
            if not target.exists():
                with _write_errors(self._binding, f"batch {batch_id} cannot be committed"):
                    _publish(self._joined(staging, parts), target)
            place.committed = batch_id
            with self._checkpoint_errors():
                # The note is for a file that is taken away before a replay.
                write_atomically(note, msgspec.json.encode(place))
        for part in parts:
            with suppress(OSError):
                (staging / part.name).unlink(missing_ok=True)

    def _prepared(self) -> tuple[_Place, Path]:
        if self._place is None or self._note is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        return self._place, self._note

    def _staging(self, lineage: str) -> Path:
        return self._folder / f".staging-{lineage}"

    def _still_ours(self, place: _Place, lineage: str) -> bool:
        """Whether what the checkpoint has fixed holds for this binding, and nobody took the epoch since."""
        expected = (lineage, str(self._folder), self._binding.format)
        return (place.lineage, place.directory, place.format) == expected and self._claimed(
            place.epoch, lineage
        )

    def _claim_epoch(self, lineage: str) -> int:
        """The first epoch above all that were used here, claimed so that no other lineage takes it too."""
        names = [entry.name for entry in self._folder.iterdir()]
        found = [
            m.group(1) for name in names for pattern in (_VISIBLE, _CLAIM) if (m := pattern.fullmatch(name))
        ]
        highest = max(map(int, found), default=0)
        return next(epoch for epoch in itertools.count(highest + 1) if self._claimed(epoch, lineage))

    def _claimed(self, epoch: int, lineage: str) -> bool:
        """Claim an epoch; False when another lineage has it."""
        path = self._folder / f".epoch-{epoch:04}"
        try:
            with path.open("x") as file:
                file.write(lineage)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return path.read_text() == lineage
        sync_folder(self._folder)
        return True

    def _joined(self, staging: Path, parts: Sequence[_Part]) -> Path:
        """One staged file with the records of all parts, in order."""
        if len(parts) == 1:
            return staging / parts[0].name
        joined = staging / f"joined-{uuid.uuid4().hex[:12]}.{self._binding.format}"
        if self._binding.format == "parquet":
            join_parquet([staging / part.name for part in parts], joined)
        else:
            join_text([(staging / part.name, part.header_bytes) for part in parts], joined)
        return joined

    @contextmanager
    def _checkpoint_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise CheckpointError(
                f"The checkpoint cannot keep what the sink {self._binding.stream!r} has written: {e}. "
                "Choose a folder that can be written with --checkpoint."
            ) from e


class _FileTask:
    """Writes one part into the staging folder; no file when there is no record."""

    def __init__(self, path: Path, binding: FilesBinding, record_type: RecordType) -> None:
        self._path = path
        self._binding = binding
        self._record_type = record_type
        self._writer: PartWriter | None = None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # files have no keys
        if len(batch) == 0:
            return
        with _write_errors(self._binding, "a part cannot be written"):
            if self._writer is None:
                self._writer = part_writer(self._binding.format, self._path, self._record_type)
            self._writer.write(batch)

    def finish(self) -> bytes:
        if self._writer is None:
            return b""
        with _write_errors(self._binding, "a part cannot be written"):
            self._writer.close()
        return msgspec.json.encode(_Part(self._path.name, self._writer.header_bytes))

    def abort(self) -> None:
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


@contextmanager
def _write_errors(binding: FilesBinding, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise ExternalSystemError(
            f"Sink {binding.stream!r}: {what}, because {e.filename or binding.directory} is not there. "
            f"All machines of the job must share {binding.directory} under that path."
        ) from e
    except OSError as e:
        raise ExternalSystemError(
            f"Sink {binding.stream!r}: {what} in {binding.directory} ({e.strerror or e})."
        ) from e


def _publish(staged: Path, target: Path) -> None:
    """Give a complete file its visible name, durably, without ever replacing another."""
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    try:
        os.link(staged, target)
    except FileExistsError:
        pass
    except OSError as e:
        if e.errno not in _NO_HARD_LINKS:
            raise
        staged.rename(target)
    staged.unlink(missing_ok=True)
    sync_folder(target.parent)


def _read_note(path: Path) -> _Place | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Place)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as e:
        raise CheckpointError(f"The checkpoint's {path} is damaged ({e}). Restore it, or delete it.") from e
