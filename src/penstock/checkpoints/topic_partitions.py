"""Topic partitions: keep those that a micro-batch was planned with, so that a replay computes the same event time.

A topic may get partitions at any time. A run knows the partitions at its start, and uses them from the first
micro-batch that it plans. A micro-batch that an earlier run has planned is repeated with the partitions of that run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.spark_state_files import damage
from penstock.runtime.cuts import newest_batch

__all__ = ["Known", "keep_partitions", "known_from"]

_FILE: Final = "partitions.json"

Partitions: TypeAlias = Mapping[str, tuple[str, ...]]
"""The names of the partitions of each stream."""


class Known(msgspec.Struct, frozen=True):
    """The partitions that are known from a micro-batch on."""

    first_batch: int
    partitions: dict[str, tuple[str, ...]]


def keep_partitions(
    checkpoint: Checkpoint, lineage: Lineage, found: Partitions
) -> tuple[int, Partitions] | None:
    """Keep the partitions that a run has found, durably, for the micro-batches that it will plan.

    Returns the micro-batch, by Spark's number, that an earlier run has planned but not committed, with the partitions
    that were known then; None if there is none.
    """
    if not found:
        return None
    path = checkpoint.folder / _FILE
    before = _stored(path)
    planned, committed = (newest_batch(checkpoint.spark_folder / log) for log in ("offsets", "commits"))
    kept, replayed = known_from(before, lineage.first_batch + planned, planned > committed, found)
    if kept != before:
        checkpoint.save(_FILE, kept)
    return None if replayed is None else (planned, replayed)


def _stored(path: Path) -> list[Known]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Known])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as e:
        remedy = "Restore the file from a copy of the checkpoint, or delete it if no partitions were added meanwhile."
        raise damage(path, f"cannot be read ({e})", remedy) from e


def known_from(
    before: Sequence[Known], planned: int, is_replayed: bool, found: Partitions
) -> tuple[list[Known], Partitions | None]:
    """Return the known partitions by first micro-batch, and those for a replay of the planned one, if there is one."""
    then = [known for known in before if known.first_batch <= planned][-1:] if is_replayed else []
    return [*then, Known(planned + 1, dict(found))], then[0].partitions if then else None
