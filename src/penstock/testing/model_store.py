"""Model store: the models of a job in the process of a test, in a temporary folder that stands for its checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.models.library import MODELS
from penstock.models.library_places import ANSWERS, FolderPlace
from penstock.savepoints.source_files import copy_models
from penstock.snapshots.manifest import FileEntry, Manifest
from penstock.snapshots.snapshot_reader import read_file
from penstock.snapshots.stores import Store
from penstock.testing.batch_runner import BatchRunner

__all__ = ["ModelStore", "load_order", "models_in", "put_models", "store_of"]

_INCOMING: Final = "incoming"
_FETCHED: Final = "fetched"


class ModelStore:
    """The folder of a runner's models, and the place from which it may load some. It is removed with this object."""

    def __init__(self, runner: BatchRunner) -> None:
        self._folder: Final = tempfile.TemporaryDirectory(prefix="penstock-models-")
        self.path: Final = Path(self._folder.name).resolve()
        (self.path / _INCOMING).mkdir()
        library = self.path / MODELS
        runner.plan = dataclasses.replace(
            runner.plan, library=FolderPlace(str(library)), answers=FolderPlace(str(library / ANSWERS))
        )
        runner.fetched_folder = runner.fetched_folder or str(self.path / _FETCHED)
        runner.allow_read = [*runner.allow_read, str(self.path / _INCOMING)]

    def offer(self, content: bytes) -> dict[str, str]:
        """Put a model where the job may read it; return its address and hash, as a command names them."""
        sha256 = hashlib.sha256(content).hexdigest()
        place = self.path / _INCOMING / sha256
        place.write_bytes(content)
        return {"uri": str(place), "sha256": sha256}


def store_of(runner: BatchRunner) -> ModelStore:
    """Return the store of a runner and of all its copies, which is made on the first call."""
    if runner.model_store is None:
        runner.model_store = ModelStore(runner)
    found: ModelStore = runner.model_store
    return found


def load_order(
    runner: BatchRunner, model: str, version: str, content: bytes, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Offer a model to a runner; return the payload of the command that loads it."""
    return {"model": model, "version": version, **store_of(runner).offer(content), **more}


def models_in(runner: BatchRunner, store: Store) -> tuple[FileEntry, ...]:
    """Copy the models of a runner into a savepoint."""
    return () if runner.model_store is None else copy_models(runner.model_store.path, store)


def put_models(runner: BatchRunner, manifest: Manifest, store: Store) -> None:
    """Put the models of a savepoint into the store of a runner."""
    for file in manifest.files:
        if file.path.startswith(f"{MODELS}/"):
            path = store_of(runner).path / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read_file(store, file))
