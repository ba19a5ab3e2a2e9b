"""Replan: take back the plan of a micro-batch that no output has a part of, so that it is planned anew.

A micro-batch is done again as it was planned, which never helps one that is too large for the memory that there is.
While nobody has seen any of it, it may as well be planned with other bounds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.base.durable import sync_folder
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import newest_counted, take_back_mark
from penstock.checkpoints.plans import Plans
from penstock.commands.job_receipts import has_receipts
from penstock.errors import CheckpointError
from penstock.jobs.compile import CompiledJob
from penstock.jobs.outputs import held_outputs

__all__ = ["pending_told", "take_back_plan"]

_FOLLOWED_FILE: Final = "replanned.json"


class _Followed(msgspec.Struct, frozen=True):
    """The newest micro-batch of which a plan was taken back."""

    batch: int


def pending_told(bound: CompiledJob, checkpoint: Checkpoint) -> str | None:
    """What the user should know when a run before has planned a micro-batch that it has not finished."""
    pending = Plans(checkpoint, bound.lineage).pending
    if pending is None:
        return None
    return (
        f"Micro-batch {pending} is done first, as a run before has planned it. If it is too large to be ever done, "
        f"lower the bounds of the sources and start with --replan {pending}."
    )


def take_back_plan(
    bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str], wanted: int | None
) -> bool:
    """Take back the plan of a micro-batch, durably, when it is the one that is to be finished; tells whether it was.

    Raises CheckpointError when an output may have a part of it, unless that is of a plan that was made on the same
    request: a managed job is started again with it. The checkpoint is locked, and its query not started.
    """
    if wanted is None or Plans(checkpoint, bound.lineage).pending != wanted:
        return False
    having = [str(held) for held in held_outputs(bound, checkpoint, bindings) if held.batch >= wanted]
    if newest_counted(checkpoint) >= wanted or has_receipts(checkpoint.folder, wanted):
        having.append("the checkpoint has counted it, or has its receipts")
    if having and _followed(checkpoint) == wanted:
        return False
    if having:
        raise CheckpointError(
            f"Micro-batch {wanted} cannot be planned anew: {', and '.join(having)}. It has to be finished as it was "
            "planned; start the job without --replan, with more memory if that was short."
        )
    checkpoint.save(_FOLLOWED_FILE, _Followed(wanted))
    # First, for a mark without a plan would be damage.
    take_back_mark(checkpoint, wanted)
    offsets = checkpoint.spark_folder / "offsets"
    number = wanted - bound.lineage.first_batch
    state = checkpoint.spark_folder / "state"
    if number == 0 and state.exists():
        # Nothing is committed, and Spark begins no query where state is. First, so that a crash leaves the plan.
        shutil.rmtree(state)
        sync_folder(checkpoint.spark_folder)
    (offsets / str(number)).unlink()
    (offsets / f".{number}.crc").unlink(missing_ok=True)
    sync_folder(offsets)
    return True


def _followed(checkpoint: Checkpoint) -> int | None:
    """The micro-batch of the newest request that was followed, None without any."""
    if not (checkpoint.folder / _FOLLOWED_FILE).exists():
        return None
    return int(checkpoint.load(_FOLLOWED_FILE, _Followed).batch)
