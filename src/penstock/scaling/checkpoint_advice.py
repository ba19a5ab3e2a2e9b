"""Checkpoint advice: advice on a job, from the metrics in its checkpoint."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.metrics.batch_metrics import newest_batch_metrics, read_batch_metrics
from penstock.scaling.advice import Advice, advise
from penstock.scaling.autoscale_decisions import Decision, decide, rescales_of
from penstock.scaling.capacity import Bounds
from penstock.scaling.policy import DEFAULT_POLICY, ScalingPolicy

__all__ = ["advice_on"]

# For how long before the newest metrics older ones tell of skew and of rescales.
_PAST: Final = dt.timedelta(hours=6)


def advice_on(
    checkpoint: Path, policy: ScalingPolicy | None, window_s: float, cores: int | None = None
) -> tuple[Advice, Decision | None]:
    """What a job wants, and what a policy would decide now; without a policy no decision.

    `window_s` is over how long the rate of what arrives is taken; `cores` is as in the newest metrics by default.
    Raises CheckpointError.
    """
    newest = newest_batch_metrics(checkpoint)
    key_groups = Checkpoint(checkpoint.expanduser().absolute()).known_lineage().key_groups
    # Metrics have 0 where Spark does not tell.
    bounds = Bounds(key_groups, cores or (newest.cores if newest is not None else 0) or None)
    found = [] if newest is None else list(read_batch_metrics(checkpoint, newest.ended - _PAST))
    advice = advise(policy or DEFAULT_POLICY, found, bounds, window_s)
    if policy is None or newest is None:
        return advice, None
    return advice, decide(policy, rescales_of(found), found, bounds, newest.ended)
