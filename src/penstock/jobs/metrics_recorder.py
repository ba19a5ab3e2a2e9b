"""Metrics recorder: the metrics of each micro-batch, from what its tasks report and what Spark tells of it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.base.instants import instant_of
from penstock.control.encoded_receipts import BatchReceipts
from penstock.control.receipts import FINAL
from penstock.jobs.compile import CompiledJob
from penstock.jobs.job_log import job_log
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import (
    BOUNDS_S,
    BatchMetrics,
    BatchMetricsWriter,
    Lag,
    StepBatchMetrics,
    Totals,
)
from penstock.operators.window_step import WindowStep
from penstock.runtime.packed_rows import DEAD_LETTERS, TIME, time_of
from penstock.sources.base import ReplayableLog
from penstock.spark.progress import BatchProgress, SourceProgress

__all__ = [
    "PHASES",
    "Counted",
    "LagClock",
    "MetricsRecorder",
    "SlotCounts",
    "Waiting",
    "counted",
    "kafka_waiting",
    "log_waiting",
    "phases_of",
]

PHASES: Final = ("offsets", "planning", "log", "processing", "sinks")
"""The parts of a micro-batch: find what is there, plan, write Spark's logs, run the tasks, commit the sinks."""


# While nothing comes, a job with timers makes empty micro-batches all the time.
_EMPTY_EVERY_S: Final = 5.0
_SAMPLES_EVERY_S: Final = 5.0
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class SlotCounts:
    """What slots of the steps hold after a micro-batch, by step and slot: keys, bytes of state and of held data."""

    keys: Mapping[str, Mapping[str, int]]
    state_bytes: Mapping[str, Mapping[str, int]]
    held: Mapping[str, Mapping[str, int]]


@dataclass
class Counted:
    """What the tasks of one micro-batch reported, and how long the driver took to commit it to the sinks."""

    records_in: dict[str, int] = field(default_factory=dict)
    records_out: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    commands: dict[str, int] = field(default_factory=dict)
    steps: dict[str, StepBatchMetrics] = field(default_factory=dict)
    step_records: dict[str, int] = field(default_factory=dict)
    in_windows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    without_window: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, dict[int, int]] = field(default_factory=dict)
    sinks_s: float = 0.0
    rest_s: float = 0.0
    is_empty: bool = False


def counted(
    reports: Sequence[Any], told: BatchReceipts, held: SlotCounts, steps: Sequence[str], parallelism: int
) -> Counted:
    """What the reports of a micro-batch and the receipts of its commands come to."""
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
        elif report.kind == TIME:
            watermark_ms = time_of(bytes(report.body)).watermark_ms
            if watermark_ms is not None:
                found.watermarks.setdefault(report.name, {})[report.partition] = watermark_ms
        elif report.kind == "out" and report.name == DEAD_LETTERS:
            found.dead_letters += report.total
        elif report.kind == "out":
            _add(found.records_out, report.name, report.total)
    for outcome, count in told.outcomes.items():
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


def phases_of(progress: BatchProgress, sinks_s: float, rest_s: float) -> dict[str, float]:
    """The seconds of each part of a micro-batch."""
    spark = {name: duration_ms / 1000 for name, duration_ms in progress.duration_ms.items()}
    found = {
        "offsets": spark.get("latestOffset", 0.0),
        "planning": spark.get("getBatch", 0.0) + spark.get("queryPlanning", 0.0),
        "log": spark.get("walCommit", 0.0) + spark.get("commitOffsets", 0.0),
        "processing": max(0.0, spark.get("addBatch", 0.0) - sinks_s - rest_s),
        "sinks": sinks_s,
    }
    return {name: round(found[name], 6) for name in PHASES}


class Waiting(NamedTuple):
    """What waits in a source, where its reader is, and where the source ends, in a unit of its own."""

    lag: Lag
    position: int
    end: int


def kafka_waiting(told: SourceProgress) -> Waiting | None:
    """What waited in a topic when the micro-batch was planned, over its partitions; None when Spark does not tell."""
    if not told.end or not told.latest:
        return None
    ends: dict[str, int] = {f"{t}/{p}": at for t, parts in told.end.items() for p, at in parts.items()}
    latest: dict[str, int] = {f"{t}/{p}": at for t, parts in told.latest.items() for p, at in parts.items()}
    behind = sum(max(0, at - ends.get(partition, 0)) for partition, at in latest.items())
    position = sum(ends.values())
    return Waiting(Lag(records=behind), position, position + behind)


def log_waiting(log: ReplayableLog, told: SourceProgress) -> Waiting | None:
    """What waits in a log at this moment; None of a log that does not tell."""
    if not told.end:
        return None
    position = told.end["position"]
    lag = log.lag(position)
    if not lag:
        return None
    return Waiting(Lag(**lag), position, position + int(lag.get("files", lag.get("bytes", 0))))


class LagClock:
    """How long the oldest of what waits in a log has been waiting, from looks at where the log ended at what time.

    It knows what it has seen: what was there before the first look counts from then on.
    """

    # When there are more looks than this, every second one is forgotten, and the next ones are as far apart.
    _MOST: Final = 512

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = []
        self._apart_s = 0.0

    def see(self, at_s: float, end: int) -> None:
        """Take note that the log had this end."""
        if self._looks and (end <= self._looks[-1][1] or at_s < self._looks[-1][0] + self._apart_s):
            return
        self._looks.append((at_s, end))
        if len(self._looks) > self._MOST:
            self._looks = self._looks[::2]
            self._apart_s = (at_s - self._looks[0][0]) / len(self._looks)

    def waited_s(self, at_s: float, position: int) -> float:
        """For how long anything has been waiting behind a position; 0 when nothing is."""
        while self._looks and self._looks[0][1] <= position:
            if len(self._looks) == 1:
                # All is read, and the last look says from where on something is new.
                self._apart_s = 0.0
                return 0.0
            self._looks.pop(0)
        return max(0.0, at_s - self._looks[0][0]) if self._looks else 0.0


class MetricsRecorder:
    """Records the metrics of a run. The tasks' reports and Spark's progress of a micro-batch meet here.

    `latest` has the newest metrics, before the first micro-batch with zeros. It is replaced, never changed, so that
    other threads may look at it.
    """

    def __init__(
        self, writer: BatchMetricsWriter, bound: CompiledJob, job_id: str, batch_interval_ms: int = 0
    ) -> None:
        self._writer: Final = writer
        self._batch_interval_ms: Final = batch_interval_ms
        self._cores = 0
        self._cores_of: Callable[[], int] | None = None
        self._memory_of: Callable[[], MemoryUse] | None = None
        self._memory: MemoryUse | None = None
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
            parallelism=bound.lineage.parallelism,
            totals=Totals(
                phases=dict.fromkeys(PHASES, 0.0),
                records_in={node.name: 0 for node in bound.plan.graph.sources()},
                records_out={name: 0 for name in bound.sinks if name != DEAD_LETTERS},
                step_records=dict.fromkeys(self._steps, 0),
                late=dict.fromkeys(with_windows, 0),
                without_window=dict.fromkeys(with_windows, 0),
                commands={outcome.lower(): 0 for outcome in sorted(FINAL)},
            ),
        )

    def bind(self, bound: CompiledJob) -> None:
        """Go on with a job that was bound anew."""
        self._steps = [node.step for node in bound.plan.graph.steps()]
        self._parallelism = bound.lineage.parallelism
        self._at_work = (-1, 0.0)
        self._pending: dict[int, Counted] = {}
        self._watermarks: dict[str, dict[int, int]] = {}

    def spark_started(self, cores: Callable[[], int], memory: Callable[[], MemoryUse]) -> None:
        """Spark runs; how many tasks at a time, as executors come and go, and its memory are looked at now and then."""
        self._cores_of = cores
        self._memory_of = memory

    def began(self, batch: int) -> None:
        """Take note that a micro-batch has begun."""
        self._at_work = (batch, time.monotonic())

    @property
    def batch_running_s(self) -> float:
        """How long the micro-batch that is under way has been running, in seconds; 0 between two."""
        batch, begun_s = self._at_work
        return time.monotonic() - begun_s if batch > self.latest.batch else 0.0

    def take(
        self, batch: int, reports: Sequence[Any], told: BatchReceipts, held: SlotCounts, begun_s: float
    ) -> Counted:
        """Take what the tasks of a micro-batch reported, once it is committed to the sinks, since `begun_s`."""
        found = counted(reports, told, held, self._steps, self._parallelism)
        found.sinks_s = time.monotonic() - begun_s
        self._pending[batch] = found
        return found

    def rested(self, batch: int, seconds: float) -> None:
        """Take note that the job rests within a micro-batch, in which nothing came."""
        self._pending[batch].rest_s = seconds

    def commit(self, batch: int, progress: BatchProgress, lag: Mapping[str, Lag]) -> None:
        """Record a micro-batch that Spark has committed. What this run has not taken is left out."""
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
        """Bring the lag of the newest metrics up to date, for those who look between two micro-batches."""
        self.latest = msgspec.structs.replace(self.latest, lag=dict(lag))

    def _metrics(
        self, batch: int, progress: BatchProgress, found: Counted, lag: Mapping[str, Lag]
    ) -> BatchMetrics:
        duration_s = progress.duration_ms.get("triggerExecution", 0.0) / 1000
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
            ended=progress.timestamp + dt.timedelta(seconds=duration_s),
            duration_s=duration_s,
            phases=phases,
            idle_s=None if idle_s is None else round(max(0.0, idle_s), 3),
            rest_s=found.rest_s,
            state_commit_s=commit_s,
            batch_interval_ms=self._batch_interval_ms,
            parallelism=self._parallelism,
            cores=self._cores,
            records_in=found.records_in,
            records_out=found.records_out,
            dead_letters=found.dead_letters,
            commands=found.commands,
            lag=dict(lag),
            steps={step: self._at_watermark(step, metrics) for step, metrics in found.steps.items()},
            memory=self._memory,
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
            ),
        )

    def _at_watermark(self, step: str, metrics: StepBatchMetrics) -> StepBatchMetrics:
        slots = self._watermarks.get(step)
        if not slots:
            return metrics
        try:
            return msgspec.structs.replace(metrics, watermark=instant_of(min(slots.values())))
        except OverflowError:
            # Time has ended for the step, and its watermark is beyond all dates.
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
                job_log.warning("The metrics of the job cannot be written (%s); the job goes on without.", e)
            self._failed = True
        else:
            self._failed = False
            self._written_at = metrics.ended


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _sum(before: Mapping[str, _Number], more: Mapping[str, _Number]) -> dict[str, _Number]:
    """The sums by name, as a new dictionary."""
    found = dict(before)
    for name, count in more.items():
        found[name] = _plus(found.get(name, type(count)()), count)
    return found


def _plus(before: _Number, more: _Number) -> _Number:
    """The sum, without the last digits of a binary fraction."""
    found = before + more
    return round(found, 6) if isinstance(found, float) else found


def _skew(counts: Iterable[int], slots: int) -> float | None:
    """The largest of the counts by slot, divided by their mean over all slots; None when all are 0."""
    known = list(counts)
    total = sum(known)
    return round(max(known) * slots / total, 3) if total else None
