"""Bucket client: objects in a bucket or container of S3, Google Cloud Storage or Azure."""

# ruff: noqa: D102  # as declared in StoreClient
from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from penstock.errors import BindingError, ExternalSystemError, PenstockError, PlaceMissingError
from penstock.objects.object_stores import Patience, Place, is_denied, is_without_bucket, store_of, why
from penstock.objects.store_client import FoundObject

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["BucketClient"]

_stores: Final[dict[tuple[object, ...], ObjectStore]] = {}
_lock: Final = threading.Lock()
_MAX_STORES: Final = 64


class _NoBucketError(Exception):
    """There is no bucket, which the library takes for a missing object."""


class BucketClient:
    """The objects of one bucket. See `StoreClient`."""

    def __init__(self, place: Place, settings: Mapping[str, str], patience: Patience) -> None:
        self._place: Final = place
        self._settings: Final = settings
        self._patience: Final = patience

    def put(self, path: str, content: IO[bytes]) -> None:
        import obstore

        obstore.put(self._store(), path, content)

    def create(self, path: str, content: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store(), path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def read(self, path: str) -> bytes:
        import obstore

        with _bucket_is_there():
            return bytes(obstore.get(self._store(), path).bytes())

    def read_range(self, path: str, start: int, length: int) -> bytes:
        import obstore

        return bytes(obstore.get_range(self._store(), path, start=start, length=length))

    def copy(self, path: str, file: IO[bytes]) -> None:
        import obstore

        with _bucket_is_there():
            for block in obstore.get(self._store(), path).stream():
                file.write(block)

    def size(self, path: str) -> int:
        import obstore

        # The answer to this request has no body, so it cannot say that the bucket is missing.
        with _bucket_is_there():
            return obstore.head(self._store(), path)["size"]

    def remove(self, paths: Sequence[str]) -> None:
        import obstore

        try:
            obstore.delete(self._store(), list(paths))
        except FileNotFoundError as e:
            if is_without_bucket(e):
                raise
            # Google and Azure tell that one is not there; others may be left then.
            for path in paths:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store(), path)

    def remove_unfinished(self, path: str) -> None:
        """Do nothing: unfinished objects do not appear."""

    def objects(self, path: str, after: str) -> Iterator[FoundObject]:
        import obstore

        for block in obstore.list(self._store(), path or None, offset=after or None):
            for one in block:
                modified_ns = int(one["last_modified"].timestamp() * 1e9)
                yield FoundObject(one["path"], one["size"], modified_ns)

    def folders(self, path: str) -> list[str]:
        import obstore

        found = obstore.list_with_delimiter(self._store(), path)["common_prefixes"]
        return [one.rstrip("/").removeprefix(f"{path}/") for one in found]

    def error_of(self, error: BaseException, what: str) -> PenstockError:
        cause = error.__cause__ if isinstance(error, _NoBucketError) and error.__cause__ else error
        text = f"{what}: {why(cause, self._place)}."
        if is_without_bucket(cause):
            return PlaceMissingError(f"{text} Create it, or correct the URI.")
        return BindingError(text) if is_denied(cause) else ExternalSystemError(text)

    def _store(self) -> ObjectStore:
        """Return this process's client, which keeps its connections."""
        key = (
            os.getpid(),
            self._place.scheme,
            self._place.host,
            self._patience,
            *sorted(self._settings.items()),
        )
        with _lock:
            if key not in _stores:
                if len(_stores) >= _MAX_STORES:
                    # Keys of a binding may have been replaced many times.
                    del _stores[next(iter(_stores))]
                _stores[key] = store_of(self._place, {**os.environ, **self._settings}, self._patience)
            return _stores[key]


@contextmanager
def _bucket_is_there() -> Iterator[None]:
    """Tell a missing bucket from a missing object."""
    try:
        yield
    except FileNotFoundError as e:
        if is_without_bucket(e):
            raise _NoBucketError from e
        raise
