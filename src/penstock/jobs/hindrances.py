"""Hindrances: what a run does when the system beneath it fails it: a full disk, no memory, a share that is away."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import ExternalSystemError, system_error_of

__all__ = ["check_room", "hindered", "hindrances_told"]

_LEAST_BYTES: Final = 1 << 20


def check_room(folder: Path) -> None:
    """Raise ExternalSystemError when the disk of a checkpoint is full, before anything costly is started in vain."""
    found = os.statvfs(folder)
    left = found.f_bavail * found.f_frsize
    if left < _LEAST_BYTES:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise ExternalSystemError(
            f"The disk of the checkpoint {folder} is full: {left} bytes are left. Make room there, and start the job "
            "again; it goes on where it was."
        ) from full


def hindered(error: OSError | MemoryError, folder: Path) -> ExternalSystemError:
    """What there is to say of an error of the system that has ended a run with a checkpoint."""
    if isinstance(error, MemoryError):
        what, remedy = "there was not enough memory", "Give the machine more"
    else:
        where = f" ({error.filename})" if error.filename else ""
        what, remedy = f"{error.strerror or error}{where}", "See to that"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Make room"
    told = ExternalSystemError(
        f"The job has ended, as the system failed it: {what}. Nothing is lost. {remedy}, and start the job again with "
        f"its checkpoint {folder}; it goes on where it was."
    )
    told.__cause__ = error
    return told


@contextlib.contextmanager
def hindrances_told(folder: Path) -> Iterator[None]:
    """Errors of the system, wherever they come up, are told as what they are."""
    try:
        yield
    except (OSError, MemoryError) as e:
        system = system_error_of(e)
        if system is None:
            raise
        raise hindered(system, folder) from e
