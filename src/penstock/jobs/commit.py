"""Commit: what happens between the moment Spark plans a micro-batch and the moment Spark commits it.

1. Spark plans the micro-batch and calls `BatchCommitter.before_batch`. This checks that the run may start it, and
   starts to sync to disk all that a replay needs.
2. The tasks process the records. They prepare output and send reports to the driver.
3. Spark calls `BatchCommitter.on_batch` with the reports. This makes the output visible in the sinks, writes the
   receipts, and saves the counts.
4. Spark commits the micro-batch to its log. `BatchCommitter.refresh` notices that and records the metrics.

After a crash before step 4, Spark repeats the whole micro-batch with the same number and the same input. Sinks that are
exactly once, and receipts, skip what they already have.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import COUNTS_FILE, mark_begun, stored_counts
from penstock.checkpoints.checkpoint_sync import CheckpointSync
from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.plans import Plans
from penstock.checkpoints.write_versions import WriteVersions, no_version
from penstock.commands.model_policies import ModelPolicies, ModelReports
from penstock.control.encoded_receipts import Batch, BatchReceipts, EncodedReceipts, encode_receipts
from penstock.control.receipts import StepTime, slowest_time
from penstock.errors import JobFailedError, PenstockError
from penstock.jobs.batch_bounds import BatchBounds
from penstock.jobs.compile import CompiledJob
from penstock.jobs.control_history import ControlHistory
from penstock.jobs.dump_queue import DumpQueue
from penstock.jobs.fetched_removal import FetchedRemoval
from penstock.jobs.metrics_recorder import Counted, MetricsRecorder, SlotCounts
from penstock.jobs.model_queue import ModelQueue
from penstock.jobs.model_suspensions import ModelSuspensions
from penstock.jobs.phases import IntervalEnd
from penstock.jobs.policy_sender import PolicySender
from penstock.jobs.stream_lags import StreamLags
from penstock.metrics.batch_metrics import Lag, Mode, ModelMetrics
from penstock.metrics.latency import Percentiles, percentiles_of
from penstock.models.score_windows import ScoreWindow
from penstock.models.tallies import VersionTally, add_tallies, scores_of
from penstock.runtime.packed_rows import (
    DEAD_LETTERS,
    RECEIPT_COLUMNS,
    REPORTS,
    TIME,
    decode_receipt_columns,
    reports_of,
    time_of,
)
from penstock.spark.progress import BatchProgress, ProgressReader, SourceProgress
from penstock.spark.types import StreamingQuery

__all__ = ["STOPPING", "BatchCommitter", "EventTime", "Progress", "RunServices", "RunSummary"]

LiveEnds: TypeAlias = Callable[[], Mapping[str, tuple[Any, Any]]]
"""Returns where each stream stands after the last interval, and its newest end if known, as offsets."""

STOPPING: Final = "The job is stopping and starts no further micro-batch."


class _StepCounts(msgspec.Struct):
    """The counts of each step from the start of the checkpoint to a micro-batch.

    `settings` holds the current values of the settings that were set. `keys`, `state_bytes` (stored state) and `held`
    (bytes of data that waits for a paused step) are by step and slot. `models` has the versions of each model, and
    `scores` what they have scored, by step and model; `windows` has the scores that policies look at. `unused_models`
    has the micro-batch since which no version has used a content, `fetched` the one that last read what commands refer
    to, by the name of each.
    """

    batch: int = -1
    keys: dict[str, dict[str, int]] = {}
    held: dict[str, dict[str, int]] = {}
    state_bytes: dict[str, dict[str, int]] = {}
    records: dict[str, int] = {}
    settings: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, dict[str, Any]]] = {}
    scores: dict[str, dict[str, dict[str, VersionTally]]] = {}
    windows: dict[str, dict[str, ScoreWindow]] = {}
    unused_models: dict[str, int] = {}
    fetched: dict[str, int] = {}


@dataclass(frozen=True)
class EventTime:
    """The event time that a step has reached.

    `watermark` is None before the first one, and text if it is beyond the range of datetimes. `behind_s` is its
    distance behind the clock in seconds: negative if it is ahead, None if unknown. `held_by` is the stream and
    partition, or the step, that holds it back; None if nothing does.
    """

    watermark: dt.datetime | str | None
    behind_s: float | None
    held_by: str | None


@dataclass(kw_only=True)
class Progress:
    """The progress of a run. Counts are totals since the start of the run, across all its rescalings.

    `batch_id` is the newest micro-batch, -1 before the first; `batches` is the number of micro-batches. `commands`
    counts commands with a final receipt: applied, degraded or rejected. `batch_ms` is the duration of the last
    micro-batch, None before the first commit. `rows_per_s` is the rate of input records over the last seconds, and
    `lag` what waits in each source. `event_time` has the steps that use event time, once they have reported it.
    `latency` has the sinks of the newest micro-batch with output. In real time, `mode` says so, and a micro-batch is an
    interval.
    """

    batch_id: int = -1
    batches: int = 0
    records_in: dict[str, int] = field(default_factory=dict)
    records_out: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    commands: int = 0
    batch_ms: float | None = None
    rows_per_s: float = 0.0
    lag: dict[str, Any] = field(default_factory=dict)
    in_windows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    without_window: dict[str, int] = field(default_factory=dict)
    event_time: dict[str, EventTime] = field(default_factory=dict)
    latency: dict[str, Percentiles] = field(default_factory=dict)
    mode: Mode = "micro-batches"

    def add(self, batch_id: int, counted: Counted) -> None:
        """Add the reports of the tasks of a micro-batch."""
        self.batch_id = batch_id
        self.batches += 1
        self.dead_letters += counted.dead_letters
        self.commands += sum(counted.commands.values())
        for totals, more in (
            (self.records_in, counted.records_in),
            (self.records_out, counted.records_out),
            (self.in_windows, counted.in_windows),
            (self.late, counted.late),
            (self.without_window, counted.without_window),
        ):
            for name, count in more.items():
                totals[name] = totals.get(name, 0) + count


@dataclass
class RunSummary:
    """The result of a run. `state` has the number of keys in each step, `dead_letters_at` the place of dead letters.

    `in_windows` counts the records that entered windows, by step; `late` and `without_window` count those that did
    not, by reason. Steps without any are left out. `event_time` is the event time reached at the end, `latency` that
    of all outputs of the run, by sink.
    """

    job_id: str
    status: str
    batches: int
    records_in: dict[str, int]
    records_out: dict[str, int]
    dead_letters: int
    commands: int
    state: dict[str, int]
    dead_letters_at: str
    in_windows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    without_window: dict[str, int] = field(default_factory=dict)
    event_time: dict[str, EventTime] = field(default_factory=dict)
    latency: dict[str, Percentiles] = field(default_factory=dict)
    mode: Mode = "micro-batches"


@dataclass(frozen=True)
class RunServices:
    """The services of a run besides its micro-batches: ownership of the checkpoint, dumps, models and metrics.

    `lags` knows how long records have been waiting. It and `progress` live as long as the run, so rescalings do not
    reset them.
    """

    ownership: Ownership
    dumps: DumpQueue
    recorder: MetricsRecorder
    lags: StreamLags = field(default_factory=StreamLags)
    progress: Progress = field(default_factory=Progress)
    models: ModelQueue | None = None
    policies: PolicySender | None = None
    suspensions: ModelSuspensions | None = None
    fetched: FetchedRemoval | None = None


class BatchCommitter:
    """Commits each micro-batch to sinks and receipts, and keeps the counts and the progress of the run.

    Spark calls `before_batch` and `on_batch` in its own thread. The thread that runs the job calls the other methods.
    """

    def __init__(
        self, bound: CompiledJob, checkpoint: Checkpoint, services: RunServices, *, in_real_time: bool = False
    ) -> None:
        self.bound: Final = bound
        self._checkpoint = checkpoint
        self.sync: Final = CheckpointSync(
            checkpoint.spark_folder,
            functools.partial(mark_begun, checkpoint),
            None if checkpoint.stored is None else checkpoint.stored.save,
        )
        self.ownership: Final = services.ownership
        self._counts = stored_counts(checkpoint, _StepCounts) or _StepCounts()
        self.dumps: Final = services.dumps
        self.models: Final = services.models
        self.policies: Final = services.policies
        self.suspensions: Final = services.suspensions
        self._fetched: Final = services.fetched
        self._model_policies: Final = ModelPolicies(
            {name: step.models for name, step in bound.plan.accepting.steps.items()}
            if bound.plan.graph.steps()
            else {},
            self._counts.windows,
        )
        self.recorder: Final = services.recorder
        self._spark: ProgressReader | None = None
        self._lags: Final = services.lags
        self._topic_lags: dict[str, Lag] = {}
        self.history = ControlHistory(checkpoint, bound.lineage, {})
        # In real time a task takes records as they arrive, and waits while too many are unprocessed.
        self.bounds: Final = BatchBounds.of(
            checkpoint.folder, () if in_real_time else bound.sources, bound.max_batch_bytes
        )
        self._rates: list[tuple[float, int]] = []
        # By step and slot. A new run gets all of them in its first micro-batch with data.
        self._times: dict[str, dict[int, StepTime]] = {}
        self.closing = False
        self.live_ends: LiveEnds | None = None
        self.interval_end: Callable[[], IntervalEnd | None] = lambda: None
        self.plans: Final = Plans(checkpoint, bound.lineage)
        needs_versions = bound.writer.needs_versions
        self.next_version: Final = (
            WriteVersions(checkpoint.folder, services.ownership).next if needs_versions else no_version
        )
        self.progress: Final = services.progress
        self.progress.mode = services.recorder.latest.mode
        for node in bound.plan.graph.sources():
            self.progress.records_in.setdefault(node.name, 0)
        for name in bound.sinks:
            if name != DEAD_LETTERS:
                self.progress.records_out.setdefault(name, 0)

    def failure(self) -> PenstockError | None:
        """Return why the run cannot continue, whatever the query reports: a lost checkpoint or a failed receiver."""
        found = [self.ownership.lost(), *(receiver.error for receiver in self.bound.receivers)]
        return next((error for error in found if error is not None), None)

    def before_batch(self, batch_id: int) -> None:
        """Check that a planned micro-batch may start, and begin to sync the files that its replay needs.

        Raises JobFailedError while the job is stopping, and FencedError when another run owns the checkpoint. A
        micro-batch that is refused here has no effect, so its plan can be taken back. Sinks that commit in tasks may
        make output visible before `on_batch`; for these, this waits for the sync, and raises CheckpointError when the
        disk fails.
        """
        if self.closing:
            raise JobFailedError(STOPPING)
        self.ownership.check()
        self.plans.begin(batch_id)
        self.recorder.begin_batch(batch_id)
        self.sync.begin(batch_id)
        if self.bound.writer.commits_in_tasks:
            self.sync.wait(batch_id)

    def on_batch(self, batch_id: int, reports: list[Any]) -> None:
        """Commit a micro-batch to the sinks and receipts. Spark calls this again for the same batch after a crash.

        The order is what makes a replay safe:

        1. Check that this run owns the checkpoint, and that the topics are those that the checkpoint knows.
        2. Wait until the disk has all that a replay needs, and the mark that outputs of this batch may exist.
        3. Commit the output that the tasks prepared, sink by sink.
        4. Write the receipts of the commands, and queue the dumps that they request.
        5. Save the counts.
        6. Check the ownership again. Spark commits the micro-batch only when this returns.

        Raises FencedError when another run owns the checkpoint. In step 1 nothing is written yet; in step 6 the error
        keeps Spark from committing the micro-batch, which the other run repeats. Raises CheckpointError, before any
        output is visible, when a topic is not the one that the checkpoint knows (step 1) or the disk fails (step 2).
        """
        begun_s = time.monotonic()
        self.ownership.check()
        if reports:
            self.bound.topics.check()
        self.sync.wait(batch_id)
        if self._checkpoint.stored is not None:
            # Saved while the tasks were at work, which may be long ago.
            self._checkpoint.stored.check()
        # Tasks report in any order.
        reports.sort(key=lambda report: (report.kind, report.name, report.partition))
        self._commit_sinks(batch_id, reports)
        self._decide_on_models(self._count(batch_id, reports))
        if self.models is not None:
            self.models.remove_unused(batch_id, self._counts.models, self._counts.unused_models)
        if self._fetched is not None:
            self._fetched.remove_unread(batch_id, reports, self._counts.fetched)
        receipts = self._build_receipts(batch_id, reports)
        self.bound.receipts.write(batch_id, receipts)
        self.dumps.enqueue(batch_id, receipts.together)
        # After the outputs, so that a replay counts what a crash left uncounted. Durably, since receipts have counts.
        self._checkpoint.save(COUNTS_FILE, self._counts)
        counts = self._counts
        held = SlotCounts(counts.keys, counts.state_bytes, counts.held)
        counted = self.recorder.take(batch_id, reports, receipts, held, begun_s)
        counted.interval_end = self.interval_end()
        counted.models = {
            "/".join(name): msgspec.convert(found, ModelMetrics, from_attributes=True)
            for name, found in self._model_policies.figures.items()
        }
        self._lags.see_times(counted.measured.newest_ms)
        self._topic_lags = counted.measured.topic_lags
        self.progress.add(batch_id, counted)
        self.ownership.check()

    def _commit_sinks(self, batch_id: int, reports: list[Any]) -> None:
        """Pass each sink the messages of its tasks, which name the output that they prepared."""
        messages: dict[str, list[bytes]] = {}
        for report in reports:
            if report.kind == "out":
                messages.setdefault(report.name, []).append(bytes(report.body))
        for name, of_sink in messages.items():
            self.bound.sinks[name][0].commit(batch_id, of_sink)

    def _build_receipts(self, batch_id: int, reports: list[Any]) -> BatchReceipts:
        """Build the receipts of the commands in the micro-batch, in the order of the commands."""
        columns = [
            some
            for report in reports
            if report.kind == RECEIPT_COLUMNS
            for some in decode_receipt_columns(bytes(report.body))
        ]
        slots = [reports_of(bytes(report.body)) for report in reports if report.kind == REPORTS]
        together: list[EncodedReceipts] = []
        if slots:
            batch = Batch(batch_id, max(at for at, _, _ in slots), self._counts.records)
            together = encode_receipts((one for _, some, _ in slots for one in some), batch)
        return BatchReceipts.of(columns, together)

    def _decide_on_models(self, scores: Mapping[str, Mapping[str, Mapping[str, VersionTally]]]) -> None:
        """Show the policies of models the scores of versions; their commands come after this micro-batch."""
        counts = self._counts
        reports = ModelReports(
            int(time.time() * 1000),
            counts.models,
            counts.settings,
            scores,
            counts.scores,
            {} if self.suspensions is None else self.suspensions.in_force(counts.models),
            {step: slowest_time(list(times.values())) for step, times in self._times.items()},
        )
        commands = self._model_policies.see(reports)
        if self.policies is not None:
            self.policies.enqueue(commands)

    def _count(self, batch_id: int, reports: list[Any]) -> dict[str, dict[str, dict[str, VersionTally]]]:
        """Add the reports of the tasks to the counts. A replay adds no records twice.

        Returns what the versions of models have newly scored, by step and model.
        """
        counts = self._counts
        scores: dict[str, dict[str, dict[str, VersionTally]]] = {}
        is_new = batch_id > counts.batch
        counts.batch = max(counts.batch, batch_id)
        read: dict[str, dict[str, int]] = {"in": {}, "in_bytes": {}}
        for report in reports:
            if report.kind in read:
                sums = read[report.kind]
                sums[report.name] = sums.get(report.name, 0) + report.total
            elif report.kind in ("keys", "held", "state_bytes"):
                by_step = getattr(counts, report.kind)
                by_step.setdefault(report.name, {})[str(report.partition)] = report.total
            elif report.kind == "settings":
                counts.settings[report.name] = msgspec.json.decode(bytes(report.body))
            elif report.kind == "models":
                counts.models[report.name] = msgspec.json.decode(bytes(report.body))
            elif report.kind == "scores":
                if is_new:
                    for found in (counts.scores, scores):
                        _add_scores(found.setdefault(report.name, {}), bytes(report.body))
            elif report.kind == "records":
                if is_new:
                    counts.records[report.name] = counts.records.get(report.name, 0) + report.total
            elif report.kind == TIME:
                self._times.setdefault(report.name, {})[report.partition] = time_of(bytes(report.body))
        self.bounds.see(read["in"], read["in_bytes"])
        return scores

    @property
    def held_bytes(self) -> int:
        """The size in bytes of the data that waits for paused steps."""
        return sum(size for slots in self._counts.held.values() for size in slots.values())

    def watch(self, query: StreamingQuery) -> None:
        """Follow this query from now on."""
        self._spark = ProgressReader(query)

    def refresh(self) -> None:
        """Refresh rate, batch time and lag, and record the metrics of the micro-batches that Spark has committed."""
        assert self._spark is not None
        self.progress.event_time = self._event_time()
        now = time.monotonic()
        self._rates.append((now, sum(self.progress.records_in.values())))
        while now - self._rates[0][0] > 5:
            self._rates.pop(0)
        (then, before), (_, latest) = self._rates[0], self._rates[-1]
        self.progress.rows_per_s = (latest - before) / (now - then) if now > then else 0.0
        committed = self._spark.new()
        if self._spark.batch is not None:
            self.progress.batch_ms = self._spark.batch.duration_ms.get("triggerExecution", 0.0)
        if self._spark.newest is not None:
            newest = self._spark.newest
            lag = self._lags.find(
                self.bound.sources, self._source_progress(newest), newest.timestamp.timestamp()
            )
            if self.live_ends is not None:
                # In real time positions are known at the end of an interval, and the engines know those of topics.
                if not committed:
                    return
                lag |= self._topic_lags
            self.progress.lag = {name: _amounts(found) for name, found in lag.items()}
            for progress in committed:
                self.recorder.commit(self.bound.lineage.first_batch + progress.batch_id, progress, lag)
            self.recorder.see_lag(lag)
            self.progress.latency |= percentiles_of(self.recorder.latest.latency)

    def _source_progress(self, last: BatchProgress) -> list[SourceProgress]:
        """Return the progress of each source, which Spark knows only in micro-batches."""
        if self.live_ends is None:
            return last.sources
        ends = self.live_ends()
        return [SourceProgress(*ends.get(source.node.name, (None, None))) for source in self.bound.sources]

    def _event_time(self) -> dict[str, EventTime]:
        """Return the event time of each step that has reported it, in the order of the steps."""
        now = dt.datetime.now(dt.UTC)
        found = {}
        for step in self.bound.plan.graph.steps():
            # A copy, since Spark's thread counts micro-batches at the same time.
            slowest = slowest_time(list(self._times.get(step.step, {}).values()))
            if slowest is not None:
                watermark = slowest.watermark
                behind = now - watermark if isinstance(watermark, dt.datetime) else None
                behind_s = None if behind is None else round(behind.total_seconds(), 3)
                found[step.step] = EventTime(watermark, behind_s, slowest.held_by)
        return found

    def summary(self, job_id: str, status: str) -> RunSummary:
        """Return a summary of the run."""
        progress = self.progress
        state = {
            step.step: sum(self._counts.keys.get(step.step, {}).values())
            for step in self.bound.plan.graph.steps()
        }
        return RunSummary(
            job_id=job_id,
            status=status,
            batches=progress.batches,
            records_in=progress.records_in,
            records_out=progress.records_out,
            dead_letters=progress.dead_letters,
            commands=progress.commands,
            state=state,
            dead_letters_at=self.bound.dead_letters_at,
            in_windows=progress.in_windows,
            late=progress.late,
            without_window=progress.without_window,
            event_time=self._event_time(),
            latency=percentiles_of(self.recorder.latest.totals.latency),
            mode=progress.mode,
        )


def _add_scores(totals: dict[str, dict[str, VersionTally]], body: bytes) -> None:
    """Add the report of a slot on the versions of its models."""
    for model, tallies in scores_of(body).items():
        add_tallies(totals.setdefault(model, {}), tallies)


def _amounts(lag: Lag) -> dict[str, int]:
    """Return the amounts that wait, in the units that are known."""
    amounts = {"records": lag.records, "files": lag.files, "bytes": lag.bytes}
    return {unit: amount for unit, amount in amounts.items() if amount is not None}
