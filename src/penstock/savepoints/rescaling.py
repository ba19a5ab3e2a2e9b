"""Rescaling: the state of a stopped job for another number of tasks or a changed job, in the same checkpoint.

The state is captured, and seeds for the new tasks are written beside what is there. Then one file says what is to
happen, and from there on it happens, whatever is killed: whoever opens the checkpoint next brings it to its end.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import sync_folder
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.checkpoint_files import COUNTS_FILE
from penstock.checkpoints.described_state import STATE_FILE, JobState, read_described
from penstock.checkpoints.evolution import plan_changes
from penstock.checkpoints.plans import Plans
from penstock.errors import CheckpointError
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.snapshot_capture import Capture, capture, positions_of
from penstock.savepoints.source_files import spark_beginnings
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.spark.types import SparkSession

__all__ = ["evolve", "finish_rescaling", "is_rescaling", "rescale"]

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
        raise CheckpointError(f"{checkpoint.folder} is not a checkpoint of a job.")
    if not 1 <= parallelism <= lineage.key_groups:
        raise CheckpointError(
            f"The parallelism is {parallelism}; it must be from 1 to {lineage.key_groups}, the number of key groups."
        )
    if parallelism == lineage.parallelism:
        return lineage
    _check_between(
        checkpoint, lineage, "Start it once with penstock run, which finishes it, stop it, and rescale then."
    )
    if not _has_state(checkpoint, lineage):
        changed = msgspec.structs.replace(lineage, parallelism=parallelism)
        checkpoint.begin(changed)
        return changed
    reason = f"from {lineage.parallelism} to {parallelism} tasks"
    state = read_described(checkpoint.folder)
    return _seed_anew(
        session, checkpoint, msgspec.structs.replace(lineage, parallelism=parallelism), state, reason
    )


def evolve(session: SparkSession, checkpoint: Checkpoint, declared: JobState) -> Lineage:
    """Write the state of a checkpoint, which is locked, as a changed job declares it.

    What was stored before is read as it was declared then, once and for all: otherwise names and values that the job
    has given up would come back when it takes them up again. Raises CheckpointError when the last micro-batch was not
    finished.
    """
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    if not _has_state(checkpoint, lineage):
        return lineage
    _check_between(
        checkpoint, lineage, "Start the job as it was once more, which finishes it, and change it then."
    )
    return _seed_anew(session, checkpoint, lineage, declared, "its states have changed")


def _has_state(checkpoint: Checkpoint, lineage: Lineage) -> bool:
    return lineage.origin.has_state or bool(batch_numbers(checkpoint.spark_folder / "commits"))


def _check_between(checkpoint: Checkpoint, lineage: Lineage, remedy: str) -> None:
    """Raise CheckpointError unless the job stands between two micro-batches."""
    pending = Plans(checkpoint, lineage).pending
    if pending is not None:
        raise CheckpointError(
            f"The job in {checkpoint.folder} was stopped within micro-batch {pending}. {remedy}"
        )


def _seed_anew(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, declared: JobState, reason: str
) -> Lineage:
    """Make the state of a checkpoint a seed of the same one, for the parallelism of the lineage.

    What fails before that is decided leaves the checkpoint as it was.
    """
    try:
        new = _decided(session, checkpoint, lineage, declared, reason)
    except Exception:
        if not is_rescaling(checkpoint):
            _clear(checkpoint)
        raise
    finish_rescaling(checkpoint)
    return new


def _decided(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, declared: JobState, reason: str
) -> Lineage:
    """Capture the state, write the seed, and decide that it is to be used."""
    _clear(checkpoint)
    captured = checkpoint.folder / _CAPTURED
    manifest = capture(session, checkpoint, Capture("savepoint", str(captured), "arrow", keeps_files=False))
    changes = plan_changes(declared.steps, read_described(checkpoint.folder).steps)
    seed = checkpoint.folder / _NEXT_SEED
    write_seed(Snapshot.at(str(captured)), declared, lineage.parallelism, changes, seed)
    sync_folder(seed)
    new = msgspec.structs.replace(
        lineage,
        origin=Origin("rescale", "", "", manifest.batch, reason),
        positions=positions_of(checkpoint, lineage, manifest.batch),
        first_batch=manifest.batch + 1,
    )
    checkpoint.save(_INTENT_FILE, _Intent(new, declared))
    return new


class _Intent(msgspec.Struct, frozen=True):
    """What a checkpoint is to become."""

    lineage: Lineage
    state: JobState


def is_rescaling(checkpoint: Checkpoint) -> bool:
    """Whether a rescaling was decided that has not come to its end."""
    return (checkpoint.folder / _INTENT_FILE).exists()


def finish_rescaling(checkpoint: Checkpoint) -> None:
    """Bring a rescaling to its end that was decided; of one that was only begun nothing is left then."""
    if not is_rescaling(checkpoint):
        _clear(checkpoint)
        return
    intent = checkpoint.folder / _INTENT_FILE
    wanted = msgspec.json.decode(intent.read_bytes(), type=_Intent)
    fresh = checkpoint.folder / _NEXT_SEED
    if fresh.exists():
        shutil.rmtree(checkpoint.seed, ignore_errors=True)
        fresh.rename(checkpoint.seed)
    for name in _SPARK:
        _remove(checkpoint.folder / name)
    for path in spark_beginnings(checkpoint.folder):
        _remove(path)
        sync_folder(path.parent)
    _forget_slots(checkpoint)
    checkpoint.save(STATE_FILE, wanted.state)
    checkpoint.begin(wanted.lineage)
    _remove(checkpoint.folder / _CAPTURED)
    intent.unlink()
    sync_folder(checkpoint.folder)


def _clear(checkpoint: Checkpoint) -> None:
    """Remove what a rescaling has written that was not decided, as far as the file system lets that happen."""
    for name in (_CAPTURED, _NEXT_SEED):
        shutil.rmtree(checkpoint.folder / name, ignore_errors=True)


def _forget_slots(checkpoint: Checkpoint) -> None:
    """The counts by slot are told anew by the new slots."""
    path = checkpoint.folder / COUNTS_FILE
    if path.exists():
        counts: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        checkpoint.save(COUNTS_FILE, {**counts, "keys": {}, "held": {}, "state_bytes": {}})


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    for sidecar in path.parent.glob(f".{path.name}.crc"):
        sidecar.unlink()
