"""Cluster state: the needs of a job whose checkpoint is on an object store and whose tasks share no folder with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from penstock.bindings.secrets import redact
from penstock.bindings.types import Binding, DeltaBinding, FilesBinding, IcebergBinding, SparkBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.state_place import place_state
from penstock.checkpoints.stored_home import place_of_home
from penstock.checkpoints.stored_library import StoredLibrary
from penstock.checkpoints.stored_seed import StoredSeed
from penstock.errors import BindingError, CheckpointError
from penstock.models.library import MODELS
from penstock.models.library_places import ANSWERS, FolderPlace, LibraryPlace, StorePlace
from penstock.objects.object_stores import find_endpoint
from penstock.runtime.initial_state import Seed
from penstock.runtime.seed import FolderSeed
from penstock.savepoints.mounted_state import mount_of
from penstock.sources.fetched import KeptInFolder, KeptInStore
from penstock.spark.state_mount import StateMount
from penstock.streams.graph import COMMANDS
from penstock.streams.own_streams import RECEIPTS

__all__ = [
    "check_reach",
    "kept_answers",
    "kept_files",
    "library_of_driver",
    "library_of_tasks",
    "mount_state",
    "seed_of",
    "stored_library",
]

_FETCHED: Final = "fetched"

# The host of a URI as Java accepts it: the last one of several labels begins with a letter.
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"{_LABEL}|({_LABEL}\.)+(?=[a-zA-Z]){_LABEL}")


def mount_state(checkpoint: Checkpoint, master: str) -> StateMount | None:
    """Return where Spark keeps the state of the next run; None if that is the folder of the checkpoint.

    Raises CheckpointError when the state cannot be used there.
    """
    stored = checkpoint.stored
    if stored is None:
        return None
    place = place_state(checkpoint.folder, stored.shown, is_local=master.startswith("local"))
    if place is None:
        return None
    home = place_of_home(stored.shown)
    if home.family not in ("s3", "hdfs"):
        raise CheckpointError(
            f"The tasks of a job on {master} write its state to the store of its checkpoint, which must be S3, speak "
            f"its protocol, or be HDFS, and {stored.shown} is not. Use s3://, hdfs://, local[*], or a folder that all "
            "machines share."
        )
    if home.family == "s3" and not _HOST.fullmatch(home.host):
        raise CheckpointError(
            f"The tasks of a job on {master} write its state with Hadoop's client, which takes no bucket with the name "
            f"{home.host!r}. Use a bucket whose name has letters, digits and hyphens, local[*], or a folder that all "
            "machines share."
        )
    stored.check_state(place)
    return mount_of(stored.place_of(place.prefix), checkpoint.folder)


def seed_of(checkpoint: Checkpoint, master: str) -> Seed:
    """Return the initial state of a job where tasks can read it: in the folder or the store of the checkpoint."""
    stored = checkpoint.stored
    if stored is None or master.startswith("local"):
        return FolderSeed(checkpoint.seed)
    return StoredSeed(stored, checkpoint.seed.name, find_endpoint(os.environ))


def kept_files(checkpoint: Checkpoint) -> KeptInFolder | KeptInStore:
    """Return where tasks keep the files that commands name: durably, beside the checkpoint, within reach of all."""
    if checkpoint.stored is not None:
        return KeptInStore(checkpoint.stored.place_of(_FETCHED), find_endpoint(os.environ))
    return KeptInFolder(str(checkpoint.folder / _FETCHED))


def kept_answers(checkpoint: Checkpoint) -> LibraryPlace:
    """Return where tasks keep the answers of external systems: durably, beside the checkpoint."""
    if checkpoint.stored is None:
        return FolderPlace(str(checkpoint.folder / MODELS / ANSWERS))
    return StorePlace(checkpoint.stored.place_of(ANSWERS), tuple(find_endpoint(os.environ).items()))


def stored_library(checkpoint: Checkpoint) -> StoredLibrary | None:
    """Return the library of models of a checkpoint on a store, None for a checkpoint in a folder."""
    if checkpoint.stored is None:
        return None
    return StoredLibrary(checkpoint.stored, find_endpoint(os.environ))


def library_of_tasks(checkpoint: Checkpoint, master: str) -> LibraryPlace:
    """Return the library of models for the tasks of a job."""
    stored = stored_library(checkpoint)
    if stored is None:
        return library_of_driver(checkpoint)
    return stored.of_tasks(apart=not master.startswith("local"))


def library_of_driver(checkpoint: Checkpoint) -> FolderPlace:
    """Return the library of models for the driver of a job."""
    stored = stored_library(checkpoint)
    return FolderPlace(str(checkpoint.folder / MODELS)) if stored is None else stored.of_driver


def check_reach(bindings: Mapping[str, Binding], shown: str, master: str) -> None:
    """Check that tasks on a cluster, which share only a store, can reach everything that the job reads and writes.

    Files of commands travel with the plan of a micro-batch, and the driver writes receipts.
    Raises BindingError for a stream or sink in a folder.
    """
    for name, binding in bindings.items():
        is_carried = name == COMMANDS and isinstance(binding, FilesBinding)
        if _is_in_folder(binding) and not is_carried and name != RECEIPTS:
            raise BindingError(
                f"{name!r} is bound to {redact(binding.uri)!r}, a folder, which the workers of {master} need not "
                f"share: the checkpoint {shown} is on an object store. Bind it to Kafka, to an object store or to "
                "another server, or use a shared folder for the checkpoint."
            )


def _is_in_folder(binding: Binding) -> bool:
    if isinstance(binding, IcebergBinding):
        return binding.catalog.startswith("sqlite:") or (binding.warehouse or "").startswith("file:")
    if isinstance(binding, DeltaBinding):
        return not binding.bucket
    return isinstance(binding, FilesBinding | SparkBinding)
