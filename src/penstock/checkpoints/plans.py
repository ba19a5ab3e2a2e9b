"""Plans: micro-batches that Spark has planned and not committed, which a run must finish or may take back.

Once a plan stands in Spark's log, sinks may hold parts of what came of it, and know them by its number. So it is only
taken back by the run that made it, and only if no part of it was begun; else the next run has to do all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.recovery import remove_state_of_nothing
from penstock.runtime.cuts import batch_numbers

__all__ = ["Plans", "pending_plan"]


def pending_plan(planned: Sequence[int], committed: Sequence[int]) -> int | None:
    """The newest micro-batch that was planned and not committed, by the numbers in Spark's logs.

    >>> pending_plan([3, 4, 5], [3, 4])
    5
    >>> pending_plan([3, 4], [3, 4]) is None
    True
    """
    newest = max(planned, default=-1)
    return newest if newest > max(committed, default=-1) else None


class Plans:
    """The plans of a checkpoint as a run finds them, before its first query starts, and what it adds.

    Numbers are those of the job's micro-batches, which are counted on when Spark begins anew.
    """

    def __init__(self, checkpoint: Checkpoint, lineage: Lineage) -> None:
        self._folder: Final = checkpoint.spark_folder
        self._offsets: Final = checkpoint.spark_folder / "offsets"
        self._commits: Final = checkpoint.spark_folder / "commits"
        self._first: Final = lineage.first_batch
        found = self._pending()
        # The newest one that sinks may hold a part of, whoever has planned it.
        self._begun = -1 if found is None else self._first + found
        self._inherited = found

    @property
    def pending(self) -> int | None:
        """The micro-batch of an earlier run that is still to be finished, if there is one."""
        if self._inherited is not None and (self._commits / str(self._inherited)).exists():
            self._inherited = None
        return None if self._inherited is None else self._first + self._inherited

    @property
    def newest(self) -> int:
        """The newest micro-batch that was planned; the one before the first if there is none."""
        return self._first + max(batch_numbers(self._offsets), default=-1)

    def begin(self, batch_id: int) -> None:
        """Note that a micro-batch was begun: sinks may hold a part of it from now on."""
        self._begun = batch_id

    def forget_refused(self) -> None:
        """Take back that a micro-batch was planned which was refused, since the job was to stop.

        Nothing of it was done. The job then stands between two micro-batches, and can be rescaled.
        """
        planned = self._pending()
        if planned is None or self._first + planned <= self._begun:
            return
        # First, so that a kill in between leaves what a start makes good.
        remove_state_of_nothing(self._folder)
        (self._offsets / str(planned)).unlink()
        (self._offsets / f".{planned}.crc").unlink(missing_ok=True)

    def _pending(self) -> int | None:
        return pending_plan(batch_numbers(self._offsets), batch_numbers(self._commits))
