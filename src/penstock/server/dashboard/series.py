"""Series: the lines of charts, from the metrics of a job. Pure functions."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.metrics.batch_metrics import BatchMetrics, Lag, ModelMetrics
from penstock.metrics.latency import percentiles_of

__all__ = ["POINTS", "Chart", "Line", "Unit", "charts", "model_charts"]

Unit: TypeAlias = Literal["records/s", "s", "records", "files", "bytes", "%", "number"]

POINTS: Final = 100
"""The maximum number of points of a line."""


@dataclass(frozen=True)
class Line:
    """A line of a chart: times, in milliseconds since 1970, with values."""

    name: str
    points: list[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """A chart, with a line for each stream or step."""

    name: str
    title: str
    unit: Unit
    lines: list[Line]


class _Buckets:
    """Intervals of one length, at multiples of it, so that points do not move as time passes."""

    def __init__(self, now: dt.datetime, window_s: float) -> None:
        self.width_s: Final = window_s / POINTS
        # The current interval is not complete, and would show too little.
        self.last: Final = math.floor(now.timestamp() / self.width_s) - 1
        self.first: Final = self.last - POINTS + 1

    def of(self, at: dt.datetime) -> int:
        return math.floor(at.timestamp() / self.width_s)

    def at_ms(self, number: int) -> int:
        return round((number + 1) * self.width_s * 1000)

    def points(self, values: Mapping[int, float]) -> list[tuple[int, float]]:
        return [
            (self.at_ms(number), round(values[number], 4))
            for number in sorted(values)
            if self.first <= number <= self.last
        ]


def model_charts(found: Sequence[BatchMetrics], now: dt.datetime, window_s: float) -> list[Chart]:
    """Return the charts of the versions of a job's models that score, over a window that ends now."""
    buckets = _Buckets(now, window_s)
    inside = _inside(found, buckets, now, window_s)

    def lines(of: Callable[[ModelMetrics], float | None]) -> list[Line]:
        return _last(
            inside,
            buckets,
            lambda metrics: {
                name: value for name, model in metrics.models.items() if (value := of(model)) is not None
            },
        )

    return [
        Chart("model-drift", "Drift", "number", lines(lambda model: model.drift)),
        Chart("model-agreement", "Agreement", "%", lines(lambda model: _percent(model.agreement))),
        Chart(
            "model-failures",
            "Failures and slow scores",
            "%",
            lines(lambda model: _percent((model.failures + model.slow) / max(model.records, 1))),
        ),
        Chart(
            "model-time",
            "Time for 1,000 records",
            "s",
            lines(lambda model: None if model.ms is None else model.ms / 1000),
        ),
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else min(100.0, share * 100)


def _inside(
    found: Sequence[BatchMetrics], buckets: _Buckets, now: dt.datetime, window_s: float
) -> Sequence[BatchMetrics]:
    """Return the metrics in the window, and those before it, whose end is the earliest start of the first ones."""
    since_s = now.timestamp() - window_s - buckets.width_s
    first = next((place for place, f in enumerate(found) if f.ended.timestamp() > since_s), len(found))
    return found[max(0, first - 1) :]


def charts(found: Sequence[BatchMetrics], now: dt.datetime, window_s: float) -> list[Chart]:
    """Return all charts of a job over a window that ends now, from metrics in the order in which they were written."""
    buckets = _Buckets(now, window_s)
    inside = _inside(found, buckets, now, window_s)
    lag_unit = _lag_unit(inside)
    return [
        Chart(
            "throughput",
            "Throughput",
            "records/s",
            _spread(
                inside, buckets, lambda metrics: {f"{name} in": n for name, n in metrics.records_in.items()}
            )
            + _spread(
                inside, buckets, lambda metrics: {f"{name} out": n for name, n in metrics.records_out.items()}
            ),
        ),
        Chart("batch", _duration_title(inside), "s", _durations(inside, buckets)),
        Chart("latency", "Latency", "s", _last(inside, buckets, _latencies)),
        Chart("lag", "Lag", lag_unit, _last(inside, buckets, lambda metrics: _lags(metrics, lag_unit))),
        Chart("watermark", "Watermark delay", "s", _last(inside, buckets, _delays)),
        Chart(
            "state",
            "State",
            "bytes",
            _last(inside, buckets, lambda f: {name: step.state_bytes for name, step in f.steps.items()}),
        ),
        Chart(
            "busy",
            "Busy",
            "%",
            _spread(inside, buckets, lambda metrics: {"busy": metrics.busy_s * 100.0}),
        ),
    ]


def _spread(
    found: Iterable[BatchMetrics], buckets: _Buckets, amounts: Callable[[BatchMetrics], Mapping[str, float]]
) -> list[Line]:
    """Return lines of amounts per second. Those of a micro-batch are spread over the time since the previous one."""
    lines: dict[str, dict[int, float]] = {}
    before: BatchMetrics | None = None
    for metrics in found:
        begun = metrics.started if before is None or before.job_id != metrics.job_id else before.ended
        begun_s = min(begun.timestamp(), metrics.started.timestamp())
        ended_s = max(metrics.ended.timestamp(), begun_s + 1e-3)
        shares = list(_shares(buckets, begun_s, ended_s))
        for name, amount in amounts(metrics).items():
            values = lines.setdefault(name, {})
            for number, share in shares:
                values[number] = values.get(number, 0.0) + amount * share / buckets.width_s
        before = metrics
    if before is not None:
        # What happens after the last micro-batch is not known yet.
        known = buckets.of(before.ended)
        lines = {name: {n: v for n, v in values.items() if n < known} for name, values in lines.items()}
    return _lines(lines, buckets)


def _shares(buckets: _Buckets, begun_s: float, ended_s: float) -> Iterable[tuple[int, float]]:
    """Yield each interval of the window that overlaps a period, and its share of the period."""
    first = max(math.floor(begun_s / buckets.width_s), buckets.first)
    for number in range(first, min(math.floor(ended_s / buckets.width_s), buckets.last) + 1):
        inside_s = min(ended_s, (number + 1) * buckets.width_s) - max(begun_s, number * buckets.width_s)
        yield number, max(0.0, inside_s) / (ended_s - begun_s)


def _last(
    found: Iterable[BatchMetrics], buckets: _Buckets, amounts: Callable[[BatchMetrics], Mapping[str, float]]
) -> list[Line]:
    """Return lines of the last value in each interval."""
    lines: dict[str, dict[int, float]] = {}
    for metrics in found:
        number = buckets.of(metrics.ended)
        for name, amount in amounts(metrics).items():
            lines.setdefault(name, {})[number] = amount
    return _lines(lines, buckets)


def _durations(found: Iterable[BatchMetrics], buckets: _Buckets) -> list[Line]:
    by_bucket: dict[int, list[float]] = {}
    for metrics in found:
        by_bucket.setdefault(buckets.of(metrics.ended), []).append(metrics.busy_s)
    return _lines(
        {
            "longest": {number: max(values) for number, values in by_bucket.items()},
            "mean": {number: sum(values) / len(values) for number, values in by_bucket.items()},
        },
        buckets,
    )


def _duration_title(found: Sequence[BatchMetrics]) -> str:
    in_real_time = bool(found) and found[-1].mode == "real time"
    return "Work in an interval" if in_real_time else "Micro-batch duration"


def _latencies(metrics: BatchMetrics) -> dict[str, float]:
    found = percentiles_of(metrics.latency)
    return {f"{sink} p50": one.p50_s for sink, one in found.items()} | {
        f"{sink} p99": one.p99_s for sink, one in found.items()
    }


def _lines(lines: Mapping[str, Mapping[int, float]], buckets: _Buckets) -> list[Line]:
    made = (Line(name, buckets.points(values)) for name, values in lines.items())
    return [line for line in made if line.points]


def _lag_unit(found: Sequence[BatchMetrics]) -> Unit:
    """Return the unit for lag: the first of records, files and bytes that a source reports, or seconds."""
    units: tuple[Literal["records", "files", "bytes"], ...] = ("records", "files", "bytes")
    for metrics in reversed(found):
        for unit in units:
            if any(getattr(lag, unit) is not None for lag in metrics.lag.values()):
                return unit
    return "s"


def _lags(metrics: BatchMetrics, unit: Unit) -> dict[str, float]:
    amounts = {name: _lag(lag, unit) for name, lag in metrics.lag.items()}
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _lag(lag: Lag, unit: Unit) -> float | None:
    if unit == "s":
        return lag.seconds
    amount: float | None = getattr(lag, unit)
    return amount


def _delays(metrics: BatchMetrics) -> dict[str, float]:
    return {
        name: (metrics.ended - step.watermark).total_seconds()
        for name, step in metrics.steps.items()
        if step.watermark is not None
    }
