"""Metrics resources: the metrics of a job, as the service returns them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.base.instants import milliseconds_of
from penstock.metrics.batch_metrics import BatchMetrics, Mode, StepBatchMetrics, mode_of
from penstock.metrics.job_metrics import JobMetrics
from penstock.metrics.latency import Percentiles, percentiles_of
from penstock.server.resource import Resource

__all__ = [
    "Batch",
    "BatchStep",
    "JobLag",
    "Memory",
    "Metrics",
    "SinkLatency",
    "SinkMetrics",
    "StepMetrics",
    "StreamMetrics",
    "batch_of",
    "metrics_of",
]


class JobLag(Resource):
    """The data that waits in the source of a stream, in the units that the source knows."""

    records: int | None
    files: int | None
    bytes: int | None
    seconds: float | None
    """How long the oldest waiting data has been waiting."""


class StreamMetrics(Resource):
    """The metrics of a stream."""

    name: str
    records: int | None
    """Records read since the start of the run; null for commands."""
    per_second: float | None
    """The current rate; null for commands."""
    lag: JobLag | None


class StepMetrics(Resource):
    """The metrics of a step."""

    name: str
    records: int
    """Data records processed since the start of the run."""
    per_second: float
    """The current rate."""
    late: int
    """Records that came too late for its windows, since the start of the run."""
    without_window: int
    """Records for which there was no window, since the start of the run."""
    keys: int
    """Keys with state."""
    state_bytes: int
    """The size of its stored state."""
    held_bytes: int
    """The size of the data that waits while the step is paused."""
    skew: float | None
    """Records of the task with the most, divided by the mean over tasks; 1 is even."""
    key_skew: float | None
    """Keys of the task with the most, divided by the mean over tasks; 1 is even."""
    watermark_ms: int | None
    """The watermark in event time; null until the run has seen it advance."""


class SinkLatency(Resource):
    """How long outputs took from the source of their records to the sink."""

    outputs: int
    """The number of outputs that were measured."""
    p50_s: float
    """Half of the outputs took at most this long."""
    p95_s: float
    p99_s: float
    longest_s: float


class SinkMetrics(Resource):
    """The metrics of a sink."""

    name: str
    records: int
    """Records written since the start of the run."""
    per_second: float
    """The current rate."""
    latency: SinkLatency | None
    """The current latency; null without outputs."""


class Memory(Resource):
    """The memory of a run at one moment, on the machine of the driver."""

    driver_bytes: int
    """The resident set of the driver."""
    jvm_bytes: int
    """The resident set of the driver's JVM."""
    workers_bytes: int
    """The resident sets of the Python workers. Pages that they share count in each."""
    heap_used_bytes: int
    heap_max_bytes: int
    gc_seconds: float
    """Time that the JVM has spent on garbage collection."""


class BatchStep(Resource):
    """The metrics of a step in one micro-batch. The state is that after the micro-batch."""

    records: int
    """Data records processed."""
    skew: float | None
    """Records of the task with the most, divided by the mean over tasks; null without records."""
    keys: int
    key_skew: float | None
    """Keys of the task with the most, divided by the mean over tasks."""
    state_bytes: int
    held_bytes: int
    """The size of the data that waits while the step is paused."""
    late: int
    """Records that came too late for its windows."""
    without_window: int
    """Records for which there was no window."""
    watermark_ms: int | None
    """The watermark in event time; null until the run has seen it advance."""


class Batch(Resource):
    """The metrics of one micro-batch; in real time, of one interval."""

    batch: int
    """Its number."""
    run: str
    """The id of the run in events and metrics of the checkpoint."""
    started_ms: int
    ended_ms: int
    duration_s: float
    busy_s: float
    """The time for which the job was at work in it."""
    idle_s: float | None
    """The time for which the job waited before it; null for the first one of a run."""
    phases: dict[str, float]
    """The seconds spent in each of its phases."""
    state_commit_s: float
    """The time for committing state, summed over tasks."""
    parallelism: int
    """The number of tasks that share each keyed step."""
    cores: int
    """The number of tasks that Spark runs at a time."""
    records_in: dict[str, int]
    """Records read, by stream."""
    records_out: dict[str, int]
    """Records written, by sink."""
    dead_letters: int
    """Records that could not be processed."""
    commands: dict[str, int]
    """Finished commands, by outcome: applied, degraded or rejected."""
    lag: dict[str, JobLag]
    """The data that waits in sources, by stream."""
    steps: dict[str, BatchStep]
    """The metrics of steps, by name."""
    memory: Memory | None
    latency: dict[str, SinkLatency]
    """The latency of its outputs, by sink."""


class Metrics(Resource):
    """The metrics of a job. Rates cover the last `seconds`, or those before the end of a job that is not running."""

    running: bool
    mode: Mode
    """Whether the job runs in micro-batches or in real time."""
    checkpoint_interval_ms: int
    """How long an interval takes in real time; 0 in micro-batches."""
    seconds: float
    """The time that rates cover."""
    batches_per_second: float
    utilisation: float
    """The fraction of the time in which the job was at work, from 0 to 1."""
    mean_busy_s: float
    """The mean time for which the job was at work in a micro-batch."""
    dead_letters: int
    """Records that could not be processed, since the start of the run."""
    dead_letters_per_second: float
    commands: dict[str, int]
    """Finished commands since the start of the run, by outcome: applied, degraded or rejected."""
    commands_per_second: float
    streams: tuple[StreamMetrics, ...]
    steps: tuple[StepMetrics, ...]
    sinks: tuple[SinkMetrics, ...]
    batches: tuple[Batch, ...]
    """The newest micro-batches that match the request, oldest first."""


def metrics_of(found: JobMetrics, batches: Sequence[BatchMetrics]) -> Metrics:
    """Return the metrics resource of a job, with the metrics of individual micro-batches."""
    newest, rates = found.newest, found.rates
    interval_ms = 0 if newest is None else newest.checkpoint_interval_ms
    return Metrics(
        running=found.is_running,
        mode=mode_of(interval_ms),
        checkpoint_interval_ms=interval_ms,
        seconds=rates.seconds,
        batches_per_second=rates.batches,
        utilisation=rates.utilisation,
        mean_busy_s=rates.mean_busy_s,
        dead_letters=0 if newest is None else newest.totals.dead_letters,
        dead_letters_per_second=rates.dead_letters,
        commands={} if newest is None else newest.totals.commands,
        commands_per_second=rates.commands,
        streams=() if newest is None else tuple(_streams(newest, found)),
        steps=() if newest is None else tuple(_steps(newest, found)),
        sinks=() if newest is None else tuple(_sinks(newest, found)),
        batches=tuple(batch_of(metrics) for metrics in batches),
    )


def batch_of(metrics: BatchMetrics) -> Batch:
    """Return the resource of a micro-batch."""
    values = msgspec.structs.asdict(metrics) | {
        "run": metrics.job_id,
        "started_ms": milliseconds_of(metrics.started),
        "ended_ms": milliseconds_of(metrics.ended),
        "busy_s": metrics.busy_s,
        "steps": {name: _step_values(step) for name, step in metrics.steps.items()},
        "latency": {sink: _latency(one) for sink, one in percentiles_of(metrics.latency).items()},
    }
    return msgspec.convert(values, Batch, from_attributes=True)


def _streams(newest: BatchMetrics, found: JobMetrics) -> Iterator[StreamMetrics]:
    totals = newest.totals.records_in
    lags = msgspec.convert(newest.lag, dict[str, JobLag], from_attributes=True)
    for name in dict.fromkeys((*totals, *lags)):
        yield StreamMetrics(
            name=name,
            records=totals.get(name),
            per_second=found.rates.records_in.get(name, 0.0) if name in totals else None,
            lag=lags.get(name),
        )


def _steps(newest: BatchMetrics, found: JobMetrics) -> Iterator[StepMetrics]:
    for name, step in newest.steps.items():
        of_run = {
            "name": name,
            "records": newest.totals.step_records.get(name, 0),
            "per_second": found.rates.step_records.get(name, 0.0),
            "late": newest.totals.late.get(name, 0),
            "without_window": newest.totals.without_window.get(name, 0),
        }
        yield msgspec.convert(_step_values(step) | of_run, StepMetrics)


def _sinks(newest: BatchMetrics, found: JobMetrics) -> Iterator[SinkMetrics]:
    for name, records in newest.totals.records_out.items():
        yield SinkMetrics(
            name=name,
            records=records,
            per_second=found.rates.records_out.get(name, 0.0),
            latency=None if name not in found.rates.latency else _latency(found.rates.latency[name]),
        )


def _latency(found: Percentiles) -> SinkLatency:
    return msgspec.convert(found, SinkLatency, from_attributes=True)


def _step_values(step: StepBatchMetrics) -> dict[str, Any]:
    return msgspec.structs.asdict(step) | {"watermark_ms": _ms(step.watermark)}


def _ms(at: dt.datetime | None) -> int | None:
    return None if at is None else milliseconds_of(at)
