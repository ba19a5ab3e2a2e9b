"""Plain clients of stores: put, list and get whole objects with nothing but obstore, or hdfs-native for HDFS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final, Protocol

import obstore
from hdfs_native import Client, WriteOptions

from penstock.objects.object_folder import AT_WORK
from penstock.objects.object_stores import Place, store_of

__all__ = ["PlainStore", "open_plain_store"]

_BLOCK_BYTES: Final = 8 << 20


class PlainStore(Protocol):
    """The objects below a prefix, by the paths that the client uses. `name` is the client's."""

    name: str

    def put(self, path: str, content: bytes | IO[bytes]) -> None:
        """Write an object."""

    def get(self, path: str) -> bytes:
        """Read an object."""

    def paths(self) -> Iterator[str]:
        """List the objects below the prefix."""


class _Obstore:
    name: str = "obstore"

    def __init__(self, scheme: str, bucket: str, prefix: str) -> None:
        self._store: Final = store_of(Place(scheme, bucket, prefix), os.environ, AT_WORK)
        self._prefix: Final = prefix

    def put(self, path: str, content: bytes | IO[bytes]) -> None:
        obstore.put(self._store, f"{self._prefix}/{path}", content)

    def get(self, path: str) -> bytes:
        return bytes(obstore.get(self._store, path).bytes())

    def paths(self) -> Iterator[str]:
        for block in obstore.list(self._store, self._prefix):
            yield from (one["path"] for one in block)


class _HdfsNative:
    """Files are synced to the DataNodes' disks: a file that is there is durable, as in a bucket."""

    name: str = "hdfs-native"

    def __init__(self, server: str, prefix: str) -> None:
        self._client: Final = Client(f"hdfs://{server}")
        self._folder: Final = f"/{prefix}"

    def put(self, path: str, content: bytes | IO[bytes]) -> None:
        place = f"{self._folder}/{path}"
        with self._client.create(place, WriteOptions(overwrite=True)) as file:
            file.write(content if isinstance(content, bytes) else content.read())
            file.hsync()

    def get(self, path: str) -> bytes:
        with self._client.read(path) as file:
            content: bytes = file.read()
        return content

    def paths(self) -> Iterator[str]:
        for one in self._client.list_status(self._folder, recursive=True):
            if not one.isdir:
                yield one.path


def open_plain_store(uri: str) -> PlainStore:
    """Return the plain client for `s3://BUCKET/PREFIX`, other buckets, or `hdfs://HOST:PORT/PREFIX`.

    Keys of buckets come from the environment.
    """
    scheme, _, rest = uri.partition("://")
    place, _, prefix = rest.partition("/")
    return _HdfsNative(place, prefix) if scheme == "hdfs" else _Obstore(scheme, place, prefix)
