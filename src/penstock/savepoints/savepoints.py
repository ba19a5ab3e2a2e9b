"""Savepoints: snapshots that belong to the user, found by their ids next to the checkpoint of the job."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path

from penstock.checkpoints.stored_home import home_of
from penstock.errors import NotThereError, PenstockError
from penstock.snapshots.manifest import MANIFEST, Manifest
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store

__all__ = ["dispose", "list_savepoints", "new_id", "place_of", "savepoints_root"]


def savepoints_root(checkpoint: Path) -> str:
    """Return the default place for the savepoints of a checkpoint: next to it, so that they outlive it.

    `checkpoint` is its folder. If that is a working folder, the savepoints are on the object store of its home.
    """
    home = home_of(checkpoint)
    return f"{checkpoint if home is None else home.shown}.savepoints"


def new_id(now: dt.datetime) -> str:
    """Create an id for a savepoint. Ids sort by time."""
    return f"sp-{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def place_of(name: str, checkpoint: Path) -> str:
    """Return the place of a savepoint; the name is a place or an id. Raises NotThereError for an unknown id."""
    if "/" in name or Path(name, MANIFEST).exists():
        return name
    root = savepoints_root(checkpoint)
    place = f"{root}/{name}"
    if not open_store(place).exists(MANIFEST):
        known = ", ".join(found.id for _, found in list_savepoints(root)) or "none"
        raise NotThereError(
            f"There is no savepoint {name!r} in {root}; it has {known}. Name one of them, or the place of another."
        )
    return place


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
