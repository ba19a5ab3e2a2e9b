"""Batches: the end of each micro-batch of a query, for any Spark query with a checkpoint."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["batch_ends", "last_batch", "times_beside"]


def batch_ends(checkpoint: Path) -> list[float]:
    """Return when each micro-batch was committed, in seconds of the wall clock: the times of Spark's commit files."""
    return [path.stat().st_mtime for path in sorted(_commits(checkpoint), key=lambda path: int(path.name))]


def last_batch(checkpoint: Path) -> int:
    """Return the number of the last committed micro-batch, -1 if there is none."""
    return max((int(path.name) for path in _commits(checkpoint)), default=-1)


def times_beside(
    batches: Iterable[dict[str, Any]], spans: Sequence[tuple[float, float]], *, between: bool = False
) -> dict[str, Any]:
    """Compare the micro-batches that ended before the first span with those that ran during any span.

    With `between`, those that ran between two spans count as before, too.

    Return the median ms of both, their ratio, and how many there were. `batches` are those of a job's account. A span
    is a start and an end in seconds of the wall clock.
    """
    before, during = [], []
    for batch in batches:
        began_s = dt.datetime.fromisoformat(batch["began"]).timestamp()
        taken_ms = batch["ms"]["triggerExecution"]
        ended_s = began_s + taken_ms / 1_000
        if any(began_s < end and ended_s > begin for begin, end in spans):
            during.append(taken_ms)
        elif ended_s < spans[-1 if between else 0][0]:
            before.append(taken_ms)
    before_ms, during_ms = statistics.median(before), statistics.median(during)
    return {
        "before_ms": round(before_ms),
        "during_ms": round(during_ms),
        "ratio": round(during_ms / before_ms, 2),
        "batches_before": len(before),
        "batches_during": len(during),
    }


def _commits(checkpoint: Path) -> list[Path]:
    return [path for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
