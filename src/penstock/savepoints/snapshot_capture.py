"""Snapshot capture: write the state of a job after a committed micro-batch as a dump or savepoint. The job may run."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.committed_state import find_committed_batch
from penstock.checkpoints.described_state import read_described
from penstock.checkpoints.state_files import state_files
from penstock.errors import AlreadyThereError, CheckpointError
from penstock.runtime.cuts import batch_numbers, read_offsets
from penstock.runtime.seed import SlotReader, read_seed
from penstock.runtime.slots import first_key_groups
from penstock.savepoints.captured_tables import assemble
from penstock.savepoints.mounted_state import find_mounted_state
from penstock.savepoints.source_files import OvertakenError, copy_models, copy_own_files, copy_topic_ids
from penstock.snapshots.manifest import MANIFEST, FileEntry, Manifest, SnapshotKind
from penstock.snapshots.snapshot_writer import Contents
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import SnapshotFormat
from penstock.spark.stored_state import StateLocation, read_slots
from penstock.spark.types import SparkSession

__all__ = [
    "Capture",
    "capture",
    "check_committed",
    "positions_of",
    "read_step",
]

_MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class Capture:
    """A request to capture state: `batch` is the micro-batch, None the newest committed one.

    Unless `keeps_files` is off, a savepoint includes the files and journals of the sources, and a dump the identities
    of their Kafka topics; both include the models that the state refers to.
    """

    kind: SnapshotKind
    uri: str
    format: SnapshotFormat
    id: str | None = None
    batch: int | None = None
    created_at: str | None = None
    keeps_files: bool = True


def capture(session: SparkSession, checkpoint: Checkpoint, wanted: Capture) -> Manifest:
    """Write a snapshot. It exists when this returns, and not before. Raises CheckpointError, SnapshotError."""
    lineage = checkpoint.known_lineage()
    store = open_store(wanted.uri)
    if store.exists(MANIFEST):
        raise AlreadyThereError(f"There is a snapshot in {wanted.uri} already. Choose another place.")
    there = store.list()
    for attempt in itertools.count(1):
        number = find_committed_batch(checkpoint, lineage, wanted.batch)
        try:
            return _capture_batch(session, checkpoint, lineage, wanted, number)
        except OvertakenError:
            # The next attempt takes a newer micro-batch, which needs only newer files, unless the job wins again.
            if wanted.batch is not None or attempt == _MAX_ATTEMPTS:
                raise
        except CheckpointError:
            # Spark's first read takes a while; meanwhile a fast job may commit so much that the micro-batch is
            # no longer kept. The next read is fast.
            is_kept = number - lineage.first_batch in batch_numbers(checkpoint.spark_folder / "commits")
            if is_kept or wanted.batch is not None or store.list() != there:
                raise
    raise AssertionError


def _capture_batch(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, wanted: Capture, number: int
) -> Manifest:
    state = read_described(checkpoint.folder)
    # First, since the sources of a running job delete what they have read.
    files: tuple[FileEntry, ...] = ()
    if wanted.keeps_files and wanted.kind == "savepoint":
        positions = positions_of(checkpoint, lineage, number)
        files = copy_own_files(checkpoint.folder, positions, open_store(wanted.uri))
    elif wanted.keeps_files:
        store = open_store(wanted.uri)
        files = (*copy_topic_ids(checkpoint.folder, store), *copy_models(checkpoint.folder, store))
    contents = Contents(
        kind=wanted.kind,
        id=wanted.id or f"{lineage.job}-{number}",
        job=lineage.job,
        batch=number,
        key_groups=lineage.key_groups,
        format=wanted.format,
        tables=(),
        created_at=wanted.created_at,
        files=files,
        positions=positions_of(checkpoint, lineage, number),
        steps={name: msgspec.to_builtins(step) for name, step in state.steps.items()},
    )
    read = functools.partial(read_step, session, checkpoint, number - lineage.first_batch)
    return assemble(wanted.uri, contents, state, read)


def check_committed(checkpoint: Checkpoint, batch: int | None) -> None:
    """Raise CheckpointError unless the micro-batch, or any with None, can be captured. Needs no Spark."""
    find_committed_batch(checkpoint, checkpoint.known_lineage(), batch)


def positions_of(checkpoint: Checkpoint, lineage: Lineage, number: int) -> dict[str, Any]:
    """Return the end of each stream in a micro-batch, from Spark's offset log."""
    if number < lineage.first_batch:
        return lineage.positions
    path = checkpoint.spark_folder / "offsets" / str(number - lineage.first_batch)
    # A stream that Spark has not read yet is still at its first position.
    return {**lineage.positions, **read_offsets(path, lineage.streams)}


def read_step(
    session: SparkSession, checkpoint: Checkpoint, batch: int, node: str, reader: SlotReader
) -> list[bytes]:
    """Read the state of a step after a micro-batch, by Spark's number. Slots that have not run yet use their seed."""
    slots: set[int] = set()
    found: list[bytes] = []
    if batch >= 0:
        mount = find_mounted_state(checkpoint.folder)
        location = checkpoint.spark_location if mount is None else mount.apply(session)
        with state_files(checkpoint.folder) as files:
            slots, found = read_slots(
                session, StateLocation(location, files.operator_of), batch, node, reader
            )
    lineage = checkpoint.stored_lineage()
    if lineage is None or not lineage.origin.has_state:
        return found
    firsts = first_key_groups(lineage.key_groups, lineage.parallelism)
    left = {number: group for number, group in firsts.items() if number not in slots}
    return [*found, *read_seed(checkpoint.seed, node, reader, left)]
