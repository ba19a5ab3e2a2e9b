"""Object folder: the objects below a prefix of a bucket, written whole, and created once if that matters."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.objects.object_stores import Patience, Place, is_denied, is_without_bucket, store_of, why

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["AT_WORK", "IN_HASTE", "FoundObject", "ObjectFolder"]

AT_WORK: Final = Patience(connect_ms=5_000, read_ms=60_000, request_ms=600_000, retries=30, retry_ms=30_000)
"""For requests of a running job: a server may be away for half a minute, as when it is started anew."""
IN_HASTE: Final = Patience(connect_ms=3_000, read_ms=10_000, request_ms=20_000, retries=2, retry_ms=4_000)
"""For those of a start, where somebody waits for the message."""

_stores: Final[dict[tuple[object, ...], ObjectStore]] = {}
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class FoundObject:
    """An object in a list: its name below the prefix, its size, and when it was written, in nanoseconds since 1970."""

    name: str
    size: int
    modified_ns: int


class ObjectFolder:
    """What is below a prefix. Names are relative to it, with `/` between their parts.

    `settings` are environment variables that count more than those of the process. All methods raise
    PlaceMissingError when there is no bucket, BindingError when access is denied, and ExternalSystemError when the
    store cannot be asked.
    """

    def __init__(self, place: Place, settings: Mapping[str, str], patience: Patience) -> None:
        self.place: Final = place
        self._settings: Final = dict(settings)
        self._patience: Final = patience

    def put(self, name: str, content: IO[bytes]) -> None:
        """Write an object, which is there whole or not at all; one of the same name is replaced."""
        import obstore

        with self._errors(f"{name!r} cannot be written"):
            obstore.put(self._store(), self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless one of this name is there; return whether it was written.

        False may also mean that the same was written before, by a request whose answer was lost.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors(f"{name!r} cannot be written"):
            try:
                obstore.put(self._store(), self._path(name), content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        import obstore

        with self._errors(f"{name!r} cannot be read"):
            return bytes(obstore.get(self._store(), self._path(name)).bytes())

    def find(self, name: str) -> bytes | None:
        """Return the content of an object, None if there is none of this name."""
        import obstore

        with self._errors(f"{name!r} cannot be read"):
            try:
                return bytes(obstore.get(self._store(), self._path(name)).bytes())
            except FileNotFoundError as e:
                if is_without_bucket(e):
                    raise
                return None

    def holds(self, name: str) -> bool:
        """Return whether there is an object of this name, without its content."""
        import obstore

        with self._errors(f"{name!r} cannot be read"):
            try:
                obstore.head(self._store(), self._path(name))
            except FileNotFoundError as e:
                # The answer to this request has no body that could tell that there is no bucket.
                if is_without_bucket(e):
                    raise
                return False
            return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, if they are there."""
        import obstore

        with self._errors("objects cannot be removed"):
            obstore.delete(self._store(), [self._path(name) for name in names])

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        """Return the names in a folder, without the folder, that sort behind another one.

        The store is asked only for those, however many there are before.
        """
        import obstore

        path = self._path(folder)
        with self._errors("cannot be listed"):
            for block in obstore.list(self._store(), path, offset=f"{path}/{after}" if after else None):
                yield from (one["path"].removeprefix(f"{path}/") for one in block)

    def objects(self, after: str = "") -> Iterator[FoundObject]:
        """Return the objects below the prefix whose names sort behind another one, in no particular order."""
        import obstore

        root = self._path("")
        with self._errors("cannot be listed"):
            for block in obstore.list(
                self._store(), root.rstrip("/") or None, offset=root + after if after else None
            ):
                for one in block:
                    modified_ns = int(one["last_modified"].timestamp() * 1e9)
                    yield FoundObject(one["path"].removeprefix(root), one["size"], modified_ns)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        import obstore

        path = self._path(folder)
        with self._errors("cannot be listed"):
            found = obstore.list_with_delimiter(self._store(), path)["common_prefixes"]
        return sorted(one.rstrip("/").removeprefix(f"{path}/") for one in found)

    def copy(self, name: str, file: IO[bytes]) -> None:
        """Copy the content of an object to a file. Raises FileNotFoundError when there is no such object."""
        import obstore

        is_missing = False
        with self._errors(f"{name!r} cannot be read"):
            try:
                for block in obstore.get(self._store(), self._path(name)).stream():
                    file.write(block)
            except FileNotFoundError as e:
                if is_without_bucket(e):
                    raise
                is_missing = True
        if is_missing:
            raise FileNotFoundError(f"{self.place.shown}/{name}")

    @property
    def environ(self) -> dict[str, str]:
        """The environment by which the store is reached, with the secrets in it."""
        return {**os.environ, **self._settings}

    def _path(self, name: str) -> str:
        return f"{self.place.name}/{name}" if self.place.name else name

    def _store(self) -> ObjectStore:
        """Return this process's client, which keeps its connections."""
        key = (
            os.getpid(),
            self.place.scheme,
            self.place.host,
            self._patience,
            *sorted(self._settings.items()),
        )
        with _lock:
            if key not in _stores:
                _stores[key] = store_of(self.place, self.environ, self._patience)
            return _stores[key]

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as e:
            # The cause is omitted, since it may contain secrets.
            text = f"{self.place.shown}: {what}: {why(e, self.place)}."
            if is_without_bucket(e):
                raise PlaceMissingError(f"{text} Create it, or correct the URI.") from None
            if is_denied(e):
                raise BindingError(text) from None
            raise ExternalSystemError(text) from None
