"""Rates: how fast a job processes, from the metrics of its last micro-batches."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from penstock.metrics.batch_metrics import BatchMetrics, Totals
from penstock.metrics.latency import Latency, Percentiles, add_latencies, percentiles_of

__all__ = ["WINDOW_S", "Rates", "rates"]

_Runs: TypeAlias = Sequence[Sequence[BatchMetrics]]

WINDOW_S: Final = 60.0
"""The period over which rates are computed, in seconds."""


class Rates(msgspec.Struct, frozen=True):
    """The rates of a job per second, over the last `seconds`.

    `utilisation` is the fraction of time for which it worked, from 0 to 1; `mean_busy_s` is the mean time for which it
    worked in a micro-batch. `latency` is that of all outputs in this time, by sink.
    """

    seconds: float = 0.0
    batches: float = 0.0
    utilisation: float = 0.0
    mean_busy_s: float = 0.0
    records_in: dict[str, float] = {}
    records_out: dict[str, float] = {}
    step_records: dict[str, float] = {}
    dead_letters: float = 0.0
    commands: float = 0.0
    latency: dict[str, Percentiles] = {}


def rates(found: Sequence[BatchMetrics], until: dt.datetime, window_s: float = WINDOW_S) -> Rates:
    """Compute the rates over a window that ends at `until`, from metrics in the order in which they were written.

    If the job began within the window, the rates cover the time since then. A micro-batch counts when it ends.
    """
    since = until - dt.timedelta(seconds=window_s)
    inside = [metrics for metrics in found if since < metrics.ended <= until]
    if not inside:
        return Rates(seconds=window_s)
    is_first = inside[0].totals.batches == 1 and inside[0] == found[0]
    begun = max(since, inside[0].started) if is_first else since
    seconds = (until - begun).total_seconds()
    runs = [list(run) for _, run in itertools.groupby(inside, key=lambda metrics: metrics.job_id)]
    batches = sum(run[-1].totals.batches - run[0].totals.batches + 1 for run in runs)
    busy_s = _sum(runs, lambda totals: totals.busy_seconds, lambda metrics: metrics.busy_s)
    letters = _sum(runs, lambda totals: totals.dead_letters, lambda metrics: metrics.dead_letters)
    commands = _sum(
        runs, lambda totals: sum(totals.commands.values()), lambda metrics: sum(metrics.commands.values())
    )
    step_records = _sum_by_name(
        runs,
        lambda totals: totals.step_records,
        lambda metrics: {name: step.records for name, step in metrics.steps.items()},
    )
    records_in = _sum_by_name(runs, lambda totals: totals.records_in, lambda metrics: metrics.records_in)
    records_out = _sum_by_name(runs, lambda totals: totals.records_out, lambda metrics: metrics.records_out)
    # A micro-batch with output always has metrics of its own.
    latency: dict[str, Latency] = functools.reduce(add_latencies, (one.latency for one in inside), {})

    def per_second(amount: float) -> float:
        return round(amount / seconds, 3) if seconds > 0 else 0.0

    def each_per_second(amounts: Mapping[str, int]) -> dict[str, float]:
        return {name: per_second(amount) for name, amount in amounts.items()}

    return Rates(
        seconds=round(seconds, 3),
        batches=per_second(batches),
        # A micro-batch that began before the window counts in full.
        utilisation=min(1.0, per_second(busy_s)),
        mean_busy_s=round(busy_s / batches, 4),
        records_in=each_per_second(records_in),
        records_out=each_per_second(records_out),
        step_records=each_per_second(step_records),
        dead_letters=per_second(letters),
        commands=per_second(commands),
        latency=percentiles_of(latency),
    )


def _sum(runs: _Runs, of: Callable[[Totals], float], own: Callable[[BatchMetrics], float]) -> float:
    """Sum an amount over runs, from their totals, which include micro-batches too small for metrics of their own.

    The first metrics of a run count with their own amount, since their totals include what came before.
    """
    return sum(of(run[-1].totals) - of(run[0].totals) + own(run[0]) for run in runs)


def _sum_by_name(
    runs: _Runs,
    of: Callable[[Totals], Mapping[str, int]],
    own: Callable[[BatchMetrics], Mapping[str, int]],
) -> dict[str, int]:
    """Sum amounts by name over runs, in the same way as `_sum`."""
    found: dict[str, int] = {}
    for run in runs:
        before, first = of(run[0].totals), own(run[0])
        for name, total in of(run[-1].totals).items():
            found[name] = found.get(name, 0) + total - before.get(name, 0) + first.get(name, 0)
    return found
