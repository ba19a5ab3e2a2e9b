"""Autoscaler: reads the metrics of jobs with a scaling policy, decides, and requests rescales.

It reads past decisions from the store each time, so that the next manager can continue after one is killed.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import (
    JobChangedError,
    LeadershipLostError,
    PenstockError,
    StoreError,
    UnknownIdError,
)
from penstock.metrics.batch_metrics import BatchMetrics, BatchMetricsTail
from penstock.scaling.autoscale_decisions import decide, rescales_of
from penstock.scaling.capacity import Bounds
from penstock.scaling.policy import ScalingPolicy
from penstock.server.manager.scaling_state import (
    AUTOSCALER,
    ScalingDecision,
    arguments_of,
    event_of,
    is_scalable,
    past_rescales,
    policy_for,
)
from penstock.server.runs.directory import ServerDirectory
from penstock.server.store.row_types import JobRow
from penstock.server.store.store import Store, wall_clock_ms
from penstock.server.store.user_requests import Asked

__all__ = ["Autoscaler"]

_log: Final = logging.getLogger(__name__)
# Metrics are kept for longer than a policy looks back, so that an earlier rescale is visible.
_MARGIN_S: Final = 600.0
_MAX_KEPT: Final = 20_000


class Autoscaler:
    """The component that applies the scaling policies of jobs.

    It runs next to the manager's loop because metrics are on the disks of checkpoints, which may be slow.

    Args:
        store: the store of jobs and their rescales.
        home: the folder of the manager.
        now_ms: the clock.

    """

    def __init__(self, store: Store, home: ServerDirectory, now_ms: Callable[[], int] | None = None) -> None:
        self._store: Final = store
        self._home: Final = home
        self._now_ms: Final = now_ms or wall_clock_ms
        self._seen: dict[str, _Seen] = {}

    def look(self, leader: int) -> bool:
        """Check all jobs once and return whether a rescale was requested.

        Raises StoreError, and LeadershipLostError when another manager leads.
        """
        jobs = [job for job in self._store.live_jobs() if job.settings.get("scaling") is not None]
        for job_id in self._seen.keys() - {job.id for job in jobs}:
            del self._seen[job_id]
        # A list, so that every job is checked even after the first rescale.
        asked = [self._check(leader, job) for job in jobs]
        return any(asked)

    def _check(self, leader: int, job: JobRow) -> bool:
        if not is_scalable(job, self._store.unfinished_of(job.id)):
            return False
        try:
            return self._scale(leader, job)
        except (JobChangedError, UnknownIdError):
            # A user has changed the desired status in the meantime.
            return False
        except (LeadershipLostError, StoreError):
            raise
        except (PenstockError, OSError) as e:
            _log.warning("Cannot read the metrics of the job %s: %s", job.id, e)
        return False

    def _scale(self, leader: int, job: JobRow) -> bool:
        policy = policy_for(job.settings)
        assert policy is not None
        now_ms = self._now_ms()
        seen = self._seen_of(job, policy, now_ms)
        # Metrics of an earlier run, which died, do not count.
        if not seen.metrics or seen.metrics[-1].ended.timestamp() * 1000 < job.since_ms:
            return False
        events = self._store.events_by(job.id, AUTOSCALER)
        past = past_rescales(self._store.rescales(job.id), events, rescales_of(seen.metrics))
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        decision = decide(policy, past, seen.metrics, seen.bounds, now)
        assert decision is not None
        asked = decision.action == "rescale" and not decision.dry_run
        if asked:
            asks = Asked(AUTOSCALER, "rescale", arguments_of(decision))
            self._store.begin_if_unchanged(leader, job, asks)
            _log.info("%s: from %d to %d tasks: %s", job.id, decision.before, decision.tasks, decision.reason)
        elif (what := event_of(decision, events)) is not None:
            self._store.add_event_of_leader(leader, job.id, AUTOSCALER, what, arguments_of(decision))
        self._write_decision(job, ScalingDecision(now_ms, decision))
        return asked

    def _seen_of(self, job: JobRow, policy: ScalingPolicy, now_ms: int) -> _Seen:
        if job.id not in self._seen:
            self._seen[job.id] = _Seen(job.folder)
        seen = self._seen[job.id]
        seen.look(now_ms / 1000 - policy.window_s - policy.scale_in_after_s - _MARGIN_S)
        return seen

    def _write_decision(self, job: JobRow, made: ScalingDecision) -> None:
        """Write the decision to a file, for the API and the dashboard."""
        path = self._home.scaling(job.id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, msgspec.json.encode(made), durable=False)


class _Seen:
    """The metrics read so far for a job, and its bounds."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint: Final = checkpoint
        self._new: Final = BatchMetricsTail(checkpoint, from_start=True)
        self._key_groups: int | None = None
        self.metrics: list[BatchMetrics] = []

    def look(self, since_s: float) -> None:
        """Read new metrics, and drop those that ended before a time."""
        found = [*self.metrics, *self._new.read()][-_MAX_KEPT:]
        since = dt.datetime.fromtimestamp(since_s, dt.UTC)
        self.metrics = [metrics for metrics in found if metrics.ended > since]

    @property
    def bounds(self) -> Bounds:
        """The key groups, which are fixed for a checkpoint, and the cores in the newest micro-batch."""
        if self._key_groups is None:
            self._key_groups = Checkpoint(self._checkpoint).known_lineage().key_groups
        # Metrics have 0 if Spark does not report the cores.
        return Bounds(self._key_groups, self.metrics[-1].cores or None)
