"""Savepoints: snapshots that belong to the user, found by their ids next to the checkpoint of the job."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import NotThereError, PenstockError
from penstock.snapshots.manifest import MANIFEST, Manifest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["dispose", "list_savepoints", "new_id", "place_of", "savepoints_folder"]


def savepoints_folder(checkpoint: Path) -> Path:
    """Return the default folder for the savepoints of a checkpoint: next to it, so that they outlive it."""
    return checkpoint.with_name(f"{checkpoint.name}.savepoints")


def new_id(now: dt.datetime) -> str:
    """Create an id for a savepoint. Ids sort by time."""
    return f"sp-{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def place_of(name: str, checkpoint: Path) -> str:
    """Return the place of a savepoint; the name is a place or an id. Raises NotThereError for an unknown id."""
    if "/" in name or Path(name, MANIFEST).exists():
        return name
    place = savepoints_folder(checkpoint) / name
    if not (place / MANIFEST).exists():
        known = (
            ", ".join(found.id for _, found in list_savepoints(str(savepoints_folder(checkpoint)))) or "none"
        )
        raise NotThereError(
            f"There is no savepoint {name!r} in {place.parent}; it has {known}. Name one of them, or the "
            "place of another."
        )
    return str(place)


def list_savepoints(uri: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the finished savepoints in a folder or under a prefix, with their places, oldest first."""
    store = open_store(uri)
    for path in store.list():
        if path.count("/") == 1 and path.endswith(f"/{MANIFEST}"):
            place = f"{uri.rstrip('/')}/{path.removesuffix(f'/{MANIFEST}')}"
            try:
                yield place, read_manifest(open_store(place))
            except PenstockError:
                # A job cannot start from a damaged savepoint; `penstock state verify` says more.
                continue


def dispose(uri: str) -> int:
    """Delete a savepoint, the manifest first, so that the rest no longer counts; return the number of files."""
    store = open_store(uri)
    read_manifest(store)
    paths = store.list()
    for path in sorted(paths, key=lambda path: (path != MANIFEST, path)):
        store.delete(path)
    return len(paths)
