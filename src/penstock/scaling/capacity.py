"""Capacity: the rate of arrival at a job and the cost of its micro-batches, estimated from their metrics.

As in DS2 (Kalavri et al., "Three steps is all you need: fast, accurate, automatic scaling decisions for distributed
streaming dataflows", OSDI 2018), the rate of arrival is compared with what the job could process if it did nothing
else. A micro-batch costs time even when it is empty, so its time is first split into three parts: a part that does not
depend on records, the time of the driver for each record, and the time of the tasks for each record, which more tasks
share. The slopes are medians over pairs of micro-batches (Sen, "Estimates of the regression coefficient based on
Kendall's tau", 1968), so that a few slow micro-batches do not move them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.metrics.batch_metrics import BatchMetrics

__all__ = [
    "HOT",
    "MIN_GAIN",
    "Bounds",
    "Cost",
    "Load",
    "LoadModel",
    "Measured",
    "highest_rate",
    "measure_capacity",
    "tasks_text",
]

HOT: Final = 1.5
"""A step is uneven when the slot with the most records has this many times the mean."""

MIN_GAIN: Final = 1.1
"""More tasks that change the load or the capacity by less than this factor are of no use."""

_MIN_BATCHES: Final = 3
_MIN_FITTED: Final = 8
_MAX_FITTED: Final = 250
_MIN_SPREAD: Final = 0.05
_GOOD_SPREAD: Final = 0.25
# With fewer records per task than this, skew is down to chance.
_RECORDS_FOR_SKEW: Final = 20
_SIGMA_OF_MAD: Final = 1.4826
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """The limits on the number of useful tasks: the key groups of the job, and its cores if known."""

    key_groups: int
    cores: int | None = None

    @property
    def most(self) -> int:
        """The largest number of tasks that can work at the same time."""
        return self.key_groups if self.cores is None else min(self.key_groups, self.cores)


class Cost(msgspec.Struct, frozen=True):
    """The cost of a micro-batch in seconds, at the parallelism at which it was measured.

    `fixed_s` does not depend on records. `driver_s` is the cost of one record where only one process works, `tasks_s`
    its cost where all tasks work in parallel, and `error_s` the standard error of `tasks_s`. If the micro-batches were
    too similar to determine these, `is_determined` is false and all time counts as time of records. `driver_s` and
    `tasks_s` are then upper bounds.
    """

    fixed_s: float
    driver_s: float
    tasks_s: float
    error_s: float = 0.0
    is_determined: bool = True


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a job over the last seconds, at one parallelism. Rates are in records per second.

    `batch_interval_ms` is the setting of the run.

    `arriving` is the rate of arrival, read or not; `processed` the rate of reading. `batch_s` is how long the job
    worked in a micro-batch. Lag is that at the end; None if the sources do not report it. `skew` is that of the most
    uneven step, `hot_step`, over all micro-batches with enough records. `hot_share`, if known, is the share of its
    records that the fullest slot has at any number of tasks, because one key group has them. `rate_change` is the
    difference between the two halves of the time, as a fraction of `arriving`.
    """

    parallelism: int
    batch_interval_ms: int
    batches: int
    seconds: float
    arriving: float
    processed: float
    utilisation: float
    batch_s: float
    phases: dict[str, float]
    lag_records: float | None
    lag_s: float | None
    skew: float | None
    hot_step: str | None
    hot_share: float | None
    rate_change: float
    cost: Cost

    @property
    def task_capacity(self) -> float | None:
        """The records per second that one task processes while it works; None if its time is negligible."""
        return None if self.cost.tasks_s <= 0 else 1 / (self.cost.tasks_s * self.parallelism)


class Load(msgspec.Struct, frozen=True):
    """The fraction of time for which a job would work: at least, likely and at most. Above 1 it cannot keep up."""

    low: float
    likely: float
    high: float


def measure_capacity(found: Sequence[BatchMetrics], bounds: Bounds, window_s: float) -> Measured | None:
    """Measure a job over the last `window_s` seconds, from its metrics, oldest first. Some of them may be older.

    Costs come from all micro-batches of the run at its parallelism except the first, which warms up. Returns None if
    there are fewer than three.
    """
    run = _newest_run(found)
    if len(run) <= _MIN_BATCHES:
        return None
    before, window = _window(run, window_s)
    last = window[-1]
    seconds = (last.ended - before.ended).total_seconds()
    if seconds <= 0:
        return None
    batches = last.totals.batches - before.totals.batches
    busy_s = last.totals.busy_seconds - before.totals.busy_seconds
    processed = _processed(before, last) / seconds
    arriving = _arriving(before, last)
    lag_records, lag_s = _lag(last, arriving)
    skew, hot_step = _skew(run[1:])
    return Measured(
        parallelism=last.parallelism,
        batch_interval_ms=last.batch_interval_ms,
        batches=batches,
        seconds=seconds,
        arriving=arriving,
        processed=processed,
        utilisation=min(1.0, busy_s / seconds),
        batch_s=busy_s / batches,
        phases={
            name: (total - before.totals.phases.get(name, 0.0)) / batches
            for name, total in last.totals.phases.items()
        },
        lag_records=lag_records,
        lag_s=lag_s,
        skew=skew,
        hot_step=hot_step,
        hot_share=_hot_share(found, bounds),
        rate_change=_change(before, window, arriving),
        cost=_estimate_cost(run[1:][-_MAX_FITTED:]),
    )


def highest_rate(found: Sequence[BatchMetrics], window_s: float, over_s: float) -> float | None:
    """Return the highest rate of arrival in any window of the last `over_s` seconds.

    Returns None if the run has not had its parallelism for that long.
    """
    run = _newest_run(found)
    if len(run) <= _MIN_BATCHES or (run[-1].ended - run[0].ended).total_seconds() < over_s:
        return None
    ages = [(run[-1].ended - metrics.ended).total_seconds() for metrics in run]
    first = max(place for place, age in enumerate(ages) if age >= over_s)
    highest, start = 0.0, len(run) - 1
    for place in range(len(run) - 1, first, -1):
        if ages[place - 1] - ages[start] >= window_s or place - 1 == first:
            highest = max(highest, _arriving(run[place - 1], run[start]))
            start = place - 1
    return highest


@dataclass(frozen=True)
class LoadModel:
    """The load of a job at any rate, in records per second, and number of tasks, from its measurements.

    It assumes that micro-batches begin as far apart as allowed, `longest_interval_s`, which minimises the fixed part.
    The fullest task determines the time: twice the tasks take half of it, provided that there are cores and key groups
    for them and no key group is hot.
    """

    measured: Measured
    bounds: Bounds
    longest_interval_s: float

    @property
    def tasks(self) -> int:
        """The present number of tasks."""
        return self.measured.parallelism

    def at(self, rate: float, tasks: int) -> float:
        """Return the likely fraction of time for which this many tasks would work."""
        cost = self.measured.cost
        part = self._fullest(tasks) / self._fullest(self.tasks)
        return cost.fixed_s / self.longest_interval_s + rate * (cost.driver_s + cost.tasks_s * part)

    def now(self) -> Load:
        """Return the current load, with its margin of error."""
        found = self.measured
        model = self.at(found.arriving, self.tasks)
        # The load is at most what was measured, since micro-batches began at least as often.
        seen = found.utilisation * (found.arriving / found.processed if found.processed > 0 else 1.0)
        likely = min(model, seen)
        if not found.cost.is_determined:
            return Load(0.0, likely, max(likely, seen))
        error = 2 * found.arriving * found.cost.error_s
        return Load(max(0.0, min(model - error, seen)), likely, min(model + error, max(likely, seen)))

    def at_most(self) -> LoadModel:
        """Return the model with the highest costs that are consistent with the metrics."""
        cost = self.measured.cost
        dear = msgspec.structs.replace(cost, tasks_s=cost.tasks_s + 2 * cost.error_s)
        return dataclasses.replace(self, measured=msgspec.structs.replace(self.measured, cost=dear))

    def tasks_for(self, rate: float, utilisation: float) -> int | None:
        """Return the least number of tasks at which the load is at most `utilisation`; None if none is enough."""
        wanted = (n for n in range(1, self.bounds.most + 1) if self.at(rate, n) <= utilisation)
        return next(wanted, None)

    def is_gain(self, rate: float, tasks: int) -> bool:
        """Return whether this number of tasks, larger than the present one, would be of use."""
        return self.at(rate, tasks) * MIN_GAIN <= self.at(rate, self.tasks)

    def capacity(self) -> float | None:
        """Return the most records per second that the job can process if it does nothing else; None if not known."""
        fixed = self.at(0.0, self.tasks)
        each = self.at(1.0, self.tasks) - fixed
        return max(0.0, 1 - fixed) / each if each > 0 else None

    def _fullest(self, tasks: int) -> float:
        """Return the share of the records that the fullest of this many tasks has."""
        useful = min(tasks, self.bounds.most)
        is_now = useful == min(self.tasks, self.bounds.most)
        if self.measured.hot_share is not None and not is_now:
            return max(1 / useful, self.measured.hot_share)
        return min(1.0, max(self.measured.skew or 1.0, 1.0) / useful)


def tasks_text(tasks: int) -> str:
    """Format a number of tasks.

    >>> tasks_text(1)
    '1 task'
    """
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _newest_run(found: Sequence[BatchMetrics]) -> list[BatchMetrics]:
    """Return the metrics of the newest run at its present parallelism."""
    run: list[BatchMetrics] = []
    for metrics in reversed(found):
        if run and (metrics.job_id, metrics.parallelism) != (run[-1].job_id, run[-1].parallelism):
            break
        run.append(metrics)
    return run[::-1]


def _window(run: list[BatchMetrics], window_s: float) -> tuple[BatchMetrics, list[BatchMetrics]]:
    """Return the metrics just before the window that ends with the newest ones, and those in it."""
    start = len(run) - _MIN_BATCHES
    while start > 1 and (run[-1].ended - run[start - 1].ended).total_seconds() < window_s:
        start -= 1
    return run[start - 1], run[start:]


def _processed(before: BatchMetrics, last: BatchMetrics) -> float:
    return sum(last.totals.records_in.values()) - sum(before.totals.records_in.values())


def _arriving(before: BatchMetrics, last: BatchMetrics) -> float:
    """Return the rate of arrival between the ends of two micro-batches: what was read, plus the growth of lag.

    If lag is not known in records, lag in seconds is used: a job that reads 0.8 s of a stream in each second falls
    behind by 0.2 s per second. Lag varies by up to the length of a micro-batch, so that much of a change is ignored.
    """
    seconds = (last.ended - before.ended).total_seconds()
    batch_s = seconds / max(1, last.totals.batches - before.totals.batches)
    rate = 0.0
    for stream, total in last.totals.records_in.items():
        read = total - before.totals.records_in.get(stream, 0)
        then, now = before.lag.get(stream), last.lag.get(stream)
        if then is None or now is None:
            rate += read / seconds
        elif then.records is not None and now.records is not None:
            rate += max(0.0, read + now.records - then.records) / seconds
        elif then.seconds is not None and now.seconds is not None:
            behind_s = now.seconds - then.seconds
            behind_s -= math.copysign(min(batch_s, abs(behind_s)), behind_s)
            rate += read / seconds / (1 - min(0.95, behind_s / seconds))
        else:
            rate += read / seconds
    return rate


def _change(before: BatchMetrics, window: list[BatchMetrics], arriving: float) -> float:
    """Return the difference of the rate between the two halves of a window, as a fraction of the rate."""
    half = before.ended + (window[-1].ended - before.ended) / 2
    middle = min(window[:-1], key=lambda metrics: abs(metrics.ended - half))
    if arriving <= 0 or not before.ended < middle.ended < window[-1].ended:
        return 0.0
    return abs(_arriving(middle, window[-1]) - _arriving(before, middle)) / arriving


def _lag(last: BatchMetrics, arriving: float) -> tuple[float | None, float | None]:
    """Return the lag in records and in seconds, as far as the sources report it."""
    records = [lag.records for lag in last.lag.values() if lag.records is not None]
    waits = [lag.seconds for lag in last.lag.values() if lag.seconds is not None]
    if not waits and records and arriving > 0:
        # Records leave in the order in which they arrived.
        waits = [sum(records) / arriving]
    return (float(sum(records)) if records else None), max(waits, default=None)


def _skews(rows: Sequence[BatchMetrics]) -> dict[str, float]:
    """Return the skew, weighted by records, of each step with at least a tenth of the records of the largest one."""
    records: dict[str, int] = {}
    weighted: dict[str, float] = {}
    for metrics in rows[-_MAX_FITTED:]:
        for name, step in metrics.steps.items():
            if step.skew is not None and step.records >= _RECORDS_FOR_SKEW * metrics.parallelism:
                records[name] = records.get(name, 0) + step.records
                weighted[name] = weighted.get(name, 0.0) + step.skew * step.records
    most = max(records.values(), default=0)
    return {name: weighted[name] / count for name, count in records.items() if count * 10 >= most}


def _skew(rows: Sequence[BatchMetrics]) -> tuple[float | None, str | None]:
    skews = _skews(rows)
    if not skews:
        return None, None
    name = max(sorted(skews), key=lambda name: skews[name])
    return skews[name], name


def _hot_share(found: Sequence[BatchMetrics], bounds: Bounds) -> float | None:
    """Return the share of a step's records that one key group has, if the metrics prove it.

    They do if the fullest slot kept its share at a higher parallelism, or has a single key group.
    """
    shares: dict[str, dict[int, float]] = {}
    for (_, parallelism), group in itertools.groupby(found, key=lambda f: (f.job_id, f.parallelism)):
        for name, skew in _skews(list(group)[1:]).items():
            shares.setdefault(name, {})[parallelism] = skew / parallelism
    proven: list[float] = []
    for share_of in shares.values():
        for tasks, share in share_of.items():
            is_hot = share * tasks >= HOT
            kept = any(fewer < tasks and share >= 0.9 * before for fewer, before in share_of.items())
            if is_hot and (kept or tasks >= bounds.key_groups):
                proven.append(share)
    return max(proven, default=None)


def _estimate_cost(rows: Sequence[BatchMetrics]) -> Cost:
    """Estimate the cost of micro-batches."""
    records = np.array([sum(metrics.records_in.values()) for metrics in rows], dtype=float)
    busy = np.array([metrics.busy_s for metrics in rows])
    tasks = np.array([min(f.busy_s, f.phases.get("processing", f.busy_s)) for f in rows])
    driver = busy - tasks
    total, spread = float(records.sum()), float(records.std())
    if len(rows) >= _MIN_FITTED and spread >= _MIN_SPREAD * float(records.mean()) and total:
        tasks_fixed_s, tasks_s, error_s = _fit_line(records, tasks)
        driver_fixed_s, driver_s, _ = _fit_line(records, driver)
        # If micro-batches are of nearly one size, noise may hide the cost of records, or make all of it look fixed.
        if spread >= _GOOD_SPREAD * float(records.mean()) or tasks_s > 2 * error_s:
            return Cost(tasks_fixed_s + driver_fixed_s, driver_s, tasks_s, error_s)
    driver_s, tasks_s = (float(part.sum()) / total if total else 0.0 for part in (driver, tasks))
    return Cost(0.0, driver_s, tasks_s, is_determined=False)


def _fit_line(x: _Floats, y: _Floats) -> tuple[float, float, float]:
    """Fit a line: return its start and slope, neither of them negative, and the standard error of the slope."""
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] - x[one]
    is_pair = apart != 0
    slope = max(0.0, float(np.median((y[other] - y[one])[is_pair] / apart[is_pair])))
    start = float(np.median(y - slope * x))
    if start < 0:
        start, slope = 0.0, float(y.sum() / x.sum())
    rest = y - start - slope * x
    sigma = _SIGMA_OF_MAD * float(np.median(np.abs(rest - np.median(rest))))
    return start, slope, sigma / (float(x.std()) * len(x) ** 0.5)
