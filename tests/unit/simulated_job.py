"""A job that is simulated in seconds of its own: what arrives, what micro-batches cost, and what a rescale costs.

Its metrics are those that a run writes, so that scaling can be judged over hours without waiting for them.
"""

from __future__ import annotations

import bisect
import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.metrics.batch_metrics import BatchMetrics, Lag, StepBatchMetrics, Totals
from penstock.scaling.autoscale_decisions import Decision, Rescale, decide
from penstock.scaling.capacity import Bounds
from penstock.scaling.policy import ScalingPolicy

BEGUN = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return BEGUN + dt.timedelta(seconds=seconds)


@dataclass(frozen=True)
class Nature:
    """How a simulated job is: what one task can do, and what a micro-batch costs beside it."""

    task_rate: float = 1000.0
    fixed_s: float = 0.3
    driver_s: float = 0.0
    interval_s: float = 0.0
    noise: float = 0.0
    downtime_s: float = 5.0
    max_records: int = 1 << 60
    """Of one micro-batch."""
    hot_share: float = 0.0
    key_groups: int = 128
    cores: int | None = None
    tells: str = "records"
    """In what the source tells its lag: records, seconds or nothing."""
    seed: int = 0


@dataclass
class SimulatedJob:
    """A job at work on a load, the records per second that arrive at each time."""

    nature: Nature
    load: Callable[[float], float]
    hours: float = 2.0
    tasks: int = 1
    metrics: list[BatchMetrics] = field(default_factory=list)
    rescales: list[Rescale] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.nature.seed)
        self._arrived = np.concatenate(
            [[0.0], np.cumsum([self.load(float(s)) for s in range(int(self.hours * 3600) + 7200)])]
        )
        self._read = 0
        self._totals = Totals(phases={}, records_in={"visits": 0})

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.nature.key_groups, self.nature.cores)

    def arrived(self, seconds: float) -> int:
        whole = int(seconds)
        before, after = self._arrived[whole : whole + 2]
        return int(before + (after - before) * (seconds - whole))

    def waiting(self) -> int:
        return self.arrived(self.now) - self._read

    def waits_s(self) -> float:
        """How long the oldest record that waits has been waiting."""
        return max(0.0, self.now - float(np.searchsorted(self._arrived, self._read, "right")))

    def batch(self) -> BatchMetrics:
        """One micro-batch, and the wait before it."""
        nature = self.nature
        started = self.now
        if self.metrics and nature.interval_s:
            last = (self.metrics[-1].started - BEGUN).total_seconds()
            started = max(started, last + nature.interval_s)
        while self.arrived(started) == self._read:
            started += 0.1
        end = min(self.arrived(started), self._read + self.nature.max_records)
        records, self._read = end - self._read, end
        useful = min(self.tasks, nature.key_groups, nature.cores or self.tasks)
        share = max(1 / useful, nature.hot_share)
        noise = self._random.uniform(1 - nature.noise, 1 + nature.noise)
        tasks_s = (nature.fixed_s * 0.6 + records * share / nature.task_rate) * noise
        driver_s = (nature.fixed_s * 0.4 + records * nature.driver_s) * noise
        busy_s = tasks_s + driver_s
        self.now = started + busy_s
        totals = self._totals
        phases = {"processing": tasks_s, "planning": driver_s}
        self._totals = Totals(
            batches=totals.batches + 1,
            busy_seconds=totals.busy_seconds + busy_s,
            phases={name: totals.phases.get(name, 0.0) + phase for name, phase in phases.items()},
            records_in={"visits": totals.records_in["visits"] + records},
        )
        found = BatchMetrics(
            job="shop",
            job_id="shop-1",
            batch=totals.batches,
            started=at(started),
            ended=at(self.now),
            duration_s=busy_s,
            phases=phases,
            batch_interval_ms=round(1000 * nature.interval_s),
            parallelism=self.tasks,
            cores=nature.cores or 0,
            records_in={"visits": records},
            lag=self._lag(),
            steps={
                "count": StepBatchMetrics(
                    records=records, skew=max(1.0, share * self.tasks), state_bytes=12_000_000
                )
            },
            totals=self._totals,
        )
        self.metrics.append(found)
        return found

    def run(self, until: float, policy: ScalingPolicy | None = None, look_s: float = 20.0) -> SimulatedJob:
        """Micro-batches until a time, with a look at the metrics every now and then, when there is a policy."""
        looked = self.now
        while self.now < until:
            self.batch()
            if policy is not None and self.now >= looked + look_s:
                looked = self.now
                self._look(policy)
        return self

    def _look(self, policy: ScalingPolicy) -> None:
        since = bisect.bisect(self.metrics, at(self.now - 900), key=lambda metrics: metrics.ended)
        recent = self.metrics[since:]
        decision = decide(policy, self.rescales, recent, self.bounds, at(self.now))
        assert decision is not None
        self.decisions.append((self.now, decision))
        if decision.action == "none":
            return
        if not decision.dry_run:
            self.tasks = decision.tasks
            self.now += self.nature.downtime_s
        self.rescales.append(
            Rescale(
                at=at(self.now),
                before=decision.before,
                after=decision.tasks,
                downtime_s=self.nature.downtime_s,
                rate=decision.rate,
                capacity=decision.capacity,
            )
        )

    def _lag(self) -> dict[str, Lag]:
        if self.nature.tells == "records":
            return {"visits": Lag(records=self.waiting())}
        return {"visits": Lag(files=1, seconds=self.waits_s())} if self.nature.tells == "seconds" else {}
