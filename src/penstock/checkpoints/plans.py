"""Plans: micro-batches that Spark has planned but not committed, which a run must finish or may take back.

Once a plan is in Spark's log, sinks may hold parts of its output under its number. So only the run that made the plan
takes it back, and only if it has not begun the micro-batch; otherwise the next run repeats all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.recovery import remove_state_of_nothing
from penstock.runtime.cuts import batch_numbers, newest_batch

__all__ = ["Plans", "find_pending_plan"]


def find_pending_plan(planned: Sequence[int], committed: Sequence[int]) -> int | None:
    """Return the newest micro-batch that was planned but not committed, from the numbers in Spark's logs.

    >>> find_pending_plan([3, 4, 5], [3, 4])
    5
    >>> find_pending_plan([3, 4], [3, 4]) is None
    True
    """
    newest = max(planned, default=-1)
    return newest if newest > max(committed, default=-1) else None


class Plans:
    """The plans that a run finds in a checkpoint before its first query starts, and those that it adds.

    Numbers are the job's own for its micro-batches, which continue when Spark starts again from 0.
    """

    def __init__(self, checkpoint: Checkpoint, lineage: Lineage) -> None:
        self._folder: Final = checkpoint.spark_folder
        self._offsets: Final = checkpoint.spark_folder / "offsets"
        self._commits: Final = checkpoint.spark_folder / "commits"
        self._first: Final = lineage.first_batch
        found = self._pending()
        # The newest micro-batch that sinks may hold a part of, whichever run has planned it.
        self._begun = -1 if found is None else self._first + found
        self._inherited = found

    @property
    def pending(self) -> int | None:
        """The micro-batch that an earlier run has planned and this one must finish, None without one."""
        if self._inherited is not None and (self._commits / str(self._inherited)).exists():
            self._inherited = None
        return None if self._inherited is None else self._first + self._inherited

    @property
    def newest(self) -> int:
        """The newest planned micro-batch; the one before the first if none is planned."""
        return self._first + newest_batch(self._offsets)

    def begin(self, batch_id: int) -> None:
        """Record that a micro-batch has begun: sinks may hold a part of it from now on."""
        self._begun = batch_id

    def forget_refused(self) -> None:
        """Take back the plan of a micro-batch that was refused because the job was stopping.

        None of it was processed. The job is then between two micro-batches, and can be rescaled.
        """
        planned = self._pending()
        if planned is None or self._first + planned <= self._begun:
            return
        # First, so that a kill in between leaves only what the next start repairs.
        remove_state_of_nothing(self._folder)
        (self._offsets / str(planned)).unlink()
        (self._offsets / f".{planned}.crc").unlink(missing_ok=True)

    def _pending(self) -> int | None:
        return find_pending_plan(batch_numbers(self._offsets), batch_numbers(self._commits))
