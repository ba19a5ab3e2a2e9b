"""Fetched removal: what commands referred to leaves the store when no micro-batch can read it again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import ExternalSystemError
from penstock.jobs.cluster_state import kept_files
from penstock.runtime.packed_rows import FETCHED
from penstock.sources.fetched import KeptInStore

__all__ = ["FetchedRemoval", "fetched_removal"]


class FetchedRemoval:
    """The removal of what tasks have kept in a store. The folder of a checkpoint forgets by itself.

    A checkpoint can go back by `retained` micro-batches, and what these have read is read again then. So a content goes
    once more than that many have followed the last one that has read it.
    """

    def __init__(self, kept: KeptInStore, retained: int) -> None:
        self._kept: Final = kept
        self._retained: Final = retained

    def remove_unread(self, batch_id: int, reports: Iterable[Any], read: dict[str, int]) -> None:
        """Remove what no micro-batch can read again. It is called when a micro-batch is about to be committed.

        `read` has the last micro-batch that has read a content, by its name; it is brought up to date. What cannot be
        removed stays in it, for the next time.
        """
        for report in reports:
            if report.kind == FETCHED:
                read[report.name] = max(batch_id, read.get(report.name, batch_id))
        gone = sorted(name for name, last in read.items() if batch_id - last > self._retained)
        if not gone:
            return
        try:
            self._kept.remove(gone)
        except ExternalSystemError:
            # They cost space only.
            return
        for name in gone:
            del read[name]


def fetched_removal(checkpoint: Checkpoint, retained: int) -> FetchedRemoval | None:
    """Return the removal for a checkpoint on a store, None for a checkpoint in a folder."""
    kept = kept_files(checkpoint)
    return FetchedRemoval(kept, retained) if isinstance(kept, KeptInStore) else None
