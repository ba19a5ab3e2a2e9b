"""State place: the place of the state of a job whose tasks run on machines that share no folder.

It is a prefix beside the log of the checkpoint, to which the tasks write. A file of the working folder,
which the log has, names it. Every file of the state has a name that is used once, and a commit in the log names those
that count. So anything that a run believed dead still writes there is ignored. Two runs of the same first
micro-batch would share the descriptions of the state, whose names are not used once; so each run that finds nothing
committed begins in a new place.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.spark_state_files import damage
from penstock.errors import CheckpointError
from penstock.runtime.cuts import batch_numbers

__all__ = ["STATE", "StatePlace", "place_state", "state_place"]

STATE: Final = "state"
"""The prefix of all places of the state."""
_PLACE_FILE: Final = "state-place.json"


class StatePlace(msgspec.Struct, frozen=True):
    """The place of the state: the id under which Spark knows it, and the prefix below that of the checkpoint."""

    id: str

    @property
    def prefix(self) -> str:
        """The prefix, without that of the checkpoint.

        >>> StatePlace("4f1c").prefix
        'state/4f1c'
        """
        return f"{STATE}/{self.id}"


def state_place(folder: Path) -> StatePlace | None:
    """Return the place of the state, None if it is in the folder of the checkpoint. Raises CheckpointError."""
    path = folder / _PLACE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StatePlace)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise damage(path, f"cannot be read ({e})") from e


def place_state(folder: Path, shown: str, *, is_local: bool) -> StatePlace | None:
    """Return the place of the state for a run, None for the folder.

    `folder` is locked, and holds what the checkpoint at `shown` has. `is_local` says that all tasks run on this
    machine. Raises CheckpointError when the state is in the folder, which the tasks cannot reach.
    """
    found = state_place(folder)
    has_begun = bool(batch_numbers(folder / "commits"))
    if found is not None and has_begun:
        return found
    if found is None and is_local:
        return None
    if has_begun:
        raise CheckpointError(
            f"The job has run with the checkpoint {shown} on one machine, and its state is where only tasks on the "
            "driver's machine reach it. Run it there once more with --master 'local[*]', and stop it with a savepoint "
            "(penstock stop --savepoint); start from that with another prefix."
        )
    place = StatePlace(uuid.uuid4().hex[:16])
    write_atomically(folder / _PLACE_FILE, msgspec.json.encode(place))
    return place
