"""HDFS client: files below a folder of HDFS as objects, each there whole or not at all.

A file is written under a hidden name beside its own, synced to the disks of its DataNodes, and renamed. The NameNode
renames atomically, and refuses a name that is taken: of several writers one creates the file. It has the rename on its
disk before it answers.
"""

# ruff: noqa: D102  # as declared in StoreClient
from __future__ import annotations

import contextlib
import functools
import io
import itertools
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Final, TypeVar

from penstock.errors import BindingError, ExternalSystemError, PenstockError
from penstock.objects.hdfs_connections import client_of, forget_client, within
from penstock.objects.hdfs_errors import explain, is_passing, is_refusal
from penstock.objects.object_stores import Patience, Place
from penstock.objects.store_client import FoundObject

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus

__all__ = ["HdfsClient"]

_T = TypeVar("_T")
_PIECE_BYTES: Final = 8 << 20
# The DataNodes write so much to their disks before they have to answer.
_SYNC_BYTES: Final = 64 << 20
_AT_ONCE: Final = 8
_FIRST_PAUSE_S: Final = 0.2
_LAST_PAUSE_S: Final = 1.0
_UNFINISHED: Final = re.compile(r"\..*\.tmp")
_OURS: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
# No write takes this long.
_KEPT_NS: Final = 24 * 3600 * 10**9


class HdfsClient:
    """The files below one folder. See `StoreClient`."""

    def __init__(self, place: Place, patience: Patience) -> None:
        self._place: Final = place
        self._patience: Final = patience

    def put(self, path: str, content: IO[bytes]) -> None:
        begin = content.tell()
        hidden = _Hidden(path)

        def write() -> None:
            if not hidden.is_written:
                content.seek(begin)
                self._write(hidden, content)
            try:
                self._within(lambda client: client.rename(_full(hidden.path), _full(path), overwrite=True))
            except FileNotFoundError:
                hidden.is_written = False
                # It was renamed by a request whose answer was lost, unless somebody has removed it.
                if not self._holds(path):
                    raise

        self._persist(write)

    def create(self, path: str, content: bytes) -> bool:
        hidden = _Hidden(path)

        def create() -> bool:
            if not hidden.is_written:
                self._write(hidden, io.BytesIO(content))
            try:
                self._within(lambda client: client.rename(_full(hidden.path), _full(path)))
            except FileExistsError:
                self._delete(hidden.path)
                return False
            except FileNotFoundError:
                hidden.is_written = False
                if not self._holds(path):
                    raise
                return False
            return True

        return self._persist(create)

    def _write(self, hidden: _Hidden, content: IO[bytes]) -> None:
        from hdfs_native import WriteOptions

        hidden.renew()
        writer = self._within(lambda client: client.create(_full(hidden.path), WriteOptions()))
        # The DataNodes keep in memory what is not synced, and a sync is for the last block of a file alone.
        written, block_bytes, is_synced = 0, _PIECE_BYTES, True
        while piece := content.read(min(_PIECE_BYTES, block_bytes - written % block_bytes)):
            self._bounded(functools.partial(writer.write, piece))
            written += len(piece)
            if written == _PIECE_BYTES:
                # Smaller files have one block, unless somebody has set a tiny size.
                block_bytes = self._status(hidden.path).blocksize or _PIECE_BYTES
            is_synced = written % block_bytes == 0 or written % _SYNC_BYTES == 0
            if is_synced:
                self._bounded(writer.hsync)
        if not is_synced:
            self._bounded(writer.hsync)
        self._bounded(writer.close)
        hidden.is_written = True

    def read(self, path: str) -> bytes:
        return self._persist(lambda: b"".join(self._blocks(self._open(path))))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._persist(lambda: b"".join(self._blocks(self._open(path), start, start + length)))

    def copy(self, path: str, file: IO[bytes]) -> None:
        begin = file.tell()

        def copy() -> None:
            file.seek(begin)
            file.truncate()
            for block in self._blocks(self._open(path)):
                file.write(block)

        self._persist(copy)

    def _open(self, path: str) -> FileReader:
        return self._within(lambda client: client.read(_full(path)))

    def _blocks(self, reader: FileReader, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        size = len(reader)
        last = size if end is None else min(end, size)
        for at in range(start, last, _PIECE_BYTES):
            length = min(_PIECE_BYTES, last - at)
            yield self._bounded(functools.partial(reader.read_range, at, length))

    def size(self, path: str) -> int:
        return self._persist(lambda: self._status(path).length)

    def _status(self, path: str) -> FileStatus:
        return self._within(lambda client: client.get_file_info(_full(path)))

    def _holds(self, path: str) -> bool:
        try:
            self._status(path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, paths: Sequence[str]) -> None:
        def remove(path: str) -> None:
            self._persist(lambda: self._delete(path))

        with ThreadPoolExecutor(_AT_ONCE, "hdfs-remove") as pool:
            list(pool.map(remove, paths))
        self._remove_empty_folders(paths)

    def _remove_empty_folders(self, paths: Sequence[str]) -> None:
        """Remove the folders of removed files that have nothing else, up to that of this client."""
        root = self._place.name
        folders = {posixpath.dirname(path) for path in paths}
        while folders := {one for one in folders if one and f"{one}/".startswith(f"{root}/")}:
            found: set[str] = set()
            for folder in folders:
                # Most folders are not empty.
                with contextlib.suppress(RuntimeError):
                    self._delete(folder)
                    found.add(posixpath.dirname(folder))
            folders = found

    def _delete(self, path: str) -> None:
        self._within(lambda client: client.delete(_full(path)))

    def remove_unfinished(self, path: str) -> None:
        found = list(self._list(path))
        newest_ns = max((one.modified_ns for one in found), default=0)
        old = [
            one.name
            for one in found
            if _UNFINISHED.fullmatch(posixpath.basename(one.name)) and one.modified_ns < newest_ns - _KEPT_NS
        ]
        if old:
            self.remove(old)

    def objects(self, path: str, after: str) -> Iterator[FoundObject]:
        for one in self._list(path):
            if one.name > after and not _OURS.fullmatch(posixpath.basename(one.name)):
                yield one

    def _list(self, path: str) -> list[FoundObject]:
        def find() -> list[FoundObject]:
            try:
                found = self._within(lambda client: list(client.list_status(_full(path), recursive=True)))
            except FileNotFoundError:
                # A folder in it may have been removed meanwhile, but this one exists.
                if self._holds(path):
                    raise OSError("it has changed while it was listed") from None
                return []
            return [
                FoundObject(one.path.lstrip("/"), one.length, one.modification_time * 10**6)
                for one in found
                if not one.isdir
            ]

        return self._persist(find)

    def folders(self, path: str) -> list[str]:
        def find() -> list[str]:
            try:
                found = self._within(lambda client: list(client.list_status(_full(path))))
            except FileNotFoundError:
                return []
            return [posixpath.basename(one.path) for one in found if one.isdir]

        return self._persist(find)

    def error_of(self, error: BaseException, what: str) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise error
        text = f"{what}: {explain(error, self._place)}."
        return BindingError(text) if is_refusal(error) else ExternalSystemError(text)

    def _within(self, ask: Callable[[Client], _T]) -> _T:
        """Ask the NameNode; a frozen one is given up, with its connection."""
        client = client_of(self._place)
        try:
            return self._bounded(lambda: ask(client))
        except TimeoutError:
            forget_client(self._place)
            raise

    def _bounded(self, work: Callable[[], _T]) -> _T:
        return within(self._patience.read_ms / 1000, work)

    def _persist(self, work: Callable[[], _T]) -> _T:
        """Try again while no server answers. Raises FileNotFoundError of `work` that no earlier attempt caused."""
        deadline = time.monotonic() + self._patience.retry_ms / 1000
        for attempt in itertools.count():
            try:
                return work()
            except Exception as e:
                pause_s = min(_FIRST_PAUSE_S * 2**attempt, _LAST_PAUSE_S)
                is_over = attempt >= self._patience.retries or time.monotonic() + pause_s > deadline
                if is_over or not is_passing(e):
                    raise
            time.sleep(pause_s)
        raise AssertionError


class _Hidden:
    """The hidden name of a file that is being written."""

    def __init__(self, path: str) -> None:
        self._folder, self._name = posixpath.split(path)
        self.path = ""
        self.is_written = False

    def renew(self) -> None:
        """Take a new name, as a broken-off writer may still have the one before."""
        self.path = posixpath.join(self._folder, f".{self._name}.{uuid.uuid4().hex}.tmp")


def _full(path: str) -> str:
    return f"/{path}"
