"""Savepoints: snapshots that belong to the user, found by their ids beside the checkpoint of the job."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import NotThereError, PenstockError
from penstock.snapshots.manifest import MANIFEST, Manifest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["dispose", "new_id", "place_of", "savepoints", "savepoints_folder"]


def savepoints_folder(checkpoint: Path) -> Path:
    """Where the savepoints of a checkpoint are by default: beside it, so that they outlive it."""
    return checkpoint.with_name(f"{checkpoint.name}.savepoints")


def new_id(now: dt.datetime) -> str:
    """An id for a savepoint, which sorts by time."""
    return f"sp-{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def place_of(name: str, checkpoint: Path) -> str:
    """Where a savepoint is: the name is a place, or an id. Raises NotThereError for an id that is not known."""
    if "/" in name or Path(name, MANIFEST).exists():
        return name
    place = savepoints_folder(checkpoint) / name
    if not (place / MANIFEST).exists():
        known = ", ".join(found.id for _, found in savepoints(str(savepoints_folder(checkpoint)))) or "none"
        raise NotThereError(
            f"There is no savepoint {name!r} in {place.parent}; it has {known}. Name one of them, or the "
            "place of another."
        )
    return str(place)


def savepoints(uri: str) -> Iterator[tuple[str, Manifest]]:
    """The finished savepoints in a folder or under a prefix, with their places, oldest first."""
    store = open_store(uri)
    for path in store.list():
        if path.count("/") == 1 and path.endswith(f"/{MANIFEST}"):
            place = f"{uri.rstrip('/')}/{path.removesuffix(f'/{MANIFEST}')}"
            try:
                yield place, read_manifest(open_store(place))
            except PenstockError:
                # What is damaged is not a savepoint that one can start from; `penstock state verify` says more.
                continue


def dispose(uri: str) -> int:
    """Delete a savepoint, the manifest first, so that what is left of it counts no more; gives the number of files."""
    store = open_store(uri)
    read_manifest(store)
    paths = store.list()
    for path in sorted(paths, key=lambda path: (path != MANIFEST, path)):
        store.delete(path)
    return len(paths)
