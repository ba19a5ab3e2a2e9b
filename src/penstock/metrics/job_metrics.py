"""Job metrics: how a job is doing now, from the figures in its checkpoint."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from penstock.metrics.batch_metrics import Figures, newest_figures, read_figures
from penstock.metrics.rates import WINDOW_S, Rates, rates

__all__ = ["Measured", "measured"]


@dataclass(frozen=True)
class Measured:
    """The figures of a job's newest micro-batch, if there is one, whether it runs, and its rates."""

    newest: Figures | None
    is_running: bool
    rates: Rates


def measured(checkpoint: Path, window_s: float = WINDOW_S, *, is_running: bool) -> Measured:
    """How a job is doing; of one that does not run, how it did at its end. Raises CheckpointError."""
    newest = newest_figures(checkpoint)
    if newest is None:
        return Measured(None, is_running, Rates())
    until = max(dt.datetime.now(dt.UTC), newest.ended) if is_running else newest.ended
    found = list(read_figures(checkpoint, until - dt.timedelta(seconds=window_s)))
    return Measured(newest, is_running, rates(found, until, window_s))
