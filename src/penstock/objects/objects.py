"""Objects: one object of an object store, read whole, within bounds of size and time.

Endpoint and credentials come from the environment of the process, never from the URI (docs/object_stores.md).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from penstock.errors import ExternalSystemError
from penstock.objects.hdfs_client import HdfsClient
from penstock.objects.object_stores import Patience, Place, is_host, store_of, why

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["OBJECT_SCHEMES", "ObjectError", "read_object"]

OBJECT_SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "hdfs")
"""The schemes of the URIs of objects, with files of HDFS."""

_CHUNK_BYTES: Final = 256 * 1024


class ObjectError(ExternalSystemError):
    """An object cannot be read. The message names it and the reason, and contains no secrets."""


def read_object(uri: str, max_bytes: int, *, timeout_ms: int = 10_000) -> bytes:
    """Return the content of an object, such as `s3://bucket/path/name`, `gs://` or `az://container/name`.

    Args:
        uri: the address of the object.
        max_bytes: the largest size that is accepted; a larger object is refused before its content is read.
        timeout_ms: how long one request may take, content included. An unreachable host takes less; the whole call
            takes at most 5 s longer.

    Raises:
        ObjectError: the bucket or object does not exist, access is denied, the host does not answer, the object is
            too large, or the URI or the environment is malformed.

    """
    place = _place_of(uri)
    if place.family == "hdfs":
        return _content_of_file(place, max_bytes, timeout_ms)
    # A host that never answers is given up after 6 to 7 s, and no request begins after 5 s.
    patience = Patience(connect_ms=3000, read_ms=3000, request_ms=timeout_ms, retries=2, retry_ms=4000)
    try:
        store = store_of(place, os.environ, patience)
        return _content(store, place, max_bytes)
    except ObjectError:
        raise
    except BaseException as e:
        raise ObjectError(f"{place.shown!r} cannot be read: {why(e, place)}") from None


def _place_of(uri: str) -> Place:
    scheme, _, rest = uri.partition("://")
    host, _, name = rest.partition("/")
    if "@" in host:
        shown = f"{scheme}://***@{host.rpartition('@')[2]}/..."
        raise ObjectError(f"{shown!r} has a user or account; these belong in the environment of the job")
    # obstore would drop a slash at either end, and read another object.
    whole = name and name.strip("/") == name and is_host(scheme, host)
    if scheme not in OBJECT_SCHEMES or not whole:
        raise ObjectError(
            f"{uri!r} does not name an object; it must be like s3://BUCKET/NAME, or hdfs://HOST:PORT/PATH"
        )
    return Place(scheme, host, name)


def _content(store: ObjectStore, place: Place, max_bytes: int) -> bytes:
    import obstore

    found = obstore.get(store, place.name)
    content = bytearray()
    too_large = found.meta["size"] > max_bytes
    if not too_large:
        for chunk in found.stream(_CHUNK_BYTES):
            content += chunk
            if too_large := len(content) > max_bytes:
                break
    if too_large:
        raise ObjectError(f"{place.shown!r} is larger than {max_bytes} bytes")
    return bytes(content)


def _content_of_file(place: Place, max_bytes: int, timeout_ms: int) -> bytes:
    patience = Patience(3000, timeout_ms, timeout_ms, retries=2, retry_ms=4000)
    client = HdfsClient(place, patience)
    try:
        is_small = client.size(place.name) <= max_bytes
        content = client.read(place.name) if is_small else b""
    except BaseException as e:
        text = str(client.error_of(e, f"{place.shown!r} cannot be read"))
        raise ObjectError(text.removesuffix(".")) from None
    if not is_small or len(content) > max_bytes:
        raise ObjectError(f"{place.shown!r} is larger than {max_bytes} bytes")
    return content
