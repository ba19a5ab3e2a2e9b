"""Rescale attempts: what a run that is asked for other tasks does, also when the rescaling fails or kills it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.base.durable import sync_folder
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.errors import PenstockError, system_error_of
from penstock.jobs.requests import Request
from penstock.savepoints.rescaling import is_rescaling, rescale
from penstock.spark.types import SparkSession

__all__ = ["Outcome", "carry_out"]

_FILE: Final = "rescale-attempts.json"
# A run may be killed within a rescaling by chance once.
_MOST: Final = 2


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt: the new lineage, or why the job goes on as it was."""

    lineage: Lineage | None = None
    why: str = ""


class _Attempts(msgspec.Struct, frozen=True):
    """How often the rescaling of an operation was begun without coming to its end."""

    operation: str
    number: int


def carry_out(session: SparkSession, checkpoint: Checkpoint, request: Request) -> Outcome:
    """Rescale as a request asks, of which the job stands still between two micro-batches.

    Whatever goes wrong, the checkpoint is as it was and the outcome says why, so that the job goes on. A run that dies
    meanwhile, killed for want of memory, say, leaves a note; an operation in which two runs have died is not tried
    again.
    Raises what goes wrong once the rescaling is decided, for then nothing but its end is right.
    """
    operation = request.operation or request.id
    try:
        before = _attempts(checkpoint, operation)
        if before >= _MOST:
            outcome = Outcome(why=_given_up(request, before))
        else:
            # On disk before anything else, since the next moment may be the last one.
            checkpoint.save(_FILE, _Attempts(operation, before + 1))
            sync_folder(checkpoint.folder)
            outcome = Outcome(rescale(session, checkpoint, request.parallelism))
    except Exception as e:
        if is_rescaling(checkpoint):
            raise
        outcome = Outcome(why=_told(e, checkpoint, request))
    (checkpoint.folder / _FILE).unlink(missing_ok=True)
    return outcome


def _attempts(checkpoint: Checkpoint, operation: str) -> int:
    try:
        found = msgspec.json.decode((checkpoint.folder / _FILE).read_bytes(), type=_Attempts)
    except (FileNotFoundError, msgspec.MsgspecError):
        return 0
    return found.number if found.operation == operation else 0


def _given_up(request: Request, number: int) -> str:
    return (
        f"The rescaling to {request.parallelism} tasks was begun {number} times, and each time the run ended within "
        "it, perhaps killed for want of memory. Give the machine more, see the output of the runs, and ask again."
    )


def _told(error: Exception, checkpoint: Checkpoint, request: Request) -> str:
    what = f"The rescaling to {request.parallelism} tasks failed"
    system = system_error_of(error)
    if isinstance(system, MemoryError):
        return f"{what} for want of memory. Give the machine more, and ask again."
    if system is not None:
        where = f" ({system.filename})" if system.filename else ""
        remedy = "See to that, and ask again."
        if system.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = (
                "While it lasts it takes about three times the room of the state on the disk of the checkpoint "
                f"{checkpoint.folder}, and as much again where temporary files are. Make room, and ask again."
            )
        return f"{what}: {system.strerror or system}{where}. {remedy}"
    if isinstance(error, PenstockError):
        return str(error)
    return f"{what} ({type(error).__name__}: {str(error)[:500]}). See Spark's log in the checkpoint, and ask again."
