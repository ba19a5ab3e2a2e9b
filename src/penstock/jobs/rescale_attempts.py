"""Rescale attempts: change the parallelism on request, and survive a rescaling that fails or kills the run."""

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
# A run may be killed by chance during a rescaling once.
_MOST: Final = 2


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt: the new lineage, or why the job continues as it was."""

    lineage: Lineage | None = None
    why: str = ""


class _Attempts(msgspec.Struct, frozen=True):
    """How often the rescaling of an operation has started without completing."""

    operation: str
    number: int


def carry_out(session: SparkSession, checkpoint: Checkpoint, request: Request) -> Outcome:
    """Rescale as requested. The job must be stopped between two micro-batches.

    If the rescaling fails, the checkpoint stays as it was and the outcome says why, so that the job can continue. A run
    that dies meanwhile, for example for lack of memory, leaves a note; an operation in which two runs have died is not
    tried again. Raises the error once the rescaling is decided, since it must be completed then.
    """
    operation = request.operation or request.id
    try:
        before = _attempts(checkpoint, operation)
        if before >= _MOST:
            outcome = Outcome(why=_explain_refusal(request, before))
        else:
            # On disk before anything else, since the run may die at any moment.
            checkpoint.save(_FILE, _Attempts(operation, before + 1))
            sync_folder(checkpoint.folder)
            outcome = Outcome(rescale(session, checkpoint, request.parallelism))
    except Exception as e:
        if is_rescaling(checkpoint):
            raise
        outcome = Outcome(why=_explain_failure(e, checkpoint, request))
    (checkpoint.folder / _FILE).unlink(missing_ok=True)
    return outcome


def _attempts(checkpoint: Checkpoint, operation: str) -> int:
    try:
        found = msgspec.json.decode((checkpoint.folder / _FILE).read_bytes(), type=_Attempts)
    except (FileNotFoundError, msgspec.MsgspecError):
        return 0
    return found.number if found.operation == operation else 0


def _explain_refusal(request: Request, number: int) -> str:
    return (
        f"The rescaling to {request.parallelism} tasks was started {number} times, and each time the run died during "
        "it, perhaps for lack of memory. Give the machine more memory, see the output of the runs, and ask again."
    )


def _explain_failure(error: Exception, checkpoint: Checkpoint, request: Request) -> str:
    what = f"The rescaling to {request.parallelism} tasks failed"
    system = system_error_of(error)
    if isinstance(system, MemoryError):
        return f"{what} for lack of memory. Give the machine more, and ask again."
    if system is not None:
        where = f" ({system.filename})" if system.filename else ""
        remedy = "Fix that, and ask again."
        if system.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = (
                "While it lasts it needs about three times the size of the state on the disk of the checkpoint "
                f"{checkpoint.folder}, and as much again for temporary files. Free some space, and ask again."
            )
        return f"{what}: {system.strerror or system}{where}. {remedy}"
    if isinstance(error, PenstockError):
        return str(error)
    return f"{what} ({type(error).__name__}: {str(error)[:500]}). See Spark's log in the checkpoint, and ask again."
