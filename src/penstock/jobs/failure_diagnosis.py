"""Failure diagnosis: why a query failed, as an error of penstock's own that names what is damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.checkpoints.spark_checkpoint import Expected, inspect
from penstock.checkpoints.spark_state_files import RESTORE, RESTORE_FOLDER, damage
from penstock.errors import CheckpointError, JobFailedError, PenstockError, own_error_in, system_error_in
from penstock.jobs.hindrances import hindered
from penstock.spark.types import PySparkException

__all__ = ["SparkLog", "explained"]

_MOST_LOG_BYTES: Final = 1 << 20

# How Spark and Hadoop say that a file is damaged.
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
_ROOT_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+(?:: .*)?)$", re.MULTILINE)


class SparkLog:
    """Spark's log, and where it began for this run."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._start: Final = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """What was logged since, at most its last part."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                # A log that has become too large has begun anew.
                start = self._start if size >= self._start else 0
                file.seek(max(start, size - _MOST_LOG_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def explained(error: PySparkException, log: SparkLog, spark_folder: Path, streams: int) -> PenstockError:
    """A failure of the query as a sentence.

    penstock's own error where one is the cause; a CheckpointError where Spark cannot read its part of the checkpoint,
    which has the offsets of so many streams.
    """
    text = str(error)
    own = own_error_in(text, JobFailedError)
    if own is not None:
        return own
    system = system_error_in(text)
    if system is not None:
        # First, for what a full disk has kept Spark from writing or copying looks as if it were damaged.
        return hindered(system, spark_folder)
    damaged = _damaged(text, log, spark_folder, streams)
    if damaged is not None:
        system = system_error_in(log.text())
        return damaged if system is None else hindered(system, spark_folder)
    causes = [line.strip() for line in text.splitlines() if "Error" in line or "Exception" in line]
    cause = causes[-1] if causes else text.strip().splitlines()[0]
    return JobFailedError(f"The job failed: {cause[:500]} (Spark's log: {log.path})")


def _damaged(text: str, log: SparkLog, folder: Path, streams: int) -> CheckpointError | None:
    """The file of the checkpoint that Spark cannot read, or at least its folder."""
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
    # Where Spark has tried another snapshot, only its log tells what was wrong with the first.
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
    """The damaged files of the checkpoint that a text names."""
    for pattern in _DAMAGED_FILES:
        for match in pattern.finditer(text):
            path = Path(match.group("path"))
            if path.is_relative_to(folder):
                yield path
