"""Synced files of Iceberg: files in a local folder are on disk before anything names them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.base.durable import make_folder, sync_folder

__all__ = ["SyncedIO"]

_BUFFER_BYTES: Final = 1 << 20


class SyncedIO(PyArrowFileIO):
    """Files of a table, in a local folder or an object store.

    The catalog is durable, but a metadata file that it names would not be after a power cut, as pyiceberg writes it.
    """

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that can be written once."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedOutput(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedOutput(PyArrowFile):
    """A local file that is on disk, with its name, when it is closed."""

    def create(self, overwrite: bool = False) -> io.BufferedWriter:
        """Begin the file."""
        path = Path(self._path)
        make_folder(path.parent)
        return io.BufferedWriter(_SyncedFile(path, "w" if overwrite else "x"), _BUFFER_BYTES)


class _SyncedFile(io.FileIO):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._folder: Final = path.parent

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync_folder(self._folder)
