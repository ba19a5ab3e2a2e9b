"""Stored copies: read-only copies, in a folder of this machine, of checkpoints on an object store."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.checkpoints.state_schemas import point_to_copy
from penstock.checkpoints.stored_entries import LOG
from penstock.checkpoints.stored_home import note_home, place_of_home
from penstock.checkpoints.stored_log import ObjectsOfLog, StoredLog
from penstock.checkpoints.working_folder import WorkingFolder
from penstock.errors import CheckpointError, CheckpointInUseError
from penstock.objects.object_folder import IN_HASTE, ObjectFolder

__all__ = ["copy_checkpoint", "holds_checkpoint", "read_copy"]

# The log may be cleared of old entries while it is read, which happens once in 64 micro-batches.
_MAX_ATTEMPTS: Final = 5


def holds_checkpoint(uri: str) -> bool:
    """Return whether there is a checkpoint at a URI."""
    return any(ObjectFolder(place_of_home(uri), {}, IN_HASTE).names(LOG))


@contextmanager
def read_copy(uri: str) -> Iterator[Path]:
    """Fetch a checkpoint from its store for the time of the context. A run may continue with it, here or elsewhere.

    Raises CheckpointError when there is none, or it is damaged, and what `ObjectFolder` raises.
    """
    place = place_of_home(uri)
    with tempfile.TemporaryDirectory(prefix="penstock-copy-") as folder:
        copy_checkpoint(ObjectFolder(place, {}, IN_HASTE), place.shown.rstrip("/"), Path(folder))
        yield Path(folder)


def copy_checkpoint(objects: ObjectsOfLog, shown: str, folder: Path) -> None:
    """Fill an empty folder with what the store has; raises as `read_copy`."""
    for attempt in itertools.count(1):
        log = StoredLog(objects, shown, str(folder))
        try:
            log.read()
            if log.newest is None:
                raise CheckpointError(
                    f"There is no checkpoint {shown}. Name the URI that penstock run --checkpoint was given."
                )
            WorkingFolder(folder).fill(log.table.files, log.content)
        except CheckpointInUseError:
            if attempt == _MAX_ATTEMPTS:
                raise
        else:
            note_home(folder, shown)
            point_to_copy(folder)
            return
