"""Job metrics: the current state of a job, from the metrics in its checkpoint."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from penstock.metrics.batch_metrics import BatchMetrics, newest_batch_metrics, read_batch_metrics
from penstock.metrics.rates import WINDOW_S, Rates, rates

__all__ = ["JobMetrics", "measure_job"]


@dataclass(frozen=True)
class JobMetrics:
    """The metrics of a job: those of its newest micro-batch, if any, whether it runs, and its rates."""

    newest: BatchMetrics | None
    is_running: bool
    rates: Rates


def measure_job(checkpoint: Path, window_s: float = WINDOW_S, *, is_running: bool) -> JobMetrics:
    """Measure a job as it is now, or as it was at its end if it does not run.

    Raises CheckpointError when its metrics cannot be read.
    """
    newest = newest_batch_metrics(checkpoint)
    if newest is None:
        return JobMetrics(None, is_running, Rates())
    until = max(dt.datetime.now(dt.UTC), newest.ended) if is_running else newest.ended
    found = read_batch_metrics(checkpoint, since=until - dt.timedelta(seconds=window_s))
    return JobMetrics(newest, is_running, rates(found, until, window_s))
