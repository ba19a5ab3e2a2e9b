"""Replan: take back the plan of a micro-batch, so that it is planned again, if no output has a part of it.

A replay repeats a micro-batch as it was planned. That never helps if it is too large for the memory. As long as no
output has a part of it, it can be planned again with other bounds.
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
from penstock.jobs.outputs import list_held

__all__ = ["describe_pending", "take_back_plan"]

_FOLLOWED_FILE: Final = "replanned.json"


class _Followed(msgspec.Struct, frozen=True):
    """The newest micro-batch whose plan was taken back."""

    batch: int


def describe_pending(bound: CompiledJob, checkpoint: Checkpoint) -> str | None:
    """Return a note for the user if an earlier run has planned a micro-batch but not finished it, else None."""
    pending = Plans(checkpoint, bound.lineage).pending
    if pending is None:
        return None
    return (
        f"Micro-batch {pending} comes first, as an earlier run has planned it. If it is too large ever to finish, "
        f"lower the bounds of the sources and start with --replan {pending}."
    )


def take_back_plan(
    bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str], wanted: int | None
) -> bool:
    """Take back the plan of a micro-batch, durably, if it is the pending one; return whether it was.

    Raises CheckpointError when an output may have a part of it, unless that part is of a plan made on the same request:
    a managed job repeats the request at each start. The checkpoint must be locked, and its query not started.
    """
    if wanted is None or Plans(checkpoint, bound.lineage).pending != wanted:
        return False
    having = [str(held) for held in list_held(bound, checkpoint, bindings) if held.batch >= wanted]
    if newest_counted(checkpoint) >= wanted or has_receipts(checkpoint.folder, wanted):
        having.append("the checkpoint has counted it, or has its receipts")
    if having and _followed(checkpoint) == wanted:
        return False
    if having:
        raise CheckpointError(
            f"Micro-batch {wanted} cannot be planned again: {', and '.join(having)}. It must finish as it was planned; "
            "start the job without --replan, and with more memory if that was short."
        )
    checkpoint.save(_FOLLOWED_FILE, _Followed(wanted))
    # First, since a mark without a plan counts as damage.
    take_back_mark(checkpoint, wanted)
    offsets = checkpoint.spark_folder / "offsets"
    number = wanted - bound.lineage.first_batch
    state = checkpoint.spark_folder / "state"
    if number == 0 and state.exists():
        # Nothing is committed, and Spark starts no query where state exists. First, so that a crash leaves the plan.
        shutil.rmtree(state)
        sync_folder(checkpoint.spark_folder)
    (offsets / str(number)).unlink()
    (offsets / f".{number}.crc").unlink(missing_ok=True)
    sync_folder(offsets)
    return True


def _followed(checkpoint: Checkpoint) -> int | None:
    """Return the micro-batch of the newest request that was carried out, None if there is none."""
    if not (checkpoint.folder / _FOLLOWED_FILE).exists():
        return None
    return int(checkpoint.load(_FOLLOWED_FILE, _Followed).batch)
