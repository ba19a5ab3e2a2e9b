"""Batches: the end of each micro-batch of a query, for any Spark query with a checkpoint."""

from __future__ import annotations

from pathlib import Path

__all__ = ["batch_ends", "last_batch"]


def batch_ends(checkpoint: Path) -> list[float]:
    """Return when each micro-batch was committed, in seconds of the wall clock: the times of Spark's commit files."""
    return [path.stat().st_mtime for path in sorted(_commits(checkpoint), key=lambda path: int(path.name))]


def last_batch(checkpoint: Path) -> int:
    """Return the number of the last committed micro-batch, -1 if there is none."""
    return max((int(path.name) for path in _commits(checkpoint)), default=-1)


def _commits(checkpoint: Path) -> list[Path]:
    return [path for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
