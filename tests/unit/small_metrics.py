"""Metrics of micro-batches as jobs write them, without a job."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.metrics.batch_metrics import BatchMetrics, Totals

__all__ = ["metrics_of_batch"]


def metrics_of_batch(batch: int, started: dt.datetime, busy_s: float, /, **more: Any) -> BatchMetrics:
    """The metrics of a micro-batch of the job `rooms` that took so long; with all that a test gives beside it."""
    known = {"job": "rooms", "job_id": "rooms-1", "parallelism": 2, "totals": Totals(batches=batch + 1)}
    times = {"started": started, "ended": started + dt.timedelta(seconds=busy_s), "duration_s": busy_s}
    return BatchMetrics(**({"batch": batch} | known | times | more))
