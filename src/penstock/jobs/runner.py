"""The job runner: start a described job on Spark, follow it, and stop it cleanly."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bindings.secrets import redacted
from penstock.bindings.types import KafkaBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_graph import GRAPH_FILE
from penstock.checkpoints.described_state import STATE_FILE
from penstock.checkpoints.ownership import Ownership, locked, locked_by_jvm
from penstock.checkpoints.recovery import recover
from penstock.checkpoints.temporary_checkpoints import temporary_checkpoint
from penstock.commands.command_catalog import CONTROL_FILE
from penstock.errors import PenstockError
from penstock.jobs.commit import STOPPING, BatchCommitter, Progress, RunServices, RunSummary
from penstock.jobs.compile import CompiledJob, compile_job
from penstock.jobs.control_history import control_history
from penstock.jobs.dump_queue import DumpQueue
from penstock.jobs.events import RunEvents, settings_of, user_name
from penstock.jobs.failure_diagnosis import SparkLog, explained
from penstock.jobs.hindrances import check_room, hindrances_told
from penstock.jobs.metrics_endpoint import metrics_served
from penstock.jobs.metrics_recorder import LagClock, MetricsRecorder
from penstock.jobs.outputs import begin_outputs_anew, checked_outputs
from penstock.jobs.replan import pending_told, take_back_plan
from penstock.jobs.requests import Answer, Request, Requests
from penstock.jobs.rescale_attempts import carry_out
from penstock.jobs.restore import begin, declared_state, must_evolve, put_aside
from penstock.jobs.settings import RunSettings
from penstock.jobs.signals import signals_set
from penstock.jobs.worker_output import WorkerOutput
from penstock.metrics.batch_metrics import FiguresWriter
from penstock.runtime.cuts import write_stream_order
from penstock.savepoints.rescaling import evolve, finish_rescaling
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.spark.query import Query, start_query
from penstock.spark.run_memory import MemoryGauge
from penstock.spark.session import OUTPUT_FILE, SessionSettings, open_session, ship_code
from penstock.spark.startup.warm_up import warm_up
from penstock.spark.types import PySparkException, SparkSession, StreamingQuery
from penstock.streams.job import Job

__all__ = ["JobRunner", "Progress", "RunSummary"]

_POLL_S: Final = 0.2
_OTHERWISE: Final = "goes on otherwise"
_STOP_POLL_S: Final = 0.02


@dataclass(frozen=True)
class _Run:
    """A job at work in a session, and those who look on and tell it what to do.

    `on_start` is called when its query runs.
    """

    session: SparkSession
    committer: BatchCommitter
    checkpoint: Checkpoint
    requests: Requests
    events: RunEvents
    stop: threading.Event
    on_progress: Callable[[Progress], None]
    on_note: Callable[[str], None]
    on_start: Callable[[], None]


class JobRunner:
    """Runs one job once.

    Args:
        job: the described job.
        settings: how to run it.
        code: the job's own modules, which the workers need.
        number: the number of this run of a managed job, by which requests may name it.

    """

    def __init__(
        self, job: Job, settings: RunSettings, code: tuple[Path, ...] = (), number: int | None = None
    ) -> None:
        self._job = job
        self._settings = settings
        self._code = code
        self._number = number
        self.job_id: Final = f"{job.name}-{uuid.uuid4().hex[:8]}"

    @property
    def notes(self) -> list[str]:
        """What the user should know about the settings, though the job can run with them."""
        found = []
        for source in self._job.graph.sources():
            uri = self._settings.bindings.get(source.name, "")
            starts_late = (
                uri.lower().startswith(("kafka://", "rabbitmq-stream://"))
                and not source.is_control
                and "start=" not in uri
            )
            if self._settings.bounded and starts_late:
                found.append(
                    f"The bounded job starts to read {source.name!r} at its end, so a first run finds "
                    "nothing there. Add start=earliest to read what is there."
                )
        return found

    def run(
        self,
        stop: threading.Event | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> RunSummary:
        """Run until the bounded input is done or `stop` is set. Raises a PenstockError when the job fails.

        `on_begin` is called when nothing has refused the run, before Spark starts. `on_progress` is told again and
        again how far the job is, and once more behind its last micro-batch.
        `on_note` is told in sentences with what state the job begins, and what happens to it as a whole.
        """
        self._job.check()
        stop = stop or threading.Event()
        on_note = on_note or _unseen
        with contextlib.ExitStack() as stack:
            aside: Path | None = None
            if self._settings.fresh and self._settings.checkpoint is not None:
                aside = put_aside(
                    Path(self._settings.checkpoint).expanduser().absolute(),
                    stop,
                    self._settings.lock_timeout_s,
                )
                if aside is not None:
                    on_note(f"The checkpoint that was there is {aside} now.")
            checkpoint = self._checkpoint(stack, on_note)
            stack.enter_context(hindrances_told(checkpoint.folder))
            # Before Spark starts, for a start that is broken off can leave a JVM behind; and again, since Spark sets a
            # handler of its own, which cancels the running batch and raises.
            stack.enter_context(signals_set(stop))
            # First of all, so that a run that is refused changes nothing.
            stack.enter_context(locked(checkpoint.folder, stop, self._settings.lock_timeout_s))
            finish_rescaling(checkpoint)
            check_room(checkpoint.folder)
            recovered = recover(checkpoint, self._settings.retained_batches)
            told = recovered + begin(self._job, self._settings, checkpoint)
            declared = declared_state(self._job)
            evolves = must_evolve(declared, checkpoint)
            bound = compile_job(self._job, self._settings, checkpoint, gets_seed=evolves)
            anew = checked_outputs(
                bound, checkpoint, self._settings.bindings, self._settings.new_outputs_from
            )
            # As long as Spark takes to start, another run that the locks have not kept out has time to notice.
            ownership = Ownership.begin(checkpoint.folder)
            by = user_name() if self._settings.started_by is None else self._settings.started_by
            events = RunEvents(checkpoint.folder, self._job.name, self.job_id, by)
            stack.enter_context(events.failures())
            events.started(self._begun(bound, told, ownership.epoch, aside))
            if anew is not None:
                bound = begin_outputs_anew(bound, anew, checkpoint, events)
                on_note(
                    f"The outputs begin anew with micro-batch {anew.first_batch}; what they had of it stays."
                )
            if take_back_plan(bound, checkpoint, self._settings.bindings, self._settings.replan):
                events.add("replanned", {}, batch=self._settings.replan)
                on_note(f"Micro-batch {self._settings.replan} is planned anew; no output had a part of it.")
            kept = FiguresWriter(checkpoint.folder, most_bytes=self._settings.figures_mb << 20)
            writer = stack.enter_context(contextlib.closing(kept))
            recorder = MetricsRecorder(writer, bound, self.job_id, self._settings.batch_interval_ms)
            stack.enter_context(metrics_served(self._settings, recorder, on_note))
            (on_begin or _nobody_waits)()
            session = stack.enter_context(open_session(self._session_settings(bound, checkpoint)))
            stack.enter_context(signals_set(stop))
            ship_code(session, checkpoint.folder / "code", self._code)
            warm_up(session)
            # Four files: the newest of each, and the one before.
            stack.enter_context(WorkerOutput(checkpoint.folder / OUTPUT_FILE, self._settings.log_mb << 18))
            jvm = session._jvm  # noqa: SLF001  # the lock must be the JVM's
            lock = locked_by_jvm(checkpoint.folder, jvm, stop, self._settings.lock_timeout_s)
            stack.callback(lock.release)
            requests = Requests(checkpoint.folder, self._number)
            for note in (told, *bound.notes, pending_told(bound, checkpoint)):
                if note is not None:
                    on_note(note)
            if evolves:
                lineage = evolve(session, checkpoint, declared)
                bound = dataclasses.replace(bound, lineage=lineage)
                on_note("The states of the checkpoint were written as the job declares them now.")
                events.add("evolved", {}, batch=lineage.first_batch - 1)
            recorder.spark_started(
                lambda: session.sparkContext.defaultParallelism, MemoryGauge(session).sample
            )
            on_start: Callable[[], None] = _nobody_waits
            lag_clocks: dict[str, LagClock] = {}
            progress = Progress()
            while True:
                dumps = DumpQueue(checkpoint, bound.lineage, self._settings.allowed, on_note)
                watch = RunServices(ownership, dumps, recorder, lag_clocks, progress)
                committer = BatchCommitter(bound, checkpoint, watch)
                run = _Run(
                    session,
                    committer,
                    checkpoint,
                    requests,
                    events,
                    stop,
                    on_progress or _unseen,
                    on_note,
                    on_start,
                )
                try:
                    summary, request = self._run_bound(run)
                    if summary.status == "finished":
                        dumps.finish()
                finally:
                    committer.sync.close()
                    dumps.abandon()
                if request is None or request.action != "rescale":
                    break
                bound, on_start = self._rescaled(run, request, on_note)
                recorder.bind(bound)
        return summary

    def _begun(self, bound: CompiledJob, told: str, epoch: int, aside: Path | None) -> dict[str, Any]:
        """What there is to say of a run that has begun."""
        bindings = {name: redacted(uri) for name, uri in sorted(self._settings.bindings.items())}
        found = {
            "state": told,
            "epoch": epoch,
            "parallelism": bound.lineage.parallelism,
            "bindings": bindings,
            "settings": settings_of(self._settings),
        }
        return found if aside is None else {**found, "put_aside": aside.name}

    def _run_bound(self, run: _Run) -> tuple[RunSummary, Request | None]:
        """Run until the end, or until a request has stopped the job; gives the request as well."""
        with contextlib.ExitStack() as stack:
            for receiver in run.committer.bound.receivers:
                stack.enter_context(receiver)
                if self._settings.bounded:
                    receiver.wait_for_end(run.stop)
            summary, request = self._run(run)
        # Nothing is received any more, so that a savepoint has all of it.
        if request is not None and request.action == "stop":
            self._stopped(run, request)
        elif request is None:
            is_stopped = summary.status == "stopped"
            details = {"how": "signal"} if is_stopped else {}
            batch = run.committer.progress.batch_id
            run.events.add("stopped" if is_stopped else "finished", details, by="", batch=batch)
        return summary, request

    def _stopped(self, run: _Run, request: Request) -> None:
        """Take the savepoint that a request to stop has asked for, and answer it."""
        details: dict[str, Any] = {"batch": run.committer.progress.batch_id}
        error = ""
        if request.savepoint is not None:
            wanted = Capture(
                "savepoint",
                request.savepoint,
                "arrow",
                request.savepoint_id,
                created_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            )
            try:
                manifest = capture(run.session, run.checkpoint, wanted)
                details |= {"savepoint": manifest.id, "uri": request.savepoint, "batch": manifest.batch}
                taken = {"id": manifest.id, "uri": redacted(request.savepoint), "format": manifest.format}
                run.events.add("savepoint", taken, by=request.by, batch=manifest.batch)
            except PenstockError as e:
                error = f"The job has stopped, and its savepoint could not be taken: {e}"
                run.events.add("savepoint-failed", {"reason": str(e)}, by=request.by)
        how = {"how": "request", "drain": request.drain}
        run.events.add("stopped", how, by=request.by, batch=details["batch"])
        run.requests.answer(request, Answer(error, details))

    def _rescaled(
        self, run: _Run, request: Request, on_note: Callable[[str], None]
    ) -> tuple[CompiledJob, Callable[[], None]]:
        """Give the state to another number of tasks, and bind the job anew.

        Gives what is to be called when the job runs again: who asked is told how long it stood still.
        """
        before = run.committer.bound.lineage.parallelism
        begun_s = time.monotonic()
        outcome = carry_out(run.session, run.checkpoint, request)
        lineage = outcome.lineage
        if lineage is None:
            told = f"The job goes on with {before} tasks: {outcome.why}"
            run.requests.answer(request, Answer(told))
            on_note(told)
            run.events.add("rescale-failed", {"before": before, "reason": outcome.why}, by=request.by)
            return compile_job(self._job, self._settings, run.checkpoint), _nobody_waits
        run.session.conf.set("spark.sql.shuffle.partitions", str(lineage.parallelism))
        bound = compile_job(self._job, self._settings, run.checkpoint)
        seconds = time.monotonic() - begun_s
        on_note(f"The parallelism is {lineage.parallelism} instead of {before}, after {seconds:.1f} s.")
        details = {
            "before": before,
            "after": lineage.parallelism,
            "batch": lineage.first_batch - 1,
            "seconds": round(seconds, 2),
        }
        run.events.add("rescaled", details, by=request.by, batch=lineage.first_batch - 1)

        def answer() -> None:
            downtime_s = round(time.monotonic() - begun_s, 2)
            run.requests.answer(request, Answer(details={**details, "downtime_s": downtime_s}))

        return bound, answer

    def _checkpoint(self, stack: contextlib.ExitStack, on_note: Callable[[str], None]) -> Checkpoint:
        if self._settings.checkpoint is None:
            return stack.enter_context(temporary_checkpoint(on_note))
        if self._settings.must_continue:
            Checkpoint(Path(self._settings.checkpoint).expanduser().absolute()).check_there()
        return Checkpoint.open(self._settings.checkpoint)

    def _session_settings(self, bound: CompiledJob, checkpoint: Checkpoint) -> SessionSettings:
        return SessionSettings(
            app_name=self._job.name,
            master=self._settings.master,
            parallelism=bound.lineage.parallelism,
            needs_kafka=any(isinstance(source.input, KafkaBinding) for source in bound.sources),
            log_file=checkpoint.folder / "spark.log",
            log_bytes=self._settings.log_mb << 18,
            bounded=self._settings.bounded,
            retained_batches=self._settings.retained_batches,
            more=self._settings.spark_settings,
        )

    def _run(self, run: _Run) -> tuple[RunSummary, Request | None]:
        committer, checkpoint = run.committer, run.checkpoint
        bound = committer.bound
        lineage = bound.lineage
        log = SparkLog(checkpoint.folder / "spark.log")
        for sink, _, _ in bound.sinks.values():
            sink.prepare(lineage.output_id, str(checkpoint.folder))
        bound.receipts.prepare()
        write_stream_order(checkpoint.folder, lineage.streams, lineage.first_batch)
        checkpoint.save(CONTROL_FILE, bound.control)
        checkpoint.save(GRAPH_FILE, bound.graph)
        checkpoint.save(STATE_FILE, declared_state(self._job))
        committer.history = control_history(bound.sources, checkpoint, lineage)
        if committer.history.told is not None:
            run.on_note(committer.history.told)
        query = Query(
            plan=bound.plan,
            sources=bound.sources,
            writer=bound.writer,
            checkpoint=str(checkpoint.spark_folder),
            parallelism=lineage.parallelism,
            bounded=self._settings.bounded,
            batch_interval_ms=self._settings.batch_interval_ms,
            before_batch=committer.before_batch,
            on_batch=committer.on_batch,
            on_rest=committer.recorder.rested,
            holds_data=self._should_hold(committer),
            first_batch=lineage.first_batch,
            positions=lineage.positions,
            limits=committer.bounds.limits,
        )
        on_start = run.on_start
        try:
            while True:
                # A query that is started only to be stopped would first do what a run before has left half done.
                running = None if run.stop.is_set() else start_query(run.session, query)
                on_start()
                on_start = _nobody_waits
                status, request = "stopped", None
                if running is not None:
                    status, request = self._follow(run, running, holds_data=query.holds_data)
                if request is not None and request.drain:
                    # All that is there is processed by a query that ends by itself.
                    query = self._drain(run, query)
                drains = request is not None and request.drain
                if bound.plan.awaits_end and (drains or status == "finished"):
                    # Nothing will follow, so that what waits for the watermark, or windows for the clock, is done now.
                    last = dataclasses.replace(query, bounded=True, ends=True, holds_data=True)
                    self._follow(run, start_query(run.session, last), heeds_requests=False)
                if status != _OTHERWISE:
                    break
                query = self._otherwise(run, query)
                committer.closing = False
        except PySparkException as e:
            # Whatever two runs on one checkpoint have made of it, that is the cause.
            failure = committer.failure() or explained(e, log, checkpoint.spark_folder, len(lineage.streams))
            raise failure from failure.__cause__
        committer.plans.forget_refused()
        return committer.summary(self.job_id, status), request

    def _drain(self, run: _Run, query: Query) -> Query:
        """Process all that is there by queries that end by themselves; gives the last."""
        while True:
            run.committer.closing = False
            query = dataclasses.replace(query, bounded=True)
            running = start_query(run.session, query)
            status, _ = self._follow(run, running, holds_data=query.holds_data, heeds_requests=False)
            if status != _OTHERWISE:
                return query
            query = self._otherwise(run, query)

    def _otherwise(self, run: _Run, query: Query) -> Query:
        """The query as it is to go on, once the one before has ended between two micro-batches."""
        # It was planned with the bounds of before, and nothing of it was done.
        run.committer.plans.forget_refused()
        for told in run.committer.bounds.changes():
            run.on_note(told)
        limits = run.committer.bounds.renew()
        return dataclasses.replace(query, holds_data=self._should_hold(run.committer), limits=limits)

    def _is_otherwise(self, committer: BatchCommitter, *, holds_data: bool) -> bool:
        """Whether the query should go on as another one."""
        return self._should_hold(committer) != holds_data or committer.bounds.are_outdated

    def _should_hold(self, committer: BatchCommitter) -> bool:
        """Whether data streams must not be read on.

        So much waits for paused steps, or the history of control streams comes first.
        """
        held_too_much = not self._settings.bounded and committer.held_bytes > self._settings.max_held_bytes
        return held_too_much or committer.history.is_behind()

    def _follow(
        self,
        run: _Run,
        query: StreamingQuery,
        *,
        holds_data: bool | None = None,
        heeds_requests: bool = True,
    ) -> tuple[str, Request | None]:
        """Wait for the query, and give how it went; without `holds_data` it goes on however much waits."""
        committer = run.committer
        committer.watch(query)
        while query.isActive:
            stops = run.stop.wait(_POLL_S)
            # Requests need the job between two micro-batches, which it is not while one of a run before is half done.
            heeds = heeds_requests and not stops and committer.plans.pending is None
            request = run.requests.next() if heeds else None
            if stops or request is not None:
                committer.closing = True
                _stop_between_batches(query)
                committer.refresh()
                run.on_progress(committer.progress)
                return "stopped", request
            if holds_data is not None and self._is_otherwise(committer, holds_data=holds_data):
                # Spark's sources take no word while they run, so the query goes on as another one.
                committer.closing = True
                _stop_between_batches(query)
                committer.refresh()
                return _OTHERWISE, None
            failure = committer.failure()
            if failure is not None:
                query.stop()
                raise failure
            committer.dumps.step()
            committer.refresh()
            run.on_progress(committer.progress)
        query.awaitTermination()
        committer.refresh()
        run.on_progress(committer.progress)
        committer.history.finish()
        if holds_data and not self._should_hold(committer):
            return _OTHERWISE, None
        return "finished", None


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stop the query when its micro-batch is done, so that no sink is left with a part of one.

    The next micro-batch is refused by `before_batch`, which ends the query as well.
    """
    while query.isActive and query.status["isTriggerActive"]:
        time.sleep(_STOP_POLL_S)
    failure = query.exception()
    if failure is not None and STOPPING not in str(failure):
        raise failure
    query.stop()


def _nobody_waits() -> None:
    """Nobody waits for the job to run."""


def _unseen(news: Any) -> None:
    """Nobody looks."""
