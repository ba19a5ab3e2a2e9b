"""A model of HDFS below our client: files that are being written show, and requests fail, are lost, or come late."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from penstock.objects import hdfs_client
from penstock.objects.object_folder import ObjectFolder
from penstock.objects.object_stores import Patience, Place

__all__ = ["HdfsFate", "ModelledHdfs"]

HdfsFate = Literal["well", "answer lost", "fails", "fails and arrives late"]
"""What becomes of a request that changes something; whatever it is but well, the client of a run may ask again."""
_PATIENCE = Patience(connect_ms=1_000, read_ms=60_000, request_ms=60_000, retries=1, retry_ms=60_000)


@dataclass
class _Status:
    path: str
    length: int
    isdir: bool
    modification_time: int = 0
    blocksize: int = 128 << 20


class ModelledHdfs(ObjectFolder):
    """A folder of HDFS in memory; `fate` decides what becomes of each request that changes something.

    A file has blocks of `block_bytes`. Of those that are in `unsynced`, a power cut takes what it has.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, fate: Callable[[], HdfsFate] = lambda: "well"
    ) -> None:
        super().__init__(Place("hdfs", "namenode:8020", "rooms"), {}, _PATIENCE)
        self.files: dict[str, bytes] = {}
        self.late: list[Callable[[], object]] = []
        self.replaces = False
        self.block_bytes = 128 << 20
        self.unsynced: set[tuple[str, int]] = set()
        self._fate = fate
        monkeypatch.setattr(hdfs_client, "client_of", lambda _: self._model)
        monkeypatch.setattr(hdfs_client, "_FIRST_PAUSE_S", 0.0)
        self._model = _Client(self)

    def arrive(self) -> None:
        """Let the requests arrive that are under way."""
        for request in self.late:
            try:
                request()
            except (OSError, RuntimeError):
                # Nobody is told.
                continue
        self.late.clear()

    def forget(self, name: str) -> None:
        self.files.pop(f"/rooms/{name}", None)

    def change(self, request: Callable[[], Any]) -> Any:
        """Have a request done, or not."""
        fate = self._fate()
        if fate == "fails and arrives late":
            self.late.append(request)
        if fate.startswith("fails"):
            raise OSError("Connection reset by peer")
        found = request()
        if fate == "answer lost":
            raise OSError("Connection reset by peer")
        return found


class _Client:
    """What the library's client does."""

    def __init__(self, hdfs: ModelledHdfs) -> None:
        self._hdfs = hdfs

    def create(self, path: str, _options: object) -> _Writer:
        self._hdfs.change(lambda: self._hdfs.files.setdefault(path, b""))
        return _Writer(self._hdfs, path)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        def rename() -> None:
            files = self._hdfs.files
            if source not in files:
                raise FileNotFoundError(f"rename source {source} is not found.")
            if target in files and not (overwrite or self._hdfs.replaces):
                raise FileExistsError(f"rename destination {target} already exists")
            files[target] = files.pop(source)

        self._hdfs.change(rename)

    def delete(self, path: str) -> bool:
        def delete() -> bool:
            if any(name.startswith(f"{path}/") for name in self._hdfs.files):
                raise RuntimeError('RPCError("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "")')
            return self._hdfs.files.pop(path, None) is not None

        return bool(self._hdfs.change(delete))

    def get_file_info(self, path: str) -> _Status:
        if path in self._hdfs.files:
            return _Status(path, len(self._hdfs.files[path]), isdir=False, blocksize=self._hdfs.block_bytes)
        if any(name.startswith(f"{path}/") for name in self._hdfs.files):
            return _Status(path, 0, isdir=True)
        raise FileNotFoundError(path)

    def list_status(self, path: str, recursive: bool = False) -> Iterator[_Status]:
        self.get_file_info(path)
        for name, content in sorted(self._hdfs.files.items()):
            if name.startswith(f"{path}/") and (recursive or posixpath.dirname(name) == path):
                yield _Status(name, len(content), isdir=False)

    def read(self, path: str) -> _Reader:
        if path not in self._hdfs.files:
            raise FileNotFoundError(f"File does not exist: {path}")
        return _Reader(self._hdfs.files[path])


class _Writer:
    def __init__(self, hdfs: ModelledHdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._content = b""

    def write(self, content: bytes) -> None:
        first = len(self._content) // self._hdfs.block_bytes
        self._content += content
        self._hdfs.unsynced.update((self._path, block) for block in range(first, self._last_block() + 1))

    def hsync(self) -> None:
        # The blocks before the last one have been closed.
        self._hdfs.unsynced.discard((self._path, self._last_block()))
        self._hdfs.change(self._show)

    def _last_block(self) -> int:
        return (len(self._content) - 1) // self._hdfs.block_bytes

    def close(self) -> None:
        self._hdfs.change(self._show)

    def _show(self) -> None:
        if self._path in self._hdfs.files:
            self._hdfs.files[self._path] = self._content


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def read_range(self, start: int, length: int) -> bytes:
        assert start + length <= len(self._content), "the library panics"
        return self._content[start : start + length]
