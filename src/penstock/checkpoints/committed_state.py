"""Committed state: which micro-batches a checkpoint keeps, and what the slots of a step hold after one (no Spark)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.state_files import state_files
from penstock.checkpoints.stored_slots import stored_slots
from penstock.errors import CheckpointError
from penstock.runtime.cuts import batch_numbers
from penstock.runtime.seed import seed_slots
from penstock.runtime.slots import first_key_groups, partition_of
from penstock.state.stored_blocks import Content

__all__ = ["CommittedState", "find_committed_batch", "read_committed"]

_MAX_ATTEMPTS: Final = 20
_T = TypeVar("_T")


def find_committed_batch(checkpoint: Checkpoint, lineage: Lineage, wanted: int | None) -> int:
    """Return the micro-batch to capture, by the job's own number. Raises CheckpointError if it is not kept."""
    numbers = [lineage.first_batch + n for n in batch_numbers(checkpoint.spark_folder / "commits")]
    if not numbers and lineage.origin.has_state and wanted in (None, lineage.first_batch - 1):
        return lineage.first_batch - 1
    if not numbers:
        raise CheckpointError(
            f"The job in {checkpoint.folder} has committed no micro-batch yet, so there is no state to capture. Let it "
            "process something first."
        )
    if wanted is None:
        return numbers[-1]
    if wanted not in numbers:
        raise CheckpointError(
            f"The checkpoint {checkpoint.folder} does not keep the state after micro-batch {wanted}; it keeps "
            f"{numbers[0]} to {numbers[-1]}."
        )
    return wanted


@dataclass(frozen=True)
class CommittedState:
    """The state of a job after a committed micro-batch, which has the job's own number."""

    checkpoint: Checkpoint
    lineage: Lineage
    batch: int

    def slots(
        self, node: str, key_groups: range | None = None
    ) -> Generator[tuple[int, Mapping[str, Content]], None, None]:
        """Yield the slots of a step that hold anything, in the order of their partition numbers, with their entries.

        With `key_groups`, only slots that have any of these are read. A slot that has not run yet has the entries of
        its seed. Raises CheckpointError when files are damaged, or missing because the job has gone on and removed
        them. A caller that drops its entries before it takes the next slot has one slot in memory at a time.
        """
        lineage = self.lineage
        firsts = first_key_groups(lineage.key_groups, lineage.parallelism)
        groups = range(lineage.key_groups) if key_groups is None else key_groups
        numbers = sorted({partition_of(group, lineage.key_groups, lineage.parallelism) for group in groups})
        for number, entries in self._stored(node, numbers):
            if entries:
                yield number, entries
            elif lineage.origin.has_state:
                yield from seed_slots(self.checkpoint.seed, node, {number: firsts[number]})
            del entries

    def _stored(self, node: str, numbers: list[int]) -> Iterator[tuple[int, Mapping[str, Content]]]:
        """Yield slots with what they have stored; nothing before the first micro-batch."""
        if self.batch < self.lineage.first_batch:
            yield from ((number, {}) for number in numbers)
            return
        with state_files(self.checkpoint.folder) as files:
            spark_batch = self.batch - self.lineage.first_batch
            yield from stored_slots(self.checkpoint.spark_folder, spark_batch, node, files, numbers)


def read_committed(
    checkpoint: Checkpoint, read: Callable[[CommittedState], _T], batch: int | None = None
) -> _T:
    """Return what `read` makes of the state after a micro-batch, by default after the newest committed one.

    A running job removes the files of older micro-batches. If it has done so, `read` is called again with the state
    after a newer one, unless the micro-batch was given. Raises CheckpointError.
    """
    for attempt in itertools.count(1):
        lineage = checkpoint.known_lineage()
        state = CommittedState(checkpoint, lineage, find_committed_batch(checkpoint, lineage, batch))
        try:
            return read(state)
        except CheckpointError:
            newer = find_committed_batch(checkpoint, checkpoint.known_lineage(), batch)
            if newer == state.batch or attempt == _MAX_ATTEMPTS:
                raise
    raise AssertionError
