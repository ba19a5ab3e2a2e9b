"""File sink: a directory that gets one JSON Lines, CSV or Parquet file per batch, whole or not at all."""

from __future__ import annotations

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

from penstock.base.durable import NO_HARD_LINKS, make_folder, sync_folder, write_atomically
from penstock.bindings.types import FilesBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, PenstockError
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.part_files import PartWriter, join_parquet, join_text, part_writer
from penstock.sinks.sink_notes import noting_errors

__all__ = ["FilesSink"]

_VISIBLE: Final = re.compile(r"part-(\d{4,})-\d{10,}\.\w+")
_CLAIM: Final = re.compile(r"\.epoch-(\d{4,})")
_MARK: Final = re.compile(r"\.epoch-(\d{4,})\.batch-(\d{10,})")


class _Place(msgspec.Struct):
    """The fixed choices of a lineage, and the newest batch that was committed. Kept in the checkpoint."""

    lineage: str
    directory: str
    format: str
    epoch: int
    committed: int = -1


class _Part(msgspec.Struct):
    """A staged file of one task, reported to the commit."""

    name: str
    header_bytes: int


class FilesSink:
    """A sink that writes `part-<epoch>-<batch>.<format>` files, each visible only when it is complete.

    Tasks write parts into a hidden folder; the commit joins them in order and gives the file its name. A
    batch that is replayed after a crash finds its file, or the note of its commit, and is not written again.
    The epoch separates the files of one lineage (a checkpoint's whole life) from those of others. A file next to
    the claim of the epoch has the number of its newest batch in its name, for checkpoints that go back.
    """

    exactly_once = True
    commits_in_tasks = False

    def __init__(self, binding: FilesBinding) -> None:
        self._binding = binding
        self._folder = Path(binding.directory)
        self._place: _Place | None = None
        self._note: Path | None = None

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """Return the newest batch of a lineage that became visible here, or was about to, even if its file is gone."""
        with noting_errors(self._binding.stream):
            known = _read_note(self._note_in(checkpoint_folder))
        if known is not None and self._is_of(known, lineage):
            is_newest = self._mark(known.epoch, known.committed).exists()
            # Nearly always true, and a folder may have very many files to list.
            if is_newest:
                return known.committed
        marks = self._marks()
        mine = {epoch for epoch, _ in marks if self._has_claimed(epoch, lineage)}
        return max((batch_id for epoch, batch_id in marks if epoch in mine), default=-1)

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
        self._note = self._note_in(checkpoint_folder)
        with noting_errors(self._binding.stream):
            self._note.parent.mkdir(parents=True, exist_ok=True)
            known = _read_note(self._note)
        if known is None or not (self._is_of(known, lineage) and self._try_claim(known.epoch, lineage)):
            epoch = self._claim_epoch(lineage)
            known = _Place(lineage, str(self._folder), self._binding.format, epoch)
            with noting_errors(self._binding.stream):
                write_atomically(self._note, msgspec.json.encode(known))
        self._place = known

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """Return a task that writes a hidden part under its own name."""
        unique = uuid.uuid4().hex[:12]
        name = f"{context.batch_id:010}-{context.partition:05}-{context.attempt}-{unique}"
        path = self._staging(context.lineage) / f"{name}.{self._binding.format}"
        return _FileTask(path, self._binding, record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Join the parts and make the file visible, unless it already is; then remove the parts."""
        place, note = self._require_prepared()
        parts = [msgspec.json.decode(message, type=_Part) for message in messages if message]
        target = self._folder / f"part-{place.epoch:04}-{batch_id:010}.{self._binding.format}"
        staging = self._staging(place.lineage)
        if parts and batch_id > place.committed:
            if not target.exists():
                with _write_errors(self._binding, f"batch {batch_id} cannot be committed"):
                    joined = self._join(staging, parts)
                    self._mark_newest(place, batch_id)
                    _publish(joined, target)
            place.committed = batch_id
            with noting_errors(self._binding.stream):
                # The note is for a file that is removed before a replay.
                write_atomically(note, msgspec.json.encode(place))
        for part in parts:
            with suppress(OSError):
                (staging / part.name).unlink(missing_ok=True)

    def _require_prepared(self) -> tuple[_Place, Path]:
        if self._place is None or self._note is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        return self._place, self._note

    def _staging(self, lineage: str) -> Path:
        return self._folder / f".staging-{lineage}"

    def _note_in(self, checkpoint_folder: str) -> Path:
        name = urllib.parse.quote(self._binding.stream, safe="")
        return Path(checkpoint_folder) / f"files-sink-{name}.json"

    def _is_of(self, place: _Place, lineage: str) -> bool:
        """Return whether the fixed choices of the checkpoint apply to this binding."""
        expected = (lineage, str(self._folder), self._binding.format)
        return (place.lineage, place.directory, place.format) == expected

    def _claim_epoch(self, lineage: str) -> int:
        """Return the epoch that the lineage has claimed here, if the checkpoint lost its note; else claim a new one.

        A new epoch is the first above all that were used here. It is claimed so that no other lineage takes it too.
        """
        names = [entry.name for entry in self._folder.iterdir()]
        claimed = [int(m.group(1)) for name in names if (m := _CLAIM.fullmatch(name))]
        for epoch in claimed:
            if self._has_claimed(epoch, lineage):
                return epoch
        visible = [int(m.group(1)) for name in names if (m := _VISIBLE.fullmatch(name))]
        highest = max([*claimed, *visible], default=0)
        return next(epoch for epoch in itertools.count(highest + 1) if self._try_claim(epoch, lineage))

    def _try_claim(self, epoch: int, lineage: str) -> bool:
        """Claim an epoch; return False when another lineage has it."""
        try:
            with self._claim(epoch).open("x") as file:
                file.write(self._owner(lineage))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return self._has_claimed(epoch, lineage)
        sync_folder(self._folder)
        return True

    def _has_claimed(self, epoch: int, lineage: str) -> bool:
        try:
            return self._claim(epoch).read_text() == self._owner(lineage)
        except FileNotFoundError:
            return False

    def _claim(self, epoch: int) -> Path:
        return self._folder / f".epoch-{epoch:04}"

    def _owner(self, lineage: str) -> str:
        """Return the owner of an epoch. Two sinks of a job may share a folder."""
        return f"{lineage} {self._binding.format} {self._binding.stream}"

    def _mark(self, epoch: int, batch_id: int) -> Path:
        return self._folder / f".epoch-{epoch:04}.batch-{batch_id:010}"

    def _mark_newest(self, place: _Place, batch_id: int) -> None:
        """Note in a file name that a batch is about to be visible. The note is on disk when the batch's file is."""
        mark = self._mark(place.epoch, batch_id)
        try:
            self._mark(place.epoch, place.committed).rename(mark)
        except FileNotFoundError:
            # The batch is the first, or the checkpoint has lost its note.
            mark.touch()
            for epoch, earlier in self._marks():
                if epoch == place.epoch and earlier < batch_id:
                    self._mark(epoch, earlier).unlink(missing_ok=True)

    def _marks(self) -> list[tuple[int, int]]:
        """Return the epoch and the batch of each mark."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  # there may be very many, and only names are needed
        except FileNotFoundError:
            return []
        return [(int(m.group(1)), int(m.group(2))) for name in names if (m := _MARK.fullmatch(name))]

    def _join(self, staging: Path, parts: Sequence[_Part]) -> Path:
        """Return one staged file with the records of all parts, in order."""
        if len(parts) == 1:
            return staging / parts[0].name
        joined = staging / f"joined-{uuid.uuid4().hex[:12]}.{self._binding.format}"
        if self._binding.format == "parquet":
            join_parquet([staging / part.name for part in parts], joined)
        else:
            join_text([(staging / part.name, part.header_bytes) for part in parts], joined)
        return joined


class _FileTask:
    """A task that writes one part into the staging folder; no file when there are no records."""

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
            f"Sink {binding.stream!r}: {what}, because {e.filename or binding.directory} does not exist. "
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
        if e.errno not in NO_HARD_LINKS:
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
