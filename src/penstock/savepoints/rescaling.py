"""Rescaling: rewrite the state of a stopped job for another number of tasks or a changed job, in the same checkpoint.

This captures the state and writes seeds for the new tasks next to it. Then one file records the decision. From then on
the rescaling happens even if the process is killed: the next one that opens the checkpoint completes it.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import sync_folder
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.checkpoint_files import COUNTS_FILE
from penstock.checkpoints.described_state import STATE_FILE, JobState, read_described
from penstock.checkpoints.evolution import plan_changes
from penstock.checkpoints.plans import Plans
from penstock.checkpoints.state_place import state_place
from penstock.checkpoints.stored_checkpoint import CAPTURED
from penstock.checkpoints.stored_home import home_of, place_in
from penstock.errors import CheckpointError
from penstock.runtime.cuts import INTERVALS, batch_numbers
from penstock.savepoints.snapshot_capture import Capture, capture, positions_of
from penstock.savepoints.source_files import spark_beginnings
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.spark.types import SparkSession

__all__ = ["check_mode_change", "evolve", "finish_rescaling", "is_rescaling", "rescale"]

_INTENT_FILE: Final = "rescaling.json"
# Both a folder of the checkpoint and a prefix beside its log.
_CAPTURED: Final = CAPTURED
_NEXT_SEED: Final = "seed.next"
_OF_RUNS: Final = ("offsets", "commits", "state", "metadata", INTERVALS)


def rescale(session: SparkSession, checkpoint: Checkpoint, parallelism: int) -> Lineage:
    """Change the parallelism of a checkpoint; return its new lineage.

    The checkpoint must be locked, and its job stopped between two micro-batches. Raises CheckpointError when the last
    micro-batch is not finished, and for a parallelism that the key groups do not allow.
    """
    lineage = checkpoint.known_lineage()
    if not 1 <= parallelism <= lineage.key_groups:
        raise CheckpointError(
            f"The parallelism is {parallelism}; it must be from 1 to {lineage.key_groups}, the number of key groups."
        )
    if parallelism == lineage.parallelism:
        return lineage
    _check_between(
        checkpoint, lineage, "Start it once with penstock run to finish that, stop it, and rescale then."
    )
    if not _has_state(checkpoint, lineage):
        changed = msgspec.structs.replace(lineage, parallelism=parallelism)
        checkpoint.begin(changed)
        return changed
    reason = f"from {lineage.parallelism} to {parallelism} tasks"
    state = read_described(checkpoint.folder)
    return _rewrite(
        session, checkpoint, msgspec.structs.replace(lineage, parallelism=parallelism), state, reason
    )


def evolve(session: SparkSession, checkpoint: Checkpoint, declared: JobState, reason: str) -> Lineage:
    """Rewrite the state of a checkpoint, which must be locked, as a changed job declares it; return its new lineage.

    The stored state is read under its old declarations only once: otherwise names and values that the job has dropped
    would come back when it declares them again. Raises CheckpointError when the last micro-batch is not finished.
    """
    lineage = checkpoint.known_lineage()
    if not _has_state(checkpoint, lineage):
        return lineage
    _check_between(
        checkpoint, lineage, "Start the unchanged job once more to finish it, and change the job then."
    )
    return _rewrite(session, checkpoint, lineage, declared, reason)


def check_mode_change(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError when a micro-batch is not finished, which the other mode cannot repeat."""
    _check_between(
        checkpoint,
        checkpoint.known_lineage(),
        "Start the job once more in the mode in which it ran (--checkpoint-interval) to finish it, and change the mode "
        "then.",
    )


def _has_state(checkpoint: Checkpoint, lineage: Lineage) -> bool:
    return lineage.origin.has_state or bool(batch_numbers(checkpoint.spark_folder / "commits"))


def _check_between(checkpoint: Checkpoint, lineage: Lineage, remedy: str) -> None:
    """Raise CheckpointError unless the job is between two micro-batches."""
    pending = Plans(checkpoint, lineage).pending
    if pending is not None:
        raise CheckpointError(
            f"The job in {checkpoint.folder} was stopped within micro-batch {pending}. {remedy}"
        )


def _rewrite(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, declared: JobState, reason: str
) -> Lineage:
    """Turn the state of a checkpoint into a seed for the same one, with the parallelism of the lineage.

    A failure before the decision leaves the checkpoint as it was.
    """
    try:
        new = _decide(session, checkpoint, lineage, declared, reason)
    except Exception:
        if not is_rescaling(checkpoint):
            _clear(checkpoint)
        raise
    finish_rescaling(checkpoint)
    return new


def _decide(
    session: SparkSession, checkpoint: Checkpoint, lineage: Lineage, declared: JobState, reason: str
) -> Lineage:
    """Capture the state, write the seed, and record the decision to use it."""
    _clear(checkpoint)
    captured = _place_of_capture(checkpoint)
    manifest = capture(session, checkpoint, Capture("savepoint", captured, "arrow", keeps_files=False))
    changes = plan_changes(declared.steps, read_described(checkpoint.folder).steps)
    seed = checkpoint.folder / _NEXT_SEED
    write_seed(Snapshot.at(captured), declared, lineage.parallelism, changes, seed)
    sync_folder(seed)
    new = msgspec.structs.replace(
        lineage,
        origin=Origin("rescale", "", "", manifest.batch, reason),
        positions=positions_of(checkpoint, lineage, manifest.batch),
        first_batch=manifest.batch + 1,
    )
    checkpoint.save(_INTENT_FILE, _Intent(new, declared))
    return new


def _place_of_capture(checkpoint: Checkpoint) -> str:
    """Return the place to which the tasks of this session can write the captured state."""
    home = home_of(checkpoint.folder)
    if home is None or state_place(checkpoint.folder) is None:
        return str(checkpoint.folder / _CAPTURED)
    # A run that was believed dead may capture state at the same time.
    return place_in(home, f"{_CAPTURED}/{uuid.uuid4().hex}").shown


class _Intent(msgspec.Struct, frozen=True):
    """The decision of a rescaling: the new lineage and states of the checkpoint."""

    lineage: Lineage
    state: JobState


def is_rescaling(checkpoint: Checkpoint) -> bool:
    """Return whether a rescaling was decided but is not complete."""
    return (checkpoint.folder / _INTENT_FILE).exists()


def finish_rescaling(checkpoint: Checkpoint) -> None:
    """Complete a rescaling that was decided; remove the remains of one that was not."""
    if not is_rescaling(checkpoint):
        _clear(checkpoint)
        return
    intent = checkpoint.folder / _INTENT_FILE
    wanted = msgspec.json.decode(intent.read_bytes(), type=_Intent)
    fresh = checkpoint.folder / _NEXT_SEED
    if fresh.exists():
        shutil.rmtree(checkpoint.seed, ignore_errors=True)
        fresh.rename(checkpoint.seed)
    for name in _OF_RUNS:
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
    """Remove the files of an undecided rescaling, as far as the file system allows."""
    for name in (_CAPTURED, _NEXT_SEED):
        shutil.rmtree(checkpoint.folder / name, ignore_errors=True)


def _forget_slots(checkpoint: Checkpoint) -> None:
    """Remove the counts by slot, since the new slots report them again."""
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
