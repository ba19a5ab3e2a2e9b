"""Stores: the folder or object-store prefix of one snapshot."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from penstock.base.durable import NO_HARD_LINKS, make_folder, sync_folder
from penstock.errors import AlreadyThereError, ExternalSystemError, NotThereError, SnapshotError
from penstock.objects.object_folder import ObjectFolder
from penstock.objects.object_stores import Patience, Place, is_host, store_of, why

__all__ = ["Data", "Store", "open_store"]

Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

_BUCKET_SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs")
# A part of a snapshot may be large and its network slow, and nobody waits at a prompt.
_PATIENCE: Final = Patience(
    connect_ms=5_000, read_ms=120_000, request_ms=600_000, retries=5, retry_ms=120_000
)


class Store(Protocol):
    """The storage of one snapshot. Paths are relative, with `/` between their parts."""

    @property
    def uri(self) -> str:
        """The URI that it was opened with, for messages."""

    def create(self, path: str, data: Data) -> None:
        """Write a new file, atomically and durably.

        Raises AlreadyThereError if it exists, SnapshotError or ExternalSystemError if it cannot be written.
        """

    def replace(self, path: str, data: Data) -> None:
        """Write a file that may exist, atomically: readers see either the old content or the new."""

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises NotThereError if the file does not exist."""

    def open_input(self, path: str) -> Any:
        """Open the file for pyarrow, memory-mapped if it is local. Raises NotThereError if it does not exist."""

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""

    def size(self, path: str) -> int:
        """Return the size of the file in bytes. Raises NotThereError if it does not exist."""

    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted paths that begin with `prefix`, without hidden and temporary files."""

    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""


def open_store(uri: str, settings: Mapping[str, str] | None = None) -> Store:
    """Return the store of a snapshot by its URI. Reads and creates nothing.

    It is a folder (`PATH` or `file:///PATH`), `s3://BUCKET/PREFIX`, `gs://`, `az://` or `hdfs://HOST:PORT/PATH`.
    `settings` are environment variables that count more than those of the process. Raises SnapshotError for any other
    URI.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme in _BUCKET_SCHEMES:
        return _ObjectStore(uri, scheme, rest, settings or {})
    if scheme == "hdfs":
        return _HdfsStore(uri, rest)
    if uri.startswith("file:"):
        path = unquote(uri.removeprefix("file:"))
        if path.startswith("//"):
            host, _, path = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise SnapshotError(
                    f"The snapshot {uri!r} is on the host {host!r}. Give a folder of this machine: file:///PATH."
                )
            path = f"/{path}"
        return _FolderStore(uri, Path(path))
    if separator or not uri:
        raise SnapshotError(
            f"{uri!r} is not a location for a snapshot. Give a folder, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX or hdfs://HOST:PORT/PATH."
        )
    return _FolderStore(uri, Path(uri))


def _check_path(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise SnapshotError(
            f"{path!r} is not a path inside a snapshot. Give names with '/' between them, without empty parts, '.' "
            "and '..'."
        )
    return path


def _already_there(uri: str, path: str) -> AlreadyThereError:
    return AlreadyThereError(
        f"{path!r} exists in {uri!r}, and files of snapshots are never overwritten. Write to a new location, or "
        "delete the existing snapshot if nobody needs it."
    )


def _not_there(uri: str, path: str) -> NotThereError:
    return NotThereError(
        f"There is no {path!r} in {uri!r}. Check the location, and that the snapshot is complete."
    )


class _FolderStore:
    """A local folder."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self._folder = folder

    def create(self, path: str, data: Data) -> None:
        target = self._target(path)
        with self._errors(path, "written"), self._staged(target, data) as staged:
            try:
                _claim(staged, target)
            except FileExistsError:
                raise _already_there(self.uri, path) from None
            sync_folder(target.parent)

    def replace(self, path: str, data: Data) -> None:
        target = self._target(path)
        with self._errors(path, "written"), self._staged(target, data) as staged:
            staged.replace(target)
            sync_folder(target.parent)

    def read(self, path: str) -> bytes:
        with self._errors(path, "read"):
            return self._target(path).read_bytes()

    def open_input(self, path: str) -> Any:
        target = self._target(path)
        with self._errors(path, "read"):
            # An empty file cannot be mapped.
            return pa.memory_map(str(target)) if target.stat().st_size else pa.BufferReader(b"")

    def exists(self, path: str) -> bool:
        with self._errors(path, "read"):
            return self._target(path).is_file()

    def size(self, path: str) -> int:
        with self._errors(path, "read"):
            return self._target(path).stat().st_size

    def list(self, prefix: str = "") -> list[str]:
        found = []
        with self._errors(prefix, "listed"):
            for folder, inner, names in os.walk(self._folder, onerror=_raise_unless_missing):
                inner[:] = [name for name in inner if not name.startswith(".")]
                relative = Path(folder).relative_to(self._folder)
                found += [(relative / name).as_posix() for name in names if not name.startswith(".")]
        return sorted(path for path in found if path.startswith(prefix))

    def delete(self, path: str) -> None:
        with self._errors(path, "deleted"):
            self._target(path).unlink(missing_ok=True)

    def _target(self, path: str) -> Path:
        return self._folder / _check_path(path)

    @contextmanager
    def _staged(self, target: Path, data: Data) -> Iterator[Path]:
        """Write the content to disk under a hidden name, which is removed afterwards."""
        make_folder(target.parent)
        staged = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            with staged.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield staged
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)

    @contextmanager
    def _errors(self, path: str, done: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as e:
            if done != "written":
                raise _not_there(self.uri, path) from None
            raise self._failed(path, done, e) from e
        except OSError as e:
            raise self._failed(path, done, e) from e

    def _failed(self, path: str, done: str, error: OSError) -> SnapshotError:
        what = f"{path!r} in {self.uri!r}" if path else repr(self.uri)
        return SnapshotError(
            f"{what} cannot be {done} ({error.strerror or error}). Check the folder's permissions and the space on its "
            "disk, or use another."
        )


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _claim(staged: Path, target: Path) -> None:
    """Give a staged file its name. Raises FileExistsError when the name is taken."""
    try:
        os.link(staged, target)
    except OSError as e:
        if e.errno not in NO_HARD_LINKS:
            raise
        # Without hard links the name is claimed first. A crash in between leaves an empty file that no manifest lists.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        staged.replace(target)


class _ObjectStore:
    """A prefix in a bucket; credentials come from the environment (docs/object_stores.md)."""

    def __init__(self, uri: str, scheme: str, rest: str, settings: Mapping[str, str]) -> None:
        bucket, _, prefix = rest.rstrip("/").partition("/")
        if not is_host(scheme, bucket) or "@" in rest:
            raise SnapshotError(
                f"{scheme}://... names no bucket. Give {scheme}://BUCKET/PREFIX; users and keys belong in the "
                "environment of the process."
            )
        self.uri = uri
        self._place = Place(scheme, bucket, _check_path(prefix) if prefix else "")
        self._settings = dict(settings)
        self._client: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.uri, self._settings)

    def create(self, path: str, data: Data) -> None:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._put(path, data, "create")
        except AlreadyExistsError:
            raise _already_there(self.uri, path) from None

    def replace(self, path: str, data: Data) -> None:
        self._put(path, data, "overwrite")

    def _put(self, path: str, data: Data, mode: Any) -> None:
        import obstore

        with self._errors(path, "written"):
            # In one request, so that the write is atomic.
            obstore.put(
                self._store(), self._name(path), memoryview(data).cast("B"), mode=mode, use_multipart=False
            )

    def read(self, path: str) -> bytes:
        import obstore

        with self._errors(path, "read"):
            return bytes(obstore.get(self._store(), self._name(path)).bytes())

    def open_input(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except NotThereError:
            return False
        return True

    def size(self, path: str) -> int:
        import obstore

        with self._errors(path, "read"):
            return obstore.head(self._store(), self._name(path))["size"]

    def list(self, prefix: str = "") -> list[str]:
        import obstore

        cut = len(self._place.name) + 1 if self._place.name else 0
        with self._errors(prefix, "listed"):
            batches = obstore.list(self._store(), self._place.name or None)
            found = [entry["path"][cut:] for batch in batches for entry in batch]
        hidden = [path for path in found if any(part.startswith(".") for part in path.split("/"))]
        return sorted(path for path in set(found).difference(hidden) if path.startswith(prefix))

    def delete(self, path: str) -> None:
        import obstore

        with suppress(NotThereError), self._errors(path, "deleted"):
            obstore.delete(self._store(), self._name(path))

    def _store(self) -> Any:
        if self._client is None:
            self._client = store_of(self._place, {**os.environ, **self._settings}, _PATIENCE)
        return self._client

    def _name(self, path: str) -> str:
        return f"{self._place.name}/{_check_path(path)}" if self._place.name else _check_path(path)

    @contextmanager
    def _errors(self, path: str, done: str) -> Iterator[None]:
        from obstore.exceptions import AlreadyExistsError

        try:
            yield
        except (SnapshotError, AlreadyExistsError):
            raise
        except FileNotFoundError as e:
            if "NoSuchBucket" not in str(e) and "ContainerNotFound" not in str(e) and done != "written":
                raise _not_there(self.uri, path) from None
            raise self._failed(path, done, e) from None
        except BaseException as e:
            # The cause is omitted, since it may contain secrets.
            raise self._failed(path, done, e) from None

    def _failed(self, path: str, done: str, error: BaseException) -> ExternalSystemError:
        what = f"{path!r} in {self.uri!r}" if path else repr(self.uri)
        return ExternalSystemError(f"{what} cannot be {done}: {why(error, self._place)}.")


class _HdfsStore:
    """A folder of HDFS; user and nameservices come from the environment (docs/object_stores.md)."""

    def __init__(self, uri: str, rest: str) -> None:
        host, _, path = rest.rstrip("/").partition("/")
        if not is_host("hdfs", host):
            raise SnapshotError(
                "hdfs://... names no NameNode. Give hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH; a user belongs "
                "in HADOOP_USER_NAME."
            )
        self.uri = uri
        self._files = ObjectFolder(Place("hdfs", host, _check_path(path) if path else ""), {}, _PATIENCE)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.uri,)

    def create(self, path: str, data: Data) -> None:
        if not self._files.create(_check_path(path), bytes(data)):
            raise _already_there(self.uri, path)

    def replace(self, path: str, data: Data) -> None:
        self._files.put(_check_path(path), io.BytesIO(data))

    def read(self, path: str) -> bytes:
        found = self._files.find(_check_path(path))
        if found is None:
            raise _not_there(self.uri, path)
        return found

    def open_input(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def exists(self, path: str) -> bool:
        return self._files.holds(_check_path(path))

    def size(self, path: str) -> int:
        found = self._files.size(_check_path(path))
        if found is None:
            raise _not_there(self.uri, path)
        return found

    def list(self, prefix: str = "") -> list[str]:
        found = [one.name for one in self._files.objects()]
        hidden = [path for path in found if any(part.startswith(".") for part in path.split("/"))]
        return sorted(path for path in set(found).difference(hidden) if path.startswith(prefix))

    def delete(self, path: str) -> None:
        self._files.remove([_check_path(path)])
