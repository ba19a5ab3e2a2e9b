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

# How far back from the newest metrics skew and rescales are looked for.
_PAST: Final = dt.timedelta(hours=6)


def advice_on(
    checkpoint: Path, policy: ScalingPolicy | None, window_s: float, cores: int | None = None
) -> tuple[Advice, Decision | None]:
    """Return the advice on a job, and the decision that a policy would make now; None without a policy.

    `window_s` is the period for the rate of arrival. `cores` defaults to those in the newest metrics. Raises
    CheckpointError if the checkpoint cannot be read.
    """
    newest = newest_batch_metrics(checkpoint)
    key_groups = Checkpoint(checkpoint.expanduser().absolute()).known_lineage().key_groups
    # Metrics have 0 if Spark does not report the cores.
    bounds = Bounds(key_groups, cores or (newest.cores if newest is not None else 0) or None)
    found = [] if newest is None else read_batch_metrics(checkpoint, since=newest.ended - _PAST)
    advice = advise(policy or DEFAULT_POLICY, found, bounds, window_s)
    if policy is None or newest is None:
        return advice, None
    return advice, decide(policy, rescales_of(found), found, bounds, newest.ended)
