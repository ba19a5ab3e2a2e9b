"""Exposition: metrics of jobs in the text format of Prometheus. docs/metrics.md lists them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from penstock.base.version import __version__
from penstock.metrics.batch_metrics import (
    BOUNDS_S,
    BatchMetrics,
    Lag,
    ModelMetrics,
    StepBatchMetrics,
    Totals,
)
from penstock.metrics.latency import LATENCY_BOUNDS_S, Latency

__all__ = ["HISTOGRAM", "LATENCY_HISTOGRAM", "METRICS", "ExposedJob", "Metric", "exposition", "families"]

Values: TypeAlias = Iterable[tuple[tuple[str, ...], float | None]]


@dataclass(frozen=True)
class ExposedJob:
    """The newest metrics of a job, whether it runs, and how long the current micro-batch has been running, if known."""

    metrics: BatchMetrics
    is_running: bool = True
    batch_running_s: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of a job: its name, its labels in addition to `job_name`, and its values in the metrics of a job.

    A value of None is left out.
    """

    name: str
    help: str
    values: Callable[[ExposedJob], Values]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Its type in Prometheus. The names of counters, and of no others, end in `_total`."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _one(name: str, about: str, of: Callable[[BatchMetrics], float | None]) -> Metric:
    return Metric(name, about, lambda job: [((), of(job.metrics))])


def _of_newest(name: str, about: str, of: Callable[[BatchMetrics], float]) -> Metric:
    """Return a metric that exists from the first micro-batch on."""
    return _one(name, about, lambda metrics: of(metrics) if metrics.batch >= 0 else None)


def _by_name(name: str, label: str, about: str, of: Callable[[Totals], Mapping[str, float]]) -> Metric:
    return Metric(name, about, lambda job: [((k,), n) for k, n in of(job.metrics.totals).items()], (label,))


def _by_version(name: str, about: str, of: Callable[[Totals], Mapping[str, float]]) -> Metric:
    """Return a metric of the versions of models."""
    return Metric(
        name,
        about,
        lambda job: [(tuple(k.split("/")), n) for k, n in of(job.metrics.totals).items()],
        ("step", "model", "version"),
    )


def _of_version(name: str, about: str, of: Callable[[ModelMetrics], float | None]) -> Metric:
    """Return a metric of the versions of models that score now."""
    return Metric(
        name,
        about,
        lambda job: [(tuple(k.split("/")), of(found)) for k, found in job.metrics.models.items()],
        ("step", "model", "version"),
    )


def _by_step(name: str, about: str, of: Callable[[StepBatchMetrics], float | None]) -> Metric:
    return Metric(name, about, lambda job: [((k,), of(s)) for k, s in job.metrics.steps.items()], ("step",))


def _by_stream(name: str, about: str, of: Callable[[Lag], float | None]) -> Metric:
    return Metric(name, about, lambda job: [((k,), of(g)) for k, g in job.metrics.lag.items()], ("stream",))


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
        "1; its labels are the run of the job, the version of penstock that runs it, and its mode.",
        lambda job: [((job.metrics.job_id, __version__, job.metrics.mode), 1)],
        ("job_id", "version", "mode"),
    ),
    Metric("penstock_running", "1 while the job runs, else 0.", lambda job: [((), job.is_running)]),
    _by_name(
        "penstock_phase_seconds_total",
        "phase",
        "Time spent in each phase of micro-batches.",
        lambda totals: totals.phases,
    ),
    _one(
        "penstock_state_commit_seconds_total",
        "Time that tasks spent committing state, summed over tasks.",
        lambda metrics: metrics.totals.state_commit_seconds,
    ),
    _by_name(
        "penstock_records_in_total",
        "stream",
        "Records read from a stream, including those that became dead letters.",
        lambda totals: totals.records_in,
    ),
    _by_name(
        "penstock_records_out_total", "sink", "Records written to a sink.", lambda totals: totals.records_out
    ),
    _by_name(
        "penstock_step_records_total",
        "step",
        "Data records that a step processed.",
        lambda totals: totals.step_records,
    ),
    _one(
        "penstock_dead_letters_total",
        "Records that could not be processed.",
        lambda metrics: metrics.totals.dead_letters,
    ),
    _by_name(
        "penstock_late_records_total",
        "step",
        "Records that arrived too late for the windows of a step.",
        lambda totals: totals.late,
    ),
    _by_name(
        "penstock_records_without_window_total",
        "step",
        "Records to which a step assigned no window.",
        lambda totals: totals.without_window,
    ),
    _by_name(
        "penstock_commands_total",
        "outcome",
        "Finished commands by outcome: applied, degraded or rejected.",
        lambda totals: totals.commands,
    ),
    _by_version(
        "penstock_model_records_total",
        "Records that a version of a model scored, also in the shadow.",
        lambda totals: totals.model_records,
    ),
    _by_version(
        "penstock_model_failures_total",
        "Records for which a version of a model had no usable score.",
        lambda totals: totals.model_failures,
    ),
    _by_version(
        "penstock_model_slow_total",
        "Records for which a version of a model took more than ten times its budget.",
        lambda totals: totals.model_slow,
    ),
    _by_version(
        "penstock_model_late_total",
        "Records for which a version of a model in a group answered after the deadline.",
        lambda totals: totals.model_late,
    ),
    _of_version(
        "penstock_model_agreement",
        "The share of records that a shadow scored as the version that serves, within the window of the policy.",
        lambda model: model.agreement,
    ),
    _of_version(
        "penstock_model_drift",
        "The population stability index of the scores of a version, within the window of the policy.",
        lambda model: model.drift,
    ),
    _of_version(
        "penstock_model_ks",
        "The Kolmogorov-Smirnov statistic of the scores of a version, within the window of the policy.",
        lambda model: model.ks,
    ),
    _of_version(
        "penstock_model_call_p99_seconds",
        "The time that 99 in 100 calls of a version do not exceed, within the window of the policy.",
        lambda model: None if model.p99_ms is None else model.p99_ms / 1000,
    ),
    _by_version(
        "penstock_model_seconds_total",
        "Time that a version of a model took to score, summed over tasks.",
        lambda totals: totals.model_seconds,
    ),
    _one(
        "penstock_jvm_gc_seconds_total",
        "Time that the driver's JVM spent on garbage collection.",
        lambda metrics: None if metrics.memory is None else metrics.memory.gc_seconds,
    ),
    _of_newest("penstock_last_batch", "The number of the newest micro-batch.", lambda metrics: metrics.batch),
    _of_newest(
        "penstock_last_batch_timestamp_seconds",
        "When the newest micro-batch ended, in seconds since 1970.",
        lambda metrics: metrics.ended.timestamp(),
    ),
    _of_newest(
        "penstock_last_batch_duration_seconds",
        "How long the newest micro-batch took.",
        lambda metrics: metrics.duration_s,
    ),
    Metric(
        "penstock_batch_running_seconds",
        "How long the current micro-batch has been running, 0 between two; only the job itself reports it.",
        lambda job: [((), job.batch_running_s)],
    ),
    _one(
        "penstock_checkpoint_interval_seconds",
        "How long an interval takes in real time; 0 in micro-batches.",
        lambda metrics: metrics.checkpoint_interval_ms / 1000,
    ),
    _one("penstock_parallelism", "Tasks that share each keyed step.", lambda metrics: metrics.parallelism),
    _of_newest("penstock_cores", "Tasks that Spark runs at a time.", lambda metrics: metrics.cores),
    _by_stream(
        "penstock_lag_records", "Records that wait in the source of a stream.", lambda lag: lag.records
    ),
    _by_stream("penstock_lag_files", "Files that wait in the source of a stream.", lambda lag: lag.files),
    _by_stream("penstock_lag_bytes", "Bytes that wait in the source of a stream.", lambda lag: lag.bytes),
    _by_stream(
        "penstock_lag_seconds",
        "How long the oldest data in the source of a stream has been waiting.",
        lambda lag: lag.seconds,
    ),
    _by_step("penstock_step_keys", "Keys with state in a step.", lambda step: step.keys),
    _by_step(
        "penstock_step_state_bytes", "The size of the stored state of a step.", lambda step: step.state_bytes
    ),
    _by_step(
        "penstock_step_held_bytes",
        "The size of the data that waits while a step is paused.",
        lambda step: step.held_bytes,
    ),
    _by_step(
        "penstock_step_skew_ratio",
        "Records of the task with the most in the newest micro-batch, divided by the mean over tasks; 1 is even.",
        lambda step: step.skew,
    ),
    _by_step(
        "penstock_step_key_skew_ratio",
        "Keys of the task with the most, divided by the mean over tasks; 1 is even.",
        lambda step: step.key_skew,
    ),
    _by_step(
        "penstock_step_watermark_timestamp_seconds",
        "The watermark of a step, in seconds since 1970.",
        lambda step: None if step.watermark is None else step.watermark.timestamp(),
    ),
    Metric(
        "penstock_memory_bytes",
        "Memory that the processes of the run use on the driver's machine: driver, jvm and workers.",
        _memory,
        ("process",),
    ),
    _one(
        "penstock_jvm_heap_used_bytes",
        "Memory in use on the heap of the driver's JVM.",
        lambda metrics: None if metrics.memory is None else metrics.memory.heap_used_bytes,
    ),
    _one(
        "penstock_jvm_heap_max_bytes",
        "The maximum size of the heap of the driver's JVM.",
        lambda metrics: None if metrics.memory is None else metrics.memory.heap_max_bytes,
    ),
)
"""All metrics except the histograms."""

_HISTOGRAM_HELP: Final = (
    "How long the job worked in each micro-batch; the rate of the sum is its utilisation."
)
_LATENCY_HELP: Final = "How long outputs took from the source of their records to the sink."


def families(jobs: Sequence[ExposedJob]) -> Iterator[Family]:
    """Yield the metrics of jobs with different names.

    No label has more values than the jobs have streams, steps, sinks and versions of models.
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
                if value is not None:
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


@dataclass(frozen=True)
class _Collected(Collector):
    """A collector that the Prometheus client writes out."""

    jobs: Sequence[ExposedJob]

    def collect(self) -> Iterator[Family]:
        """Return the metrics."""
        return families(self.jobs)


def exposition(jobs: Sequence[ExposedJob]) -> bytes:
    """Format the metrics of jobs in Prometheus' text format, version 0.0.4."""
    return generate_latest(_Collected(jobs))
