"""Failure diagnosis: turn the failure of a query into one of penstock's errors, which names what is damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.checkpoints.spark_checkpoint import Expected, inspect
from penstock.checkpoints.spark_state_files import RESTORE, RESTORE_FOLDER, damage
from penstock.errors import (
    CheckpointError,
    ExternalSystemError,
    JobFailedError,
    PenstockError,
    custom_error_in,
    system_error_in,
)
from penstock.jobs.hindrances import describe_system_error

__all__ = ["SparkLog", "explain_failure"]

_MAX_LOG_BYTES: Final = 1 << 20

# How Spark and Hadoop report a damaged file.
_DAMAGED_FILES: Final = (
    re.compile(r"Checksum error: (?:file:)?(?P<path>/.+?) at \d+ exp:"),
    re.compile(r"the file may be corrupted\. File: (?:file:)?(?P<path>/\S+)"),
    re.compile(r"Failed to read log file (?:file:)?(?P<path>/\S+?)\. "),
    re.compile(r"Error reading streaming state file of (?:file:)?(?P<path>/.+?) does not exist"),
    re.compile(r"File `?(?:file:)?(?P<path>/.+?)`? does not exist"),
    re.compile(r"Failed to read the operator metadata for checkpointLocation=(?:file:)?(?P<path>/\S+)"),
)
_STATE_STORE: Final = re.compile(
    r"operatorId=(\d+), ?partitionId=(\d+)|\(operatorId: (\d+), partitionId: (\d+)"
)
_DAMAGED_STATE: Final = re.compile(
    r"\[(CANNOT_LOAD_STATE_STORE[.\w]*|STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
    r"|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY|STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)\]"
)
_OF_STORE: Final = re.compile(r"\bfs\.s3a\.|\bhadoop\.hdfs\.")
_LOST_WORKER: Final = "Python worker exited unexpectedly"
_ROOT_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+(?:: .*)?)$", re.MULTILINE)


class SparkLog:
    """Spark's log from the start of this run."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._start: Final = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """Return what was logged since then, at most the last 1 MiB."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                # A log that was too large has restarted.
                start = self._start if size >= self._start else 0
                file.seek(max(start, size - _MAX_LOG_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def explain_failure(
    error: Exception, log: SparkLog, spark_folder: Path, streams: int, store: str | None = None
) -> PenstockError:
    """Return the failure of a query as an error for the user.

    This is penstock's own error if one is the cause, and a CheckpointError if Spark cannot read its part of the
    checkpoint, which has the offsets of `streams` streams. With `store` the tasks keep the state there.
    """
    text = str(error)
    own = custom_error_in(text, JobFailedError)
    if own is not None:
        return own
    system = system_error_in(text)
    if system is not None:
        # Checked first: files that Spark could not write or copy to a full disk look damaged.
        return describe_system_error(system, spark_folder)
    if store is not None and (_OF_STORE.search(text) or _DAMAGED_STATE.search(text)):
        # A store that does not answer looks as if it had no state. Each start checks the state itself.
        causes = _ROOT_CAUSE.findall(text) or text.splitlines()
        return ExternalSystemError(
            f"The state of the job on {store} could not be read or written: {causes[-1][:300]}. Nothing is lost. See "
            "that the store answers, also to the workers, and start the job again; it resumes where it was. "
            f"(Spark's log: {log.path})"
        )
    damaged = _damaged(text, log, spark_folder, streams)
    if damaged is not None:
        system = system_error_in(log.text())
        return damaged if system is None else describe_system_error(system, spark_folder)
    if _LOST_WORKER in text:
        return JobFailedError(
            "A worker of the job has ended unexpectedly; it may have been killed because the machine ran out of "
            "memory, or a library has crashed in it. Start the job again with its checkpoint; it continues where it "
            f"was. (Spark's log: {log.path})"
        )
    causes = [line.strip() for line in text.splitlines() if "Error" in line or "Exception" in line]
    cause = causes[-1] if causes else text.strip().splitlines()[0]
    return JobFailedError(f"The job failed: {cause[:500]} (Spark's log: {log.path})")


def _damaged(text: str, log: SparkLog, folder: Path, streams: int) -> CheckpointError | None:
    """Return an error that names the file of the checkpoint that Spark cannot read, or at least its folder."""
    see = f"(Spark's log: {log.path})"
    for path in _damaged_files(text, folder):
        return damage(path, "is damaged" if path.exists() else "is missing", f"{RESTORE} {see}")
    state = _DAMAGED_STATE.search(text)
    if state is None:
        return None
    try:
        inspect(folder, Expected(streams), thorough=True)
    except CheckpointError as found:
        return CheckpointError(f"{found} {see}")
    # If Spark has tried another snapshot, only its log says what is wrong with the first.
    logged = log.text()
    for path in _damaged_files(logged, folder):
        return damage(path, "is damaged" if path.exists() else "is missing", f"{RESTORE} {see}")
    place = folder / "state"
    store = _STATE_STORE.search(text) or _STATE_STORE.search(logged)
    if store is not None:
        operator, partition = [number for number in store.groups() if number is not None]
        place = place / operator / partition
    causes = _ROOT_CAUSE.findall(text)
    cause = causes[-1][:300] if causes else state.group(1)
    return damage(place, f"cannot be loaded by Spark ({cause})", f"{RESTORE_FOLDER} {see}")


def _damaged_files(text: str, folder: Path) -> Iterator[Path]:
    """Yield the damaged files of the checkpoint that a text names."""
    for pattern in _DAMAGED_FILES:
        for match in pattern.finditer(text):
            path = Path(match.group("path"))
            if path.is_relative_to(folder):
                yield path
