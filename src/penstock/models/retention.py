"""Retention: which contents of models a checkpoint may drop, since no retained micro-batch knows their versions."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["removable_contents"]


def removable_contents(
    unused: dict[str, int], batch_id: int, kept: Collection[str], used: Collection[str], retained: int
) -> list[str]:
    """Return the contents that a micro-batch makes removable, sorted.

    A checkpoint can go back by `retained` micro-batches, and a savepoint is of one of them. So a content goes once that
    many have followed the one after which no version had it. A repetition of the micro-batch returns the same.

    Args:
        unused: since which micro-batch no version has a content, by its hash; is brought up to date.
        batch_id: the micro-batch that is about to be committed.
        kept: the hashes of all contents in the library.
        used: the hashes of those that versions have after the micro-batch.
        retained: how many micro-batches the checkpoint can go back.

    """
    for sha256 in set(unused) - (set(kept) - set(used)):
        del unused[sha256]
    for sha256 in sorted(set(kept) - set(used)):
        unused.setdefault(sha256, batch_id)
    return sorted(sha256 for sha256, since in unused.items() if batch_id - since > retained)
