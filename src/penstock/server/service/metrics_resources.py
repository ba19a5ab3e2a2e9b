"""Metrics resources: the metrics of a job as the service returns them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.base.instants import milliseconds_of
from penstock.metrics.batch_metrics import BatchMetrics, StepBatchMetrics
from penstock.metrics.job_metrics import JobMetrics
from penstock.server.resource import Resource

__all__ = [
    "Batch",
    "BatchStep",
    "JobLag",
    "Memory",
    "Metrics",
    "SinkMetrics",
    "StepMetrics",
    "StreamMetrics",
    "batch_of",
    "metrics_of",
]


@dataclass(frozen=True, kw_only=True)
class JobLag(Resource):
    """What waits in the source of a stream, in the units that the source knows."""

    records: int | None
    files: int | None
    bytes: int | None
    seconds: float | None
    """How long the oldest has waited since the run first saw it."""


@dataclass(frozen=True, kw_only=True)
class StreamMetrics(Resource):
    """A stream."""

    name: str
    records: int | None
    """Records that were read since the run began; null for commands."""
    per_second: float | None
    lag: JobLag | None


@dataclass(frozen=True, kw_only=True)
class StepMetrics(Resource):
    """A step."""

    name: str
    records: int
    """Data records that were processed since the run began."""
    per_second: float
    late: int
    without_window: int
    keys: int
    state_bytes: int
    held_bytes: int
    """Data that waits while the step is paused."""
    skew: float | None
    """Records of the task with the most, divided by the mean over tasks."""
    key_skew: float | None
    watermark_ms: int | None


@dataclass(frozen=True, kw_only=True)
class SinkMetrics(Resource):
    """A sink."""

    name: str
    records: int
    """Records that were written since the run began."""
    per_second: float


@dataclass(frozen=True, kw_only=True)
class Memory(Resource):
    """The memory of a run at one moment."""

    driver_bytes: int
    jvm_bytes: int
    workers_bytes: int
    heap_used_bytes: int
    heap_max_bytes: int
    gc_seconds: float


@dataclass(frozen=True, kw_only=True)
class BatchStep(Resource):
    """A step in one micro-batch."""

    records: int
    skew: float | None
    keys: int
    key_skew: float | None
    state_bytes: int
    held_bytes: int
    late: int
    without_window: int
    watermark_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Batch(Resource):
    """What happened in one micro-batch."""

    batch: int
    run: str
    """The id that the run has in its events and metrics."""
    started_ms: int
    ended_ms: int
    duration_s: float
    busy_s: float
    """How long the job was at work in it."""
    idle_s: float | None
    """How long the job had waited before it."""
    phases: dict[str, float]
    """Seconds of the parts of its duration."""
    state_commit_s: float
    """Time that tasks took to commit state, added up over tasks."""
    parallelism: int
    cores: int
    records_in: dict[str, int]
    records_out: dict[str, int]
    dead_letters: int
    commands: dict[str, int]
    lag: dict[str, JobLag]
    steps: dict[str, BatchStep]
    memory: Memory | None


@dataclass(frozen=True, kw_only=True)
class Metrics(Resource):
    """How a job is doing. Rates cover the last `seconds`; those of a stopped job, its last ones."""

    running: bool
    seconds: float
    batches_per_second: float
    utilisation: float
    """The part of the time in which the job was at work, from 0 to 1."""
    mean_busy_s: float
    dead_letters: int
    dead_letters_per_second: float
    commands: dict[str, int]
    """Commands that have ended, by what became of them."""
    commands_per_second: float
    streams: tuple[StreamMetrics, ...]
    steps: tuple[StepMetrics, ...]
    sinks: tuple[SinkMetrics, ...]
    batches: tuple[Batch, ...]
    """The newest requested micro-batches, oldest first."""


def metrics_of(found: JobMetrics, batches: Sequence[BatchMetrics]) -> Metrics:
    """The metrics of a job, with these micro-batches one by one."""
    newest, rates = found.newest, found.rates
    return Metrics(
        running=found.is_running,
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
    """One micro-batch."""
    values = msgspec.structs.asdict(metrics) | {
        "run": metrics.job_id,
        "started_ms": milliseconds_of(metrics.started),
        "ended_ms": milliseconds_of(metrics.ended),
        "busy_s": metrics.busy_s,
        "steps": {name: _step_values(step) for name, step in metrics.steps.items()},
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
        yield SinkMetrics(name=name, records=records, per_second=found.rates.records_out.get(name, 0.0))


def _step_values(step: StepBatchMetrics) -> dict[str, Any]:
    return msgspec.structs.asdict(step) | {"watermark_ms": _ms(step.watermark)}


def _ms(at: dt.datetime | None) -> int | None:
    return None if at is None else milliseconds_of(at)
