"""Committed state: which micro-batches a checkpoint keeps, and what the slots of a step hold after one (no Spark)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.state_files import state_files
from penstock.checkpoints.stored_slots import stored_slots
from penstock.errors import CheckpointError
from penstock.runtime.cuts import batch_numbers
from penstock.runtime.seed import seed_slots
from penstock.runtime.slots import first_key_groups
from penstock.state.stored_blocks import Content

__all__ = ["committed_slots", "find_committed_batch"]


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


def committed_slots(
    checkpoint: Checkpoint, lineage: Lineage, batch: int, node: str
) -> Iterator[tuple[int, Mapping[str, Content]]]:
    """Yield the slots of a step, by partition number, with their entries after a committed micro-batch.

    The micro-batch has the job's own number. A slot that has not run yet has the entries of its seed. Raises
    CheckpointError when files are damaged, or missing because the job has gone on and removed them.
    """
    ran: set[int] = set()
    if batch >= lineage.first_batch:
        with state_files(checkpoint.folder) as files:
            spark_batch = batch - lineage.first_batch
            for number, entries in stored_slots(checkpoint.spark_folder, spark_batch, node, files):
                ran.add(number)
                yield number, entries
    if lineage.origin.has_state:
        firsts = first_key_groups(lineage.key_groups, lineage.parallelism)
        yield from seed_slots(
            checkpoint.seed, node, {n: first for n, first in firsts.items() if n not in ran}
        )
