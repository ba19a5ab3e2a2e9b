"""Claimed shares: on one machine, each task of a micro-batch claims the share of a topic that its worker is nearest to.

Spark gives a task to any worker that is free. Half of the time two workers would exchange their partitions, and each
would drop what its client has read ahead, and begin anew elsewhere. Which task reads a share makes no difference to the
output, since slots sort what they get.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pyspark import TaskContext

from penstock.spark.carried_bodies import unwritable

__all__ = ["claim_share"]

ShareT = TypeVar("ShareT")


def claim_share(folder: str, stream: str, shares: Sequence[ShareT], nearness: Sequence[int]) -> ShareT:
    """Return the nearest share of a stream that no other task of the stage has claimed; of equals, the first.

    There are as many tasks as shares. A repeated task gets the same share again. Claims are links in the folder, which
    goes with the micro-batch. Raises ExternalSystemError when they cannot be written.
    """
    task = TaskContext.get()
    assert task is not None
    name, claimant = f"claim-{task.stageId()}-{quote(stream, safe='')}", str(task.partitionId())
    claims = [Path(folder, f"{name}-{number}") for number in range(len(shares))]
    try:
        for share, claim in zip(shares, claims, strict=True):
            if claim.is_symlink() and str(claim.readlink()) == claimant:
                return share
        for number in sorted(range(len(shares)), key=lambda one: (-nearness[one], one)):
            if _claim(claims[number], claimant):
                return shares[number]
    except OSError as e:
        claims_are = f"The claims of a micro-batch's tasks to the stream {stream!r} are links"
        raise unwritable(claims_are, folder, e) from e
    raise AssertionError("there are as many tasks as shares")


def _claim(path: Path, claimant: str) -> bool:
    try:
        # It is made with its content, even if the task is killed.
        path.symlink_to(claimant)
    except FileExistsError:
        return False
    return True
