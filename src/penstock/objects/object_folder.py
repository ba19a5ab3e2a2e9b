"""Object folder: the objects below a prefix of a store, written whole, and created once if that matters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Final

from penstock.objects.bucket_client import BucketClient
from penstock.objects.hdfs_client import HdfsClient
from penstock.objects.object_stores import Patience, Place
from penstock.objects.store_client import FoundObject, StoreClient

__all__ = ["AT_WORK", "IN_HASTE", "FoundObject", "ObjectFolder"]

AT_WORK: Final = Patience(connect_ms=5_000, read_ms=60_000, request_ms=600_000, retries=30, retry_ms=30_000)
"""For requests of a running job: a server may be away for half a minute, as during a restart."""
IN_HASTE: Final = Patience(connect_ms=3_000, read_ms=10_000, request_ms=20_000, retries=2, retry_ms=4_000)
"""For those of a start, where somebody waits for the message."""


class ObjectFolder:
    """The objects below a prefix. Names are relative to it, with `/` between their parts.

    `settings` are environment variables that override those of the process. All methods raise
    PlaceMissingError when there is no bucket, BindingError when access is denied, and ExternalSystemError when the
    store cannot be asked.
    """

    def __init__(self, place: Place, settings: Mapping[str, str], patience: Patience) -> None:
        self.place: Final = place
        self._settings: Final = dict(settings)
        is_hdfs = place.family == "hdfs"
        self._client: Final[StoreClient] = (
            HdfsClient(place, patience) if is_hdfs else BucketClient(place, self._settings, patience)
        )

    def put(self, name: str, content: IO[bytes]) -> None:
        """Write an object, which is there whole or not at all; one of the same name is replaced."""
        with self._errors(f"{name!r} cannot be written"):
            self._client.put(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless one of this name is there; return whether it was written.

        False may also mean that the same was written before, by a request whose answer was lost.
        """
        with self._errors(f"{name!r} cannot be written"):
            return self._client.create(self._path(name), content)

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        with self._errors(f"{name!r} cannot be read"):
            return self._client.read(self._path(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of an object's content."""
        with self._errors(f"{name!r} cannot be read"):
            return self._client.read_range(self._path(name), start, length)

    def find(self, name: str) -> bytes | None:
        """Return the content of an object, None if there is none of this name."""
        with self._errors(f"{name!r} cannot be read"):
            try:
                return self._client.read(self._path(name))
            except FileNotFoundError:
                return None

    def holds(self, name: str) -> bool:
        """Return whether there is an object of this name, without its content."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, None if there is none of this name."""
        with self._errors(f"{name!r} cannot be read"):
            try:
                return self._client.size(self._path(name))
            except FileNotFoundError:
                return None

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, if they are there."""
        with self._errors("objects cannot be removed"):
            self._client.remove([self._path(name) for name in names])

    def remove_unfinished(self) -> None:
        """Remove the remains of writes that were broken off long ago."""
        with self._errors("objects cannot be removed"):
            self._client.remove_unfinished(self.place.name)

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        """Return the names in a folder, without the folder, that sort after another one.

        A bucket is asked only for those, however many there are before.
        """
        path = self._path(folder)
        with self._errors("cannot be listed"):
            for one in self._client.objects(path, f"{path}/{after}" if after else ""):
                yield one.name.removeprefix(f"{path}/")

    def objects(self, after: str = "") -> Iterator[FoundObject]:
        """Return the objects below the prefix whose names sort after another one, in no particular order."""
        root = self._path("")
        with self._errors("cannot be listed"):
            for one in self._client.objects(root.rstrip("/"), root + after if after else ""):
                yield FoundObject(one.name.removeprefix(root), one.size, one.modified_ns)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        with self._errors("cannot be listed"):
            return sorted(self._client.folders(self._path(folder)))

    def copy(self, name: str, file: IO[bytes]) -> None:
        """Copy the content of an object to a file. Raises FileNotFoundError when there is no such object."""
        is_missing = False
        with self._errors(f"{name!r} cannot be read"):
            try:
                self._client.copy(self._path(name), file)
            except FileNotFoundError:
                is_missing = True
        if is_missing:
            raise FileNotFoundError(f"{self.place.shown}/{name}")

    @property
    def environ(self) -> dict[str, str]:
        """The environment by which the store is reached, with the secrets in it."""
        return {**os.environ, **self._settings}

    def _path(self, name: str) -> str:
        return f"{self.place.name}/{name}" if self.place.name else name

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as e:
            # The cause is omitted, since it may contain secrets.
            raise self._client.error_of(e, f"{self.place.shown}: {what}") from None
