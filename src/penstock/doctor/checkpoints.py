"""Checkpoint checks: its job and progress, whether its files are intact, and whether a job fits it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.checkpoint_files import check_checkpoint
from penstock.checkpoints.ownership import LOCK_FILE, newest_epoch
from penstock.checkpoints.recovery import find_torn_end
from penstock.doctor.findings import Finding, failed, fine, refused, warning
from penstock.doctor.storage import Folder
from penstock.errors import PenstockError
from penstock.jobs.compile import wanted_lineage
from penstock.jobs.requests import is_running
from penstock.jobs.restore import check_stored_states, declared_state
from penstock.jobs.settings import RunSettings
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.rescaling import is_rescaling
from penstock.streams.job_description import JobDescription

__all__ = ["check_fit", "checkpoint_folder", "examine_checkpoint"]

_GIB: Final = 1 << 30
_AHEAD_S: Final = 60.0


def checkpoint_folder(path: Path) -> Folder:
    """Return the requirements on the folder of a checkpoint."""
    return Folder("checkpoint folder", path, "--checkpoint", _GIB // 4, 2 * _GIB, has_locks=True)


def examine_checkpoint(
    checkpoint: Checkpoint,
    *,
    runs: Callable[[Path], bool] = is_running,
    now: Callable[[], float] = time.time,
) -> Iterator[Finding]:
    """Check a checkpoint by itself. Changes nothing."""
    try:
        lineage = checkpoint.stored_lineage()
        starts = newest_epoch(checkpoint.folder)
    except PenstockError as e:
        yield refused("checkpoint", e)
        return
    if lineage is None:
        yield fine("checkpoint", "none yet; the first start of a job creates it")
        return
    yield _settings(lineage, starts)
    yield _use(checkpoint, runs)
    if is_rescaling(checkpoint):
        yield warning(
            "checkpoint files",
            "a rescaling was interrupted",
            "Start the job, which completes the rescaling.",
        )
        return
    retained = RunSettings().retained_batches
    try:
        torn = find_torn_end(checkpoint, lineage, retained)
        if torn is None:
            check_checkpoint(checkpoint, retained, thorough=True)
    except PenstockError as e:
        yield refused("checkpoint files", e)
        return
    if torn is not None:
        yield warning("checkpoint files", torn.message, "Start the job, which discards the torn files.")
        return
    yield _examine_progress(checkpoint, lineage, now())


def _settings(lineage: Lineage, starts: int) -> Finding:
    began = lineage.origin.kind if lineage.origin.has_state else "nothing"
    return fine(
        "checkpoint",
        f"of the job {lineage.job!r} (lineage {lineage.id}), started {starts} times, begun from {began}; "
        f"{lineage.key_groups} key groups, parallelism {lineage.parallelism}, streams {', '.join(lineage.streams)}",
    )


def _use(checkpoint: Checkpoint, runs: Callable[[Path], bool]) -> Finding:
    lock = checkpoint.folder / LOCK_FILE
    if not lock.exists():
        return warning(
            "checkpoint use",
            f"{lock} is missing; without it two runs can start",
            "Make sure that no run uses the checkpoint; the next start creates it.",
        )
    if not os.access(lock, os.W_OK):
        return failed("checkpoint use", f"{lock} cannot be written", "Run as the user who runs the job.")
    return fine("checkpoint use", "a run uses it now" if runs(checkpoint.folder) else "no run uses it now")


def _examine_progress(checkpoint: Checkpoint, lineage: Lineage, now_s: float) -> Finding:
    """Report the newest micro-batch of a checkpoint with intact files."""
    commits = checkpoint.spark_folder / "commits"
    numbers = batch_numbers(commits)
    if not numbers:
        return fine("checkpoint files", "intact; no micro-batch is committed yet")
    written_s = (commits / str(numbers[-1])).stat().st_mtime
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(written_s))
    found = f"intact; micro-batch {numbers[-1] + lineage.first_batch} was committed last, at {at}"
    if written_s > now_s + _AHEAD_S:
        return warning(
            "checkpoint files",
            f"{found}, which is {written_s - now_s:.0f} s in the future",
            "Set the clock of this machine, or of the one that ran the job. Until then processing-time timers wait.",
        )
    return fine("checkpoint files", found)


def check_fit(checkpoint: Checkpoint, job: JobDescription) -> Finding | None:
    """Check that a job can continue from a checkpoint; None for a new one, and for one that cannot be read."""
    try:
        if checkpoint.stored_lineage() is None:
            return None
    except PenstockError:
        return None
    try:
        checkpoint.lineage(wanted_lineage(job, RunSettings()))
        check_stored_states(checkpoint, declared_state(job))
    except PenstockError as e:
        return refused("job and checkpoint", e)
    return fine("job and checkpoint", f"the job {job.name!r} continues from the checkpoint")
