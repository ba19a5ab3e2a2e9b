"""Saved states: savepoints of a job in this process, and restoring them into another job or number of tasks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.checkpoints.described_state import describe_state
from penstock.checkpoints.evolution import check_changes, plan_changes
from penstock.errors import AlreadyThereError
from penstock.runtime.seed import FolderSeed, SlotReader, take_over
from penstock.runtime.slots import slot_keys
from penstock.savepoints.captured_tables import assemble
from penstock.savepoints.state_restore import Snapshot, states_of, write_seed
from penstock.snapshots.manifest import MANIFEST, Manifest
from penstock.snapshots.snapshot_writer import Contents
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import SnapshotFormat
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries
from penstock.testing.model_store import models_in, put_models

__all__ = [
    "Savepoint",
    "begin_from",
    "read_slots_of",
    "rescale_runner",
    "scratch_folder",
    "take_dump",
    "take_savepoint",
]

# Syncing files takes no time on a file system in memory.
_MEMORY: Final = "/dev/shm"  # noqa: S108  # folders in it are made by tempfile


@dataclass(frozen=True)
class Savepoint:
    """A savepoint from `JobHarness.savepoint`: its place and its manifest.

    A savepoint without a place of its own is in a temporary folder, which is removed with this object.
    """

    place: str
    manifest: Manifest
    folder: tempfile.TemporaryDirectory[str] | None = None


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder, in memory if possible. It is removed with the returned object."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="penstock-testing-", dir=place)


def take_savepoint(runner: BatchRunner, place: str) -> Manifest:
    """Write the state that the slots have stored between two micro-batches as a savepoint.

    Raises AlreadyThereError when that place has a snapshot already, SnapshotError when it cannot be written.
    """
    return _take(runner, place, "savepoint", "arrow")


def take_dump(runner: BatchRunner, place: str, file_format: SnapshotFormat) -> Manifest:
    """Write the state as a dump, in a format; raises as `take_savepoint`."""
    return _take(runner, place, "dump", file_format)


def _take(
    runner: BatchRunner, place: str, kind: Literal["savepoint", "dump"], file_format: SnapshotFormat
) -> Manifest:
    if open_store(place).exists(MANIFEST):
        raise AlreadyThereError(f"There is a snapshot in {place} already. Choose another place.")
    state = describe_state(runner.job.name, runner.plan)
    positions: dict[str, dict[str, Any]] = {}
    for (stream, partition), offset in runner.offsets.items():
        positions.setdefault(stream, {})[partition] = offset
    contents = Contents(
        kind=kind,
        id=f"{runner.job.name}-{runner.number - 1}",
        job=runner.job.name,
        batch=runner.number - 1,
        key_groups=runner.job.key_groups,
        format=file_format,
        tables=(),
        positions=positions,
        steps={name: msgspec.to_builtins(step) for name, step in state.steps.items()},
        files=models_in(runner, open_store(place)),
    )
    return assemble(place, contents, state, lambda node, reader: read_slots_of(runner, node, reader))


def read_slots_of(runner: BatchRunner, node: str, reader: SlotReader) -> list[bytes]:
    """Call a reader for each slot of a step with stored state, as Spark does for a committed micro-batch."""
    return list(_read(runner, node, reader))


def _read(runner: BatchRunner, node: str, reader: SlotReader) -> Iterator[bytes]:
    for partition, slot in enumerate(slot_keys(runner.plan.parallelism)):
        entries = runner.states.get((node, slot))
        if entries:
            yield from reader(partition, entries)


def begin_from(runner: BatchRunner, place: str, *, allow_non_restored_state: bool = False) -> Manifest:
    """Load the state of a savepoint or dump into a runner that has not run yet, as a job with a new checkpoint does.

    Raises StateMismatchError when the state does not fit what the job declares, SnapshotError when it cannot be used.
    """
    snapshot = Snapshot.at(place)
    declared = describe_state(runner.job.name, runner.plan)
    changes = plan_changes(
        declared.steps,
        states_of(snapshot.manifest).steps,
        allow_non_restored_state=allow_non_restored_state,
    )
    check_changes(changes, place)
    with scratch_folder() as folder:
        write_seed(snapshot, declared, runner.plan.parallelism, changes, Path(folder))
        for node in runner.plan.graph.steps():
            for slot, share in runner.plan.slot_of.items():
                entries = MemoryEntries(runner.states.setdefault((node.id, slot), {}))
                take_over(FolderSeed(Path(folder)).entries(node.id, share.key_groups[0]), entries)
    put_models(runner, snapshot.manifest, snapshot.store)
    runner.has_seed = True
    return snapshot.manifest


def rescale_runner(runner: BatchRunner, parallelism: int) -> BatchRunner:
    """Return a runner that continues the job with another number of tasks: whole key groups move."""
    after = runner.with_parallelism(parallelism)
    with scratch_folder() as folder:
        take_savepoint(runner, folder)
        begin_from(after, folder)
    return after
