"""Retention: limit the files that runs and operations leave on disk, so that no job fills it."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.checkpoints.stored_checkpoint import delete_checkpoint, is_stored, working_folder
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.lease_places import LEASES
from penstock.server.runs.processes import OUTPUT_FILE, is_alive

__all__ = ["Kept", "delete_job_files", "keep_within", "limit_output", "prune_operations", "prune_runs"]

_log: Final = logging.getLogger(__name__)
_BLOCK_BYTES: Final = 4096
# FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux.
_PUNCH_HOLE: Final = 0x01 | 0x02


@dataclass(frozen=True)
class Kept:
    """The limits of retention.

    Args:
        runs: the number of newest runs of each job.
        operations: the number of newest operations with their own process, of all jobs.
        output_bytes: the size of the output of each run; beyond it, only the newest half is kept.

    """

    runs: int = 10
    operations: int = 100
    output_bytes: int = 16 << 20


def keep_within(
    home: ServerDirectory, kept: Kept, runs: Iterable[tuple[str, int]], unfinished: Collection[str]
) -> None:
    """Delete files beyond the limits. `runs` has each job with its newest run; `unfinished` are operations to keep."""
    for job_id, newest in runs:
        limit_output(home.run(job_id, newest) / OUTPUT_FILE, kept.output_bytes)
        prune_runs(home, job_id, newest, kept.runs)
    prune_operations(home, unfinished, kept.operations)


def limit_output(path: Path, max_bytes: int) -> None:
    """Free the disk space of the beginning of a file that is being written, if it exceeds a limit.

    The file keeps its length, with a hole, so that its writer and readers are not disturbed.
    """
    try:
        found = path.stat()
        if found.st_blocks * 512 <= max_bytes:
            return
        end = max(found.st_size - max_bytes // 2, 0) // _BLOCK_BYTES * _BLOCK_BYTES
        with path.open("r+b") as file:
            _punch_hole(file.fileno(), end)
    except FileNotFoundError:
        return
    except OSError as e:
        _log.warning(
            "The output %s takes %s bytes and cannot be truncated: %s", path, found.st_size, e.strerror
        )


def _punch_hole(file: int, end: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if end and libc.fallocate(file, _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(end)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def prune_runs(home: ServerDirectory, job_id: str, newest: int, kept: int) -> None:
    """Delete the folders of old runs of a job, except runs whose process is still alive."""
    for folder in _folders(home.run(job_id, newest).parent):
        if folder.name.isdigit() and int(folder.name) <= newest - kept and not is_alive(folder):
            shutil.rmtree(folder)


def prune_operations(home: ServerDirectory, unfinished: Collection[str], kept: int) -> None:
    """Delete the folders of the oldest finished operations."""
    folders = sorted(_folders(home.operation("any").parent), key=lambda folder: folder.stat().st_mtime_ns)
    for folder in folders[: max(len(folders) - kept, 0)]:
        if folder.name not in unfinished and not is_alive(folder):
            shutil.rmtree(folder)


def delete_job_files(home: ServerDirectory, job_id: str, newest: int, checkpoint: str | None) -> None:
    """Delete the files of an ended job, and its checkpoint if given. Raises OSError and ExternalSystemError."""
    runs = home.run(job_id, newest).parent
    # The checkpoint may be that of an earlier job. If it is not given, its folder stays.
    found = [runs]
    if checkpoint is not None and is_stored(checkpoint):
        delete_checkpoint(checkpoint)
        found.append(working_folder(checkpoint))
    elif checkpoint is not None:
        found += [Path(checkpoint), Path(f"{checkpoint}.{LEASES}")]
    for folder in found:
        if folder.exists():
            shutil.rmtree(folder)
    home.scaling(job_id).unlink(missing_ok=True)


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.exists() else []
