"""Metrics recorder: record the metrics of each micro-batch from the reports of its tasks and Spark's progress."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from penstock.base.instants import instant_of
from penstock.control.encoded_receipts import BatchReceipts
from penstock.control.receipts import FINAL
from penstock.jobs.compile import CompiledJob
from penstock.jobs.job_log import job_log
from penstock.jobs.phases import INTERVAL_PHASES, PHASES, IntervalEnd, interval_phases, phases_of
from penstock.jobs.task_measurements import TaskMeasurements, streams_before_sinks
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import (
    BOUNDS_S,
    BatchMetrics,
    BatchMetricsWriter,
    Lag,
    ModelMetrics,
    StepBatchMetrics,
    Totals,
)
from penstock.metrics.latency import Latency, add_latencies
from penstock.models.tallies import scores_of
from penstock.operators.window_step import WindowStep
from penstock.runtime.packed_rows import DEAD_LETTERS, TIME, time_of
from penstock.spark.progress import BatchProgress

__all__ = [
    "Counted",
    "MetricsRecorder",
    "SlotCounts",
    "count_reports",
]

# Without input, a job with timers still runs empty micro-batches all the time.
_EMPTY_EVERY_S: Final = 5.0
_SAMPLES_EVERY_S: Final = 5.0
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class SlotCounts:
    """What the slots hold after a micro-batch, by step and slot: keys, bytes of state, and bytes of held data."""

    keys: Mapping[str, Mapping[str, int]]
    state_bytes: Mapping[str, Mapping[str, int]]
    held: Mapping[str, Mapping[str, int]]


@dataclass
class Counted:
    """The counts that the tasks of a micro-batch reported, and how long the driver took to commit it to the sinks.

    `measured` has what tasks report for metrics alone, and `latency` the latency of each sink.
    """

    records_in: dict[str, int] = field(default_factory=dict)
    records_out: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    commands: dict[str, int] = field(default_factory=dict)
    steps: dict[str, StepBatchMetrics] = field(default_factory=dict)
    step_records: dict[str, int] = field(default_factory=dict)
    in_windows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    without_window: dict[str, int] = field(default_factory=dict)
    model_records: dict[str, int] = field(default_factory=dict)
    model_failures: dict[str, int] = field(default_factory=dict)
    model_slow: dict[str, int] = field(default_factory=dict)
    model_late: dict[str, int] = field(default_factory=dict)
    model_seconds: dict[str, float] = field(default_factory=dict)
    models: dict[str, ModelMetrics] = field(default_factory=dict)
    watermarks: dict[str, dict[int, int]] = field(default_factory=dict)
    measured: TaskMeasurements = field(default_factory=TaskMeasurements)
    latency: dict[str, Latency] = field(default_factory=dict)
    interval_end: IntervalEnd | None = None
    sinks_s: float = 0.0
    rest_s: float = 0.0
    is_empty: bool = False


def count_reports(
    reports: Sequence[Any], receipts: BatchReceipts, held: SlotCounts, steps: Sequence[str], parallelism: int
) -> Counted:
    """Sum up the reports of a micro-batch and the receipts of its commands."""
    found = Counted(is_empty=not reports)
    by_slot: dict[str, list[int]] = {}
    sums = {
        "in": found.records_in,
        "in_windows": found.in_windows,
        "late": found.late,
        "without_window": found.without_window,
    }
    for report in reports:
        if report.kind in sums:
            _add(sums[report.kind], report.name, report.total)
        elif report.kind == "records":
            by_slot.setdefault(report.name, []).append(report.total)
        elif report.kind == "scores":
            _add_scores(found, report.name, bytes(report.body))
        elif report.kind == TIME:
            watermark_ms = time_of(bytes(report.body)).watermark_ms
            if watermark_ms is not None:
                found.watermarks.setdefault(report.name, {})[report.partition] = watermark_ms
        elif report.kind == "out" and report.name == DEAD_LETTERS:
            found.dead_letters += report.total
        elif report.kind == "out":
            _add(found.records_out, report.name, report.total)
        else:
            found.measured.add(report)
    for outcome, count in receipts.outcomes.items():
        _add(found.commands, outcome.lower(), count)
    for step in steps:
        records, keys = by_slot.get(step, []), held.keys.get(step, {}).values()
        found.step_records[step] = sum(records)
        found.steps[step] = StepBatchMetrics(
            records=sum(records),
            skew=_skew(records, parallelism),
            keys=sum(keys),
            key_skew=_skew(keys, parallelism),
            state_bytes=sum(held.state_bytes.get(step, {}).values()),
            held_bytes=sum(held.held.get(step, {}).values()),
            late=found.late.get(step, 0),
            without_window=found.without_window.get(step, 0),
        )
    return found


class MetricsRecorder:
    """Records the metrics of a run. Joins the reports of the tasks with Spark's progress of the same micro-batch.

    `latest` has the newest metrics; before the first micro-batch they are zeros. It is replaced, never changed, so
    other threads may read it.
    """

    def __init__(
        self,
        writer: BatchMetricsWriter,
        bound: CompiledJob,
        job_id: str,
        batch_interval_ms: int = 0,
        checkpoint_interval_ms: int = 0,
    ) -> None:
        self._writer: Final = writer
        self._checkpoint_interval_ms: Final = checkpoint_interval_ms
        self._cores = 0
        self._cores_of: Callable[[], int] | None = None
        self._memory_of: Callable[[], MemoryUse] | None = None
        self._memory: MemoryUse | None = None
        self._interval_running_s: Callable[[], float] | None = None
        self._sampled_s = -_SAMPLES_EVERY_S
        self._failed = False
        self._written_at: dt.datetime | None = None
        self.bind(bound)
        now = dt.datetime.now(dt.UTC)
        with_windows = [
            node.step for node in bound.plan.graph.steps() if isinstance(node.function, WindowStep)
        ]
        self.latest = BatchMetrics(
            job=bound.lineage.job,
            job_id=job_id,
            batch=-1,
            started=now,
            ended=now,
            duration_s=0.0,
            batch_interval_ms=batch_interval_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
            parallelism=bound.lineage.parallelism,
            totals=Totals(
                phases=dict.fromkeys(INTERVAL_PHASES if checkpoint_interval_ms else PHASES, 0.0),
                records_in={node.name: 0 for node in bound.plan.graph.sources()},
                records_out={name: 0 for name in bound.sinks if name != DEAD_LETTERS},
                step_records=dict.fromkeys(self._steps, 0),
                late=dict.fromkeys(with_windows, 0),
                without_window=dict.fromkeys(with_windows, 0),
                commands={outcome.lower(): 0 for outcome in sorted(FINAL)},
            ),
        )

    def bind(self, bound: CompiledJob) -> None:
        """Continue with a job that was compiled again."""
        self._steps = [node.step for node in bound.plan.graph.steps()]
        self._streams_before = streams_before_sinks(bound.plan.graph)
        self._parallelism = bound.lineage.parallelism
        self._at_work = (-1, 0.0)
        self._pending: dict[int, Counted] = {}
        self._watermarks: dict[str, dict[int, int]] = {}

    def watch_spark(self, cores: Callable[[], int], memory: Callable[[], MemoryUse]) -> None:
        """Sample Spark's cores, which change as executors come and go, and its memory from now on."""
        self._cores_of = cores
        self._memory_of = memory

    def watch_intervals(self, running_s: Callable[[], float]) -> None:
        """Ask from now on for how long the present interval has had work: it may wait for hours before that."""
        self._interval_running_s = running_s

    def begin_batch(self, batch: int) -> None:
        """Record that a micro-batch has begun."""
        self._at_work = (batch, time.monotonic())

    @property
    def batch_running_s(self) -> float:
        """How long the current micro-batch has been running, in seconds; 0 between two."""
        if self._interval_running_s is not None:
            return self._interval_running_s()
        batch, begun_s = self._at_work
        return time.monotonic() - begun_s if batch > self.latest.batch else 0.0

    def take(
        self, batch: int, reports: Sequence[Any], receipts: BatchReceipts, held: SlotCounts, begun_s: float
    ) -> Counted:
        """Take the reports of a micro-batch that the sinks have committed; the commit started at `begun_s`."""
        found = count_reports(reports, receipts, held, self._steps, self._parallelism)
        found.sinks_s = time.monotonic() - begun_s
        found.latency = found.measured.latencies(found.records_out, self._streams_before, time.time() * 1000)
        self._pending[batch] = found
        return found

    def record_rest(self, batch: int, seconds: float) -> None:
        """Record how long the job rests within an empty micro-batch."""
        self._pending[batch].rest_s = seconds

    def commit(self, batch: int, progress: BatchProgress, lag: Mapping[str, Lag]) -> None:
        """Record a micro-batch that Spark has committed, unless this run has not processed it."""
        found = self._pending.pop(batch, None)
        for older in [number for number in self._pending if number < batch]:
            del self._pending[older]
        if found is None:
            return
        for step, slots in found.watermarks.items():
            self._watermarks.setdefault(step, {}).update(slots)
        metrics = self._metrics(batch, progress, found, lag)
        self.latest = metrics
        if found.is_empty and self._written_at is not None:
            since = metrics.ended - self._written_at
            if since.total_seconds() < _EMPTY_EVERY_S:
                return
        self._write(metrics)

    def see_lag(self, lag: Mapping[str, Lag]) -> None:
        """Refresh the lag of the newest metrics, for readers between two micro-batches."""
        self.latest = msgspec.structs.replace(self.latest, lag=dict(lag))

    def _metrics(
        self, batch: int, progress: BatchProgress, found: Counted, lag: Mapping[str, Lag]
    ) -> BatchMetrics:
        duration_s = progress.duration_ms.get("triggerExecution", 0.0) / 1000
        ended = progress.timestamp + dt.timedelta(seconds=duration_s)
        if self._checkpoint_interval_ms:
            slots = found.measured.slot_times
            phases = interval_phases(duration_s, ended.timestamp(), slots, found.interval_end)
            busy_s = min(duration_s, max((slot.busy_s for slot in slots), default=0.0))
            found.rest_s = round(duration_s - busy_s, 6)
        else:
            phases = phases_of(progress, found.sinks_s, found.rest_s)
        commit_s = sum(level.commit_time_ms for level in progress.state_operators) / 1000
        self._sample()
        before = self.latest
        idle_s = None if before.batch < 0 else (progress.timestamp - before.ended).total_seconds()
        totals = before.totals
        busy_s = max(0.0, duration_s - found.rest_s)
        return BatchMetrics(
            job=before.job,
            job_id=before.job_id,
            batch=batch,
            started=progress.timestamp,
            ended=ended,
            duration_s=duration_s,
            phases=phases,
            idle_s=None if idle_s is None else round(max(0.0, idle_s), 3),
            rest_s=found.rest_s,
            state_commit_s=commit_s,
            batch_interval_ms=before.batch_interval_ms,
            checkpoint_interval_ms=self._checkpoint_interval_ms,
            parallelism=self._parallelism,
            cores=self._cores,
            records_in=found.records_in,
            records_out=found.records_out,
            dead_letters=found.dead_letters,
            commands=found.commands,
            lag=dict(lag),
            steps={step: self._at_watermark(step, metrics) for step, metrics in found.steps.items()},
            memory=self._memory,
            latency=found.latency,
            models=found.models,
            totals=Totals(
                batches=totals.batches + 1,
                batches_within=tuple(
                    count + (busy_s <= bound_s)
                    for count, bound_s in zip(totals.batches_within, BOUNDS_S, strict=True)
                ),
                busy_seconds=_plus(totals.busy_seconds, busy_s),
                phases=_sum(totals.phases, phases),
                state_commit_seconds=_plus(totals.state_commit_seconds, commit_s),
                records_in=_sum(totals.records_in, found.records_in),
                records_out=_sum(totals.records_out, found.records_out),
                step_records=_sum(totals.step_records, found.step_records),
                dead_letters=totals.dead_letters + found.dead_letters,
                late=_sum(totals.late, found.late),
                without_window=_sum(totals.without_window, found.without_window),
                commands=_sum(totals.commands, found.commands),
                latency=add_latencies(totals.latency, found.latency),
                model_records=_sum(totals.model_records, found.model_records),
                model_failures=_sum(totals.model_failures, found.model_failures),
                model_slow=_sum(totals.model_slow, found.model_slow),
                model_late=_sum(totals.model_late, found.model_late),
                model_seconds=_sum(totals.model_seconds, found.model_seconds),
            ),
        )

    def _at_watermark(self, step: str, metrics: StepBatchMetrics) -> StepBatchMetrics:
        slots = self._watermarks.get(step)
        if not slots:
            return metrics
        try:
            return msgspec.structs.replace(metrics, watermark=instant_of(min(slots.values())))
        except OverflowError:
            # The watermark at the end of the input is beyond all dates.
            return metrics

    def _sample(self) -> None:
        now_s = time.monotonic()
        if self._memory_of is None or self._cores_of is None or now_s - self._sampled_s < _SAMPLES_EVERY_S:
            return
        self._sampled_s = now_s
        self._cores = self._cores_of()
        self._memory = self._memory_of()

    def _write(self, metrics: BatchMetrics) -> None:
        try:
            self._writer.append(metrics)
        except OSError as e:
            if not self._failed:
                job_log.warning(
                    "The metrics of the job cannot be written (%s); the job continues without them.", e
                )
            self._failed = True
        else:
            self._failed = False
            self._written_at = metrics.ended


def _add_scores(found: Counted, step: str, body: bytes) -> None:
    """Add the report of a slot of a step on the versions of its models."""
    for model, tallies in scores_of(body).items():
        for version, tally in tallies.items():
            name = f"{step}/{model}/{version}"
            _add(found.model_records, name, tally.records)
            _add(found.model_failures, name, tally.failures)
            _add(found.model_slow, name, tally.slow)
            _add(found.model_late, name, tally.late)
            found.model_seconds[name] = _plus(found.model_seconds.get(name, 0.0), tally.seconds)


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _sum(before: Mapping[str, _Number], more: Mapping[str, _Number]) -> dict[str, _Number]:
    """Return the sums by name, as a new dictionary."""
    found = dict(before)
    for name, count in more.items():
        found[name] = _plus(found.get(name, type(count)()), count)
    return found


def _plus(before: _Number, more: _Number) -> _Number:
    """Return the sum, without the rounding errors of binary fractions."""
    found = before + more
    return round(found, 6) if isinstance(found, float) else found


def _skew(counts: Iterable[int], slots: int) -> float | None:
    """Return the largest count of a slot divided by the mean over all slots; None when all are 0."""
    known = list(counts)
    total = sum(known)
    return round(max(known) * slots / total, 3) if total else None
