"""Metrics: what a job's figures tell, put together for those who look at it from outside."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import msgspec

from penstock.base.instants import milliseconds_of
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import Figures, Lag
from penstock.metrics.job_metrics import Measured

__all__ = [
    "BatchInfo",
    "MetricsInfo",
    "SinkMetrics",
    "StepBatch",
    "StepMetrics",
    "StreamMetrics",
    "batch_info",
    "metrics_info",
]


class StreamMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: records that were read since the run began and per second, and what waits in its source.

    Commands have no such numbers: what counts of them is their outcome.
    """

    name: str
    records: int | None
    per_second: float | None
    lag: Lag | None


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A step: records since the run began and per second, what it holds, and how far event time is.

    `skew` is the share of the slot with the most records, 1 when all have the same.
    """

    name: str
    records: int
    per_second: float
    late: int
    without_window: int
    keys: int
    state_bytes: int
    held_bytes: int
    skew: float | None
    key_skew: float | None
    watermark_ms: int | None


class SinkMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A sink: records that were written since the run began, and per second."""

    name: str
    records: int
    per_second: float


class StepBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A step in one micro-batch, as `penstock.metrics.batch_metrics.StepFigures`."""

    records: int
    skew: float | None
    keys: int
    key_skew: float | None
    state_bytes: int
    held_bytes: int
    late: int
    without_window: int
    watermark_ms: int | None


class BatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one micro-batch, as `Figures`; times are milliseconds since 1970."""

    batch: int
    run: str
    started_ms: int
    ended_ms: int
    duration_s: float
    busy_s: float
    idle_s: float | None
    phases: dict[str, float]
    state_commit_s: float
    parallelism: int
    cores: int
    records_in: dict[str, int]
    records_out: dict[str, int]
    dead_letters: int
    commands: dict[str, int]
    lag: dict[str, Lag]
    steps: dict[str, StepBatch]
    memory: MemoryUse | None


class MetricsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is doing: rates over the last `seconds`, what it did since its run began, and its micro-batches.

    `utilisation` is the part of the time in which it was at work, from 0 to 1.
    """

    running: bool
    seconds: float
    batches_per_second: float
    utilisation: float
    mean_busy_s: float
    dead_letters: int
    dead_letters_per_second: float
    commands: dict[str, int]
    commands_per_second: float
    streams: tuple[StreamMetrics, ...]
    steps: tuple[StepMetrics, ...]
    sinks: tuple[SinkMetrics, ...]
    batches: tuple[BatchInfo, ...]


def metrics_info(found: Measured, batches: Sequence[Figures]) -> MetricsInfo:
    """What there is to tell of a job; `batches` are the micro-batches that are told one by one."""
    newest, rates = found.newest, found.rates
    return MetricsInfo(
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
        batches=tuple(batch_info(figures) for figures in batches),
    )


def batch_info(figures: Figures) -> BatchInfo:
    """One micro-batch."""
    steps = {
        name: StepBatch(
            records=step.records,
            skew=step.skew,
            keys=step.keys,
            key_skew=step.key_skew,
            state_bytes=step.state_bytes,
            held_bytes=step.held_bytes,
            late=step.late,
            without_window=step.without_window,
            watermark_ms=_ms(step.watermark),
        )
        for name, step in figures.steps.items()
    }
    return BatchInfo(
        batch=figures.batch,
        run=figures.job_id,
        started_ms=milliseconds_of(figures.started),
        ended_ms=milliseconds_of(figures.ended),
        duration_s=figures.duration_s,
        busy_s=figures.busy_s,
        idle_s=figures.idle_s,
        phases=figures.phases,
        state_commit_s=figures.state_commit_s,
        parallelism=figures.parallelism,
        cores=figures.cores,
        records_in=figures.records_in,
        records_out=figures.records_out,
        dead_letters=figures.dead_letters,
        commands=figures.commands,
        lag=figures.lag,
        steps=steps,
        memory=figures.memory,
    )


def _streams(newest: Figures, found: Measured) -> Iterator[StreamMetrics]:
    totals = newest.totals.records_in
    for name in dict.fromkeys((*totals, *newest.lag)):
        yield StreamMetrics(
            name=name,
            records=totals.get(name),
            per_second=found.rates.records_in.get(name, 0.0) if name in totals else None,
            lag=newest.lag.get(name),
        )


def _steps(newest: Figures, found: Measured) -> Iterator[StepMetrics]:
    for name, step in newest.steps.items():
        yield StepMetrics(
            name=name,
            records=newest.totals.step_records.get(name, 0),
            per_second=found.rates.step_records.get(name, 0.0),
            late=newest.totals.late.get(name, 0),
            without_window=newest.totals.without_window.get(name, 0),
            keys=step.keys,
            state_bytes=step.state_bytes,
            held_bytes=step.held_bytes,
            skew=step.skew,
            key_skew=step.key_skew,
            watermark_ms=_ms(step.watermark),
        )


def _sinks(newest: Figures, found: Measured) -> Iterator[SinkMetrics]:
    for name, records in newest.totals.records_out.items():
        yield SinkMetrics(name=name, records=records, per_second=found.rates.records_out.get(name, 0.0))


def _ms(at: dt.datetime | None) -> int | None:
    return None if at is None else milliseconds_of(at)
