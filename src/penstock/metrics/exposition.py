"""Exposition: metrics of jobs in the text format of Prometheus. docs/metrics.md lists them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from penstock.base.version import __version__
from penstock.metrics.batch_metrics import BOUNDS_S, BatchMetrics, Lag, StepBatchMetrics
from penstock.metrics.latency import LATENCY_BOUNDS_S, Latency

__all__ = ["HISTOGRAM", "LATENCY_HISTOGRAM", "METRICS", "ExposedJob", "Metric", "exposition", "families"]

Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True)
class ExposedJob:
    """The newest metrics of a job, whether it runs, and how long the current micro-batch has been running, if known."""

    metrics: BatchMetrics
    is_running: bool = True
    batch_running_s: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of a job: its name, its labels in addition to `job_name`, and its values in the metrics of a job."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    values: Callable[[ExposedJob], Values]
    labels: tuple[str, ...] = ()


def _one(of: Callable[[BatchMetrics], float | None]) -> Callable[[ExposedJob], Values]:
    def values(job: ExposedJob) -> Values:
        found = of(job.metrics)
        return [] if found is None else [((), found)]

    return values


def _by_name(of: Callable[[BatchMetrics], Mapping[str, float]]) -> Callable[[ExposedJob], Values]:
    return lambda job: [((name,), found) for name, found in of(job.metrics).items()]


def _by_step(of: Callable[[StepBatchMetrics], float | None]) -> Callable[[ExposedJob], Values]:
    def values(job: ExposedJob) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, step in job.metrics.steps.items():
            found = of(step)
            if found is not None:
                yield (name,), found

    return values


def _by_stream(of: Callable[[Lag], float | None]) -> Callable[[ExposedJob], Values]:
    def values(job: ExposedJob) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, lag in job.metrics.lag.items():
            found = of(lag)
            if found is not None:
                yield (name,), found

    return values


def _of_batch(of: Callable[[BatchMetrics], float]) -> Callable[[ExposedJob], Values]:
    """Return a value that exists from the first micro-batch on."""
    return _one(lambda metrics: of(metrics) if metrics.batch >= 0 else None)


def _memory(job: ExposedJob) -> Values:
    use = job.metrics.memory
    if use is None:
        return []
    found = {"driver": use.driver_bytes, "jvm": use.jvm_bytes, "workers": use.workers_bytes}
    return [((process,), size) for process, size in found.items() if size]


HISTOGRAM: Final = "penstock_batch_busy_seconds"
"""The metric that counts micro-batches by how long the job worked in them."""
LATENCY_HISTOGRAM: Final = "penstock_latency_seconds"
"""The metric that counts outputs by how long they took from the source."""

METRICS: Final = (
    Metric(
        "penstock_job_info",
        "gauge",
        "1; its labels are the run of the job, the version of penstock that runs it, and its mode.",
        lambda job: [((job.metrics.job_id, __version__, job.metrics.mode), 1)],
        ("job_id", "version", "mode"),
    ),
    Metric("penstock_running", "gauge", "1 while the job runs, else 0.", lambda job: [((), job.is_running)]),
    Metric(
        "penstock_phase_seconds_total",
        "counter",
        "Time spent in each phase of micro-batches.",
        _by_name(lambda metrics: metrics.totals.phases),
        ("phase",),
    ),
    Metric(
        "penstock_state_commit_seconds_total",
        "counter",
        "Time that tasks spent committing state, summed over tasks.",
        _one(lambda metrics: metrics.totals.state_commit_seconds),
    ),
    Metric(
        "penstock_records_in_total",
        "counter",
        "Records read from a stream, including those that became dead letters.",
        _by_name(lambda metrics: metrics.totals.records_in),
        ("stream",),
    ),
    Metric(
        "penstock_records_out_total",
        "counter",
        "Records written to a sink.",
        _by_name(lambda metrics: metrics.totals.records_out),
        ("sink",),
    ),
    Metric(
        "penstock_step_records_total",
        "counter",
        "Data records that a step processed.",
        _by_name(lambda metrics: metrics.totals.step_records),
        ("step",),
    ),
    Metric(
        "penstock_dead_letters_total",
        "counter",
        "Records that could not be processed.",
        _one(lambda metrics: metrics.totals.dead_letters),
    ),
    Metric(
        "penstock_late_records_total",
        "counter",
        "Records that arrived too late for the windows of a step.",
        _by_name(lambda metrics: metrics.totals.late),
        ("step",),
    ),
    Metric(
        "penstock_records_without_window_total",
        "counter",
        "Records to which a step assigned no window.",
        _by_name(lambda metrics: metrics.totals.without_window),
        ("step",),
    ),
    Metric(
        "penstock_commands_total",
        "counter",
        "Finished commands by outcome: applied, degraded or rejected.",
        _by_name(lambda metrics: metrics.totals.commands),
        ("outcome",),
    ),
    Metric(
        "penstock_jvm_gc_seconds_total",
        "counter",
        "Time that the driver's JVM spent on garbage collection.",
        _one(lambda metrics: None if metrics.memory is None else metrics.memory.gc_seconds),
    ),
    Metric(
        "penstock_last_batch",
        "gauge",
        "The number of the newest micro-batch.",
        _of_batch(lambda metrics: metrics.batch),
    ),
    Metric(
        "penstock_last_batch_timestamp_seconds",
        "gauge",
        "When the newest micro-batch ended, in seconds since 1970.",
        _of_batch(lambda metrics: metrics.ended.timestamp()),
    ),
    Metric(
        "penstock_last_batch_duration_seconds",
        "gauge",
        "How long the newest micro-batch took.",
        _of_batch(lambda metrics: metrics.duration_s),
    ),
    Metric(
        "penstock_batch_running_seconds",
        "gauge",
        "How long the current micro-batch has been running, 0 between two; only the job itself reports it.",
        lambda job: [] if job.batch_running_s is None else [((), job.batch_running_s)],
    ),
    Metric(
        "penstock_checkpoint_interval_seconds",
        "gauge",
        "How long an interval takes in real time; 0 in micro-batches.",
        _one(lambda metrics: metrics.checkpoint_interval_ms / 1000),
    ),
    Metric(
        "penstock_parallelism",
        "gauge",
        "Tasks that share each keyed step.",
        _one(lambda metrics: metrics.parallelism),
    ),
    Metric(
        "penstock_cores",
        "gauge",
        "Tasks that Spark runs at a time.",
        _of_batch(lambda metrics: metrics.cores),
    ),
    Metric(
        "penstock_lag_records",
        "gauge",
        "Records that wait in the source of a stream.",
        _by_stream(lambda lag: lag.records),
        ("stream",),
    ),
    Metric(
        "penstock_lag_files",
        "gauge",
        "Files that wait in the source of a stream.",
        _by_stream(lambda lag: lag.files),
        ("stream",),
    ),
    Metric(
        "penstock_lag_bytes",
        "gauge",
        "Bytes that wait in the source of a stream.",
        _by_stream(lambda lag: lag.bytes),
        ("stream",),
    ),
    Metric(
        "penstock_lag_seconds",
        "gauge",
        "How long the oldest data in the source of a stream has been waiting.",
        _by_stream(lambda lag: lag.seconds),
        ("stream",),
    ),
    Metric(
        "penstock_step_keys",
        "gauge",
        "Keys with state in a step.",
        _by_step(lambda step: step.keys),
        ("step",),
    ),
    Metric(
        "penstock_step_state_bytes",
        "gauge",
        "The size of the stored state of a step.",
        _by_step(lambda step: step.state_bytes),
        ("step",),
    ),
    Metric(
        "penstock_step_held_bytes",
        "gauge",
        "The size of the data that waits while a step is paused.",
        _by_step(lambda step: step.held_bytes),
        ("step",),
    ),
    Metric(
        "penstock_step_skew_ratio",
        "gauge",
        "Records of the task with the most in the newest micro-batch, divided by the mean over tasks; 1 is even.",
        _by_step(lambda step: step.skew),
        ("step",),
    ),
    Metric(
        "penstock_step_key_skew_ratio",
        "gauge",
        "Keys of the task with the most, divided by the mean over tasks; 1 is even.",
        _by_step(lambda step: step.key_skew),
        ("step",),
    ),
    Metric(
        "penstock_step_watermark_timestamp_seconds",
        "gauge",
        "The watermark of a step, in seconds since 1970.",
        _by_step(lambda step: None if step.watermark is None else step.watermark.timestamp()),
        ("step",),
    ),
    Metric(
        "penstock_memory_bytes",
        "gauge",
        "Memory that the processes of the run use on the driver's machine: driver, jvm and workers.",
        _memory,
        ("process",),
    ),
    Metric(
        "penstock_jvm_heap_used_bytes",
        "gauge",
        "Memory in use on the heap of the driver's JVM.",
        _one(lambda metrics: None if metrics.memory is None else metrics.memory.heap_used_bytes),
    ),
    Metric(
        "penstock_jvm_heap_max_bytes",
        "gauge",
        "The maximum size of the heap of the driver's JVM.",
        _one(lambda metrics: None if metrics.memory is None else metrics.memory.heap_max_bytes),
    ),
)
"""All metrics except the histograms."""

_HISTOGRAM_HELP: Final = (
    "How long the job worked in each micro-batch; the rate of the sum is its utilisation."
)
_LATENCY_HELP: Final = "How long outputs took from the source of their records to the sink."


def families(jobs: Sequence[ExposedJob]) -> Iterator[Family]:
    """Yield the metrics of jobs with different names.

    No label has more values than the jobs have streams, steps and sinks.
    """
    histogram = HistogramMetricFamily(HISTOGRAM, _HISTOGRAM_HELP, labels=["job_name"])
    for job in jobs:
        totals = job.metrics.totals
        buckets = [
            (str(bound_s), count) for bound_s, count in zip(BOUNDS_S, totals.batches_within, strict=True)
        ]
        histogram.add_metric([job.metrics.job], [*buckets, ("+Inf", totals.batches)], totals.busy_seconds)
    yield histogram
    yield _latencies(jobs)
    for metric in METRICS:
        kind: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=["job_name", *metric.labels])
        for job in jobs:
            for labels, value in metric.values(job):
                family.add_metric([job.metrics.job, *labels], float(value))
        yield family


def _latencies(jobs: Sequence[ExposedJob]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(LATENCY_HISTOGRAM, _LATENCY_HELP, labels=["job_name", "sink"])
    for job in jobs:
        totals = job.metrics.totals
        for sink in totals.records_out:
            latency = totals.latency.get(sink, Latency())
            within = itertools.accumulate(latency.counts[: len(LATENCY_BOUNDS_S)])
            found = itertools.zip_longest(LATENCY_BOUNDS_S, within, fillvalue=latency.outputs)
            buckets = [(str(bound_s), float(count)) for bound_s, count in found]
            buckets.append(("+Inf", float(latency.outputs)))
            family.add_metric([job.metrics.job, sink], buckets, latency.sum_s)
    return family


class _Collected(Collector):
    """A collector that the Prometheus client writes out."""

    def __init__(self, jobs: Sequence[ExposedJob]) -> None:
        self._jobs: Final = jobs

    def collect(self) -> Iterator[Family]:
        """Return the metrics."""
        return families(self._jobs)


def exposition(jobs: Sequence[ExposedJob]) -> bytes:
    """Format the metrics of jobs in Prometheus' text format, version 0.0.4."""
    return generate_latest(_Collected(jobs))
