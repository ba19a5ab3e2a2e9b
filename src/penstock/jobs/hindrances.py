"""Hindrances: report failures of the system under a run, such as a full disk, no memory, or a missing share."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import ExternalSystemError, system_error_of

__all__ = ["check_room", "convert_system_errors", "describe_system_error"]

_MIN_BYTES: Final = 1 << 20


def check_room(folder: Path) -> None:
    """Raise ExternalSystemError when the disk of a checkpoint is full, before anything costly starts in vain."""
    found = os.statvfs(folder)
    left = found.f_bavail * found.f_frsize
    if left < _MIN_BYTES:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise ExternalSystemError(
            f"The disk of the checkpoint {folder} is full: {left} bytes are left. Free some space there, and start the "
            "job again; it resumes where it was."
        ) from full


def describe_system_error(error: OSError | MemoryError, folder: Path) -> ExternalSystemError:
    """Return the error for the user when an error of the system has ended a run with a checkpoint."""
    if isinstance(error, MemoryError):
        what, remedy = "there was not enough memory", "Give the machine more"
    else:
        where = f" ({error.filename})" if error.filename else ""
        what, remedy = f"{error.strerror or error}{where}", "Fix that"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space"
    described = ExternalSystemError(
        f"The job has ended because of an error of the system: {what}. Nothing is lost. {remedy}, and start the job "
        f"again with its checkpoint {folder}; it resumes where it was."
    )
    described.__cause__ = error
    return described


@contextlib.contextmanager
def convert_system_errors(folder: Path) -> Iterator[None]:
    """Convert errors of the system that the body raises to ExternalSystemError, wherever they come from."""
    try:
        yield
    except (OSError, MemoryError) as e:
        system = system_error_of(e)
        if system is None:
            raise
        raise describe_system_error(system, folder) from e
