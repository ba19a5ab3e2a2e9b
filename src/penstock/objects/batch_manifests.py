"""Batch manifests: which objects of a folder are whole micro-batches, one small object for each of them.

```
PREFIX/SINK-LINE/BATCH-PARTITION-DIGEST.FORMAT    what a task has written; counts only if a manifest names it
PREFIX/_manifests/SINK-LINE/BATCH.json            the manifest of a micro-batch, created once
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from penstock.errors import ExternalSystemError
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Place, is_host
from penstock.objects.objects import OBJECT_SCHEMES, ObjectError

__all__ = [
    "BatchFile",
    "BatchManifest",
    "BatchManifests",
    "committed_objects",
    "manifest_lines",
    "manifest_names",
    "read_manifest",
]

_FOLDER: Final = "_manifests"
_NAME: Final = re.compile(r"(\d{10,})\.json")
_ABOUT: Final = "about.json"
_AT_ONCE: Final = 16


class BatchFile(msgspec.Struct, frozen=True):
    """An object with records of a micro-batch; `name` is relative to the prefix."""

    name: str
    records: int
    bytes: int


class BatchManifest(msgspec.Struct, frozen=True):
    """The objects of a micro-batch, in the order of its records."""

    batch: int
    files: list[BatchFile]

    @property
    def records(self) -> int:
        """How many records they have."""
        return sum(file.records for file in self.files)


class BatchManifests:
    """The manifests of one line: those of a sink, from one checkpoint."""

    def __init__(self, folder: ObjectFolder, line: str) -> None:
        self._folder: Final = folder
        self._line: Final = line
        self._at: Final = f"{_FOLDER}/{line}"

    def begin(self) -> bool:
        """Write the description of the line; return False if the store overwrites objects that must be created once."""
        about = msgspec.json.encode({"line": self._line})
        return not (self._create(_ABOUT, about) and self._create(_ABOUT, about))

    def commit(self, manifest: BatchManifest) -> BatchManifest:
        """Make a micro-batch visible, and return the manifest that it has: this one, unless there was one before."""
        name = f"{manifest.batch:010}.json"
        if self._create(name, msgspec.json.encode(manifest)):
            return manifest
        return _read(self._folder, f"{self._at}/{name}")

    def newest(self, known: int) -> int:
        """Return the newest micro-batch that has a manifest; `known` if no later one has."""
        after = f"{known:010}.json" if known >= 0 else ""
        return max((int(name.removesuffix(".json")) for name in self._names(after)), default=known)

    def _names(self, after: str = "") -> Iterator[str]:
        return (name for name in self._folder.names(self._at, after) if _NAME.fullmatch(name))

    def _create(self, name: str, content: bytes) -> bool:
        return self._folder.create(f"{self._at}/{name}", content)


def committed_objects(uri: str) -> list[str]:
    """Return the URIs of the objects of all whole micro-batches below `s3://BUCKET/PREFIX`, `gs://`, `az://` or `hdfs://`.

    Those of one sink and checkpoint are in the order of its micro-batches. Endpoint and credentials come from the
    environment. Raises ObjectError for another URI, and the errors of `ObjectFolder`.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if scheme not in OBJECT_SCHEMES or not is_host(scheme, bucket):
        raise ObjectError(f"{uri!r} is not of the form s3://BUCKET/PREFIX")
    folder = ObjectFolder(Place(scheme, bucket, prefix), {}, IN_HASTE)
    names = [name for name in folder.names(_FOLDER) if _NAME.fullmatch(name.rpartition("/")[2])]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        manifests = pool.map(lambda name: _read(folder, f"{_FOLDER}/{name}"), sorted(names, key=_order))
        return [
            f"{folder.place.shown.rstrip('/')}/{file.name}" for found in manifests for file in found.files
        ]


def manifest_lines(folder: ObjectFolder) -> list[str]:
    """Return the lines that have manifests in a folder: one for each sink and checkpoint."""
    return folder.folders(_FOLDER)


def manifest_names(folder: ObjectFolder, line: str, after: str = "") -> list[str]:
    """Return the names of the manifests of a line after one of them, in the order of its micro-batches."""
    at = f"{_FOLDER}/{line}"
    names = folder.names(at, after.removeprefix(f"{at}/"))
    return [f"{at}/{name}" for name in sorted(filter(_NAME.fullmatch, names), key=_order)]


def read_manifest(folder: ObjectFolder, name: str) -> BatchManifest:
    """Return a manifest by its name below the prefix."""
    return _read(folder, name)


def _order(name: str) -> tuple[str, int]:
    line, _, last = name.rpartition("/")
    return line, int(last.removesuffix(".json"))


def _read(folder: ObjectFolder, name: str) -> BatchManifest:
    try:
        return msgspec.json.decode(folder.read(name), type=BatchManifest)
    except msgspec.MsgspecError as e:
        raise ExternalSystemError(
            f"{folder.place.shown}: {name!r} is not a manifest of penstock ({e}). If it is damaged, restore it; "
            "otherwise give the sink a prefix of its own."
        ) from e
