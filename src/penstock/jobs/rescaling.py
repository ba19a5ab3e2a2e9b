"""Rescaling: the state of a stopped job for another number of tasks, in the same checkpoint, all or nothing.

The state is captured, and seeds for the new tasks are written beside what is there. Then one file says what is to
happen, and from there on it happens, whatever is killed: whoever opens the checkpoint next brings it to its end.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from penstock.errors import CheckpointError
from penstock.jobs.capturing import Capture, capture, positions_of
from penstock.jobs.checkpoint import Checkpoint, Lineage, Origin, sync_folder
from penstock.jobs.described_state import read_described
from penstock.jobs.evolution import plan_changes
from penstock.jobs.own_files import COUNTS_FILE
from penstock.jobs.seeding import Snapshot, write_seed

__all__ = ["finish_rescaling", "rescale"]

_INTENT_FILE: Final = "rescaling.json"
_CAPTURED: Final = "rescaling"
_NEXT_SEED: Final = "seed.next"
_SPARK: Final = ("offsets", "commits", "state", "metadata")


def rescale(session: SparkSession, checkpoint: Checkpoint, parallelism: int) -> Lineage:
    """Give a checkpoint, which is locked, another parallelism; its job stands still between two micro-batches.

    Raises CheckpointError when the last micro-batch was not finished.
    """
    lineage = checkpoint.stored_lineage()
    if lineage is None:
        raise CheckpointError(f"{checkpoint.folder} is no checkpoint of a job.")
    if not 1 <= parallelism <= lineage.key_groups:
        raise CheckpointError(
            f"The parallelism is {parallelism}; it must be from 1 to {lineage.key_groups}, the number of key groups."
        )
    if parallelism == lineage.parallelism:
        return lineage
    planned, committed = (_newest(checkpoint.spark_folder / name) for name in ("offsets", "commits"))
    if planned > committed:
        raise CheckpointError(
            f"The job in {checkpoint.folder} was stopped within micro-batch {planned + lineage.first_batch}. Start it "
            "once with penstock run, which finishes it, stop it, and rescale then."
        )
    if committed < 0 and not lineage.origin.has_state:
        changed = msgspec.structs.replace(lineage, parallelism=parallelism)
        checkpoint.begin(changed)
        return changed
    captured = checkpoint.folder / _CAPTURED
    for leftover in (captured, checkpoint.folder / _NEXT_SEED):
        shutil.rmtree(leftover, ignore_errors=True)
    manifest = capture(session, checkpoint, Capture("savepoint", str(captured), "arrow", keeps_files=False))
    state = read_described(checkpoint.folder)
    changes = plan_changes(state.steps, state.steps)
    write_seed(Snapshot.at(str(captured)), state, parallelism, changes, checkpoint.folder / _NEXT_SEED)
    sync_folder(checkpoint.folder / _NEXT_SEED)
    new = msgspec.structs.replace(
        lineage,
        parallelism=parallelism,
        origin=Origin(
            "rescale", "", "", manifest.batch, f"from {lineage.parallelism} to {parallelism} tasks"
        ),
        positions=positions_of(checkpoint, lineage, manifest.batch),
        first_batch=manifest.batch + 1,
    )
    checkpoint.save(_INTENT_FILE, new)
    sync_folder(checkpoint.folder)
    finish_rescaling(checkpoint)
    return new


def finish_rescaling(checkpoint: Checkpoint) -> None:
    """Bring a rescaling to its end that was decided, if there is one."""
    intent = checkpoint.folder / _INTENT_FILE
    if not intent.exists():
        return
    lineage = msgspec.json.decode(intent.read_bytes(), type=Lineage)
    fresh = checkpoint.folder / _NEXT_SEED
    if fresh.exists():
        shutil.rmtree(checkpoint.seed, ignore_errors=True)
        fresh.rename(checkpoint.seed)
    for name in _SPARK:
        _remove(checkpoint.folder / name)
    _forget_slots(checkpoint)
    checkpoint.begin(lineage)
    _remove(checkpoint.folder / _CAPTURED)
    intent.unlink()
    sync_folder(checkpoint.folder)


def _forget_slots(checkpoint: Checkpoint) -> None:
    """The counts by slot are told anew by the new slots."""
    path = checkpoint.folder / COUNTS_FILE
    if path.exists():
        counts: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        checkpoint.save(COUNTS_FILE, {**counts, "keys": {}, "held": {}})


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=-1)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    for sidecar in path.parent.glob(f".{path.name}.crc"):
        sidecar.unlink()
