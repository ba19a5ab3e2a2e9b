"""Object sink: files in an object store, which a manifest for each micro-batch makes visible, once."""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec
import pyarrow as pa
import xxhash

from penstock.base.durable import write_atomically
from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import ObjectsBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError, PenstockError
from penstock.objects.batch_manifests import BatchFile, BatchManifest, BatchManifests
from penstock.objects.object_folder import AT_WORK, IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Patience, Place
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.part_files import PartWriter, part_writer
from penstock.sinks.sink_notes import noting_errors

__all__ = ["ObjectSink", "check_bucket", "open_folder"]

_SESSION: Final = "AWS_SESSION_TOKEN"
_COPY_BYTES: Final = 1 << 20


class _Note(msgspec.Struct):
    """The newest micro-batch that was committed to a place, so that only later ones are looked for there."""

    place: str
    committed: int = -1


class ObjectSink:
    """A sink whose tasks write objects, and whose commit creates the manifest of the micro-batch.

    The name of an object has the micro-batch, the sink partition and a digest of the content, so a task that runs again
    writes the same object, and nobody changes one that a manifest names. A manifest is created, and never replaced: of
    two drivers the first commits a micro-batch, and the other finds it done.
    """

    exactly_once = True
    commits_in_tasks = False

    def __init__(self, binding: ObjectsBinding) -> None:
        self._binding: Final = binding
        self._lineage: str | None = None
        self._note: _Note | None = None
        self._note_path: Path | None = None

    def newest(self, lineage: str, checkpoint_folder: str) -> int:
        """Return the newest micro-batch that has a manifest, or had one according to the checkpoint."""
        known = self._read_note(self._path_in(checkpoint_folder), lineage).committed
        return self._manifests_of(lineage, IN_HASTE).newest(known)

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Check that objects can be created in the bucket. Raises BindingError with the remedy."""
        if not self._manifests_of(lineage, IN_HASTE).begin():
            raise BindingError(
                f"Sink {self._binding.stream!r}: the store of {self._binding.place} overwrites objects that are to be "
                "created once (it ignores If-None-Match). Use one that supports conditional writes, or a sink that "
                "writes to a folder."
            )
        self._lineage = lineage
        self._note_path = self._path_in(checkpoint_folder)
        self._note = self._read_note(self._note_path, lineage)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:
        """Return a task that writes one object; none when there are no records."""
        return _ObjectTask(self._binding, context, record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Create the manifest of a micro-batch, unless it has one."""
        if self._lineage is None or self._note is None or self._note_path is None:
            raise PenstockError(f"Sink {self._binding.stream!r} is used before it was prepared.")
        files = [msgspec.json.decode(message, type=BatchFile) for message in messages if message]
        if not files or batch_id <= self._note.committed:
            return
        wanted = BatchManifest(batch_id, files)
        # Opened for each micro-batch: files that the binding refers to may have other keys by now.
        there = self._manifests_of(self._lineage, AT_WORK).commit(wanted)
        if there.records != wanted.records:
            raise CheckpointError(
                f"Sink {self._binding.stream!r}: micro-batch {batch_id} is in {self._binding.place} with "
                f"{there.records} records, and this run has {wanted.records} for it. Another run, perhaps of a copy of "
                "the checkpoint, has written it. Stop the other run, and start this one with another prefix."
            )
        self._note.committed = batch_id
        with noting_errors(self._binding.stream):
            write_atomically(self._note_path, msgspec.json.encode(self._note))

    def _manifests_of(self, lineage: str, patience: Patience) -> BatchManifests:
        return BatchManifests(open_folder(self._binding, patience), _line(self._binding, lineage))

    def _path_in(self, checkpoint_folder: str) -> Path:
        name = urllib.parse.quote(self._binding.stream, safe="")
        return Path(checkpoint_folder) / f"object-sink-{name}.json"

    def _read_note(self, path: Path, lineage: str) -> _Note:
        place = f"{self._binding.place} {_line(self._binding, lineage)}"
        with noting_errors(self._binding.stream):
            try:
                known = msgspec.json.decode(path.read_bytes(), type=_Note)
            except FileNotFoundError:
                return _Note(place)
            except msgspec.MsgspecError as e:
                raise CheckpointError(
                    f"The checkpoint's {path} is damaged ({e}). Restore it, or delete it."
                ) from e
        return known if known.place == place else _Note(place)


def check_bucket(binding: ObjectsBinding) -> None:
    """Check that the bucket is there and may be listed. Writes nothing. Raises as the start of a job does."""
    BatchManifests(open_folder(binding, IN_HASTE), "").newest(-1)


class _ObjectTask:
    """A task whose records wait in a file without a name until all are there."""

    def __init__(self, binding: ObjectsBinding, context: TaskContext, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._context: Final = context
        self._record_type: Final = record_type
        self._file: IO[bytes] | None = None
        self._writer: PartWriter | None = None
        self._records = 0

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # objects have no keys
        if len(batch) == 0:
            return
        with self._disk_errors():
            if self._writer is None:
                self._file = tempfile.TemporaryFile(prefix="penstock-object-")  # noqa: SIM115  # `abort` closes it
                self._writer = part_writer(self._binding.format, self._file, self._record_type)
            self._writer.write(batch)
        self._records += len(batch)

    def finish(self) -> bytes:
        if self._writer is None or self._file is None:
            return b""
        with self._disk_errors():
            self._writer.close()
            digest, size = _digest(self._file)
        context, binding = self._context, self._binding
        line = _line(binding, context.lineage)
        name = f"{line}/{context.batch_id:010}-{context.partition:05}-{digest}.{binding.format}"
        open_folder(binding, AT_WORK).put(name, self._file)
        self._file.close()
        return msgspec.json.encode(BatchFile(name, self._records, size))

    def abort(self) -> None:
        """Drop what was not sent. An object that was sent stays; no manifest names it."""
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: records wait in the folder {tempfile.gettempdir()} until they are "
                f"sent, and cannot be written there ({e.strerror or e}). Make room there, or name a folder on a larger "
                "disk with the environment variable TMPDIR of the workers."
            ) from e


def _digest(file: IO[bytes]) -> tuple[str, int]:
    """Return the digest and the size of a file, which then stands at its beginning."""
    digest = xxhash.xxh3_64()
    file.seek(0)
    while block := file.read(_COPY_BYTES):
        digest.update(block)
    size = file.tell()
    file.seek(0)
    return digest.hexdigest(), size


def _line(binding: ObjectsBinding, lineage: str) -> str:
    """Return the common part of the names of objects from a sink and a checkpoint."""
    return f"{binding.stream}-{lineage}"


class StoredPlace(Protocol):
    """A binding to a prefix of a bucket. `client` has environment variables, whose values may be references."""

    @property
    def stream(self) -> str:
        """The name of the stream."""

    @property
    def scheme(self) -> str:
        """The scheme of the store."""

    @property
    def bucket(self) -> str:
        """The bucket."""

    @property
    def prefix(self) -> str:
        """The prefix, without a slash at its end."""

    @property
    def client(self) -> Mapping[str, str]:
        """The variables that override those of the process."""


def open_folder(binding: StoredPlace, patience: Patience) -> ObjectFolder:
    """Return the folder of a binding, with the secrets as this process has them."""
    settings = resolve_settings(binding.stream, binding.client)
    if "AWS_ACCESS_KEY_ID" in settings and _SESSION not in settings and os.environ.get(_SESSION):
        raise BindingError(
            f"Stream {binding.stream!r} has keys of its own, and {_SESSION} of the environment belongs to others. "
            "Unset it, or give the token of the keys: session_token=env:NAME."
        )
    return ObjectFolder(Place(binding.scheme, binding.bucket, binding.prefix), settings, patience)
