"""Batches: when each micro-batch of a query ended, for any Spark query that keeps a checkpoint."""

from __future__ import annotations

from pathlib import Path

__all__ = ["batch_ends"]


def batch_ends(checkpoint: Path) -> list[float]:
    """When each micro-batch was committed, in seconds of the wall clock: the times of Spark's commit files."""
    commits = [path for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
    return [path.stat().st_mtime for path in sorted(commits, key=lambda path: int(path.name))]
