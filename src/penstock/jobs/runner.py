"""The job runner: start a described job on Spark, follow it, and stop it cleanly."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.bindings.secrets import redact
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_graph import GRAPH_FILE
from penstock.checkpoints.described_state import STATE_FILE, JobState
from penstock.checkpoints.ownership import Ownership, lock_checkpoint, lock_for_jvm
from penstock.checkpoints.recovery import recover
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint, StoredOwnership, is_stored
from penstock.checkpoints.temporary_checkpoints import temporary_checkpoint
from penstock.commands.command_catalog import CONTROL_FILE
from penstock.errors import PenstockError
from penstock.jobs.cluster_state import library_of_driver, mount_state, stored_library
from penstock.jobs.commit import BatchCommitter, Progress, RunServices, RunSummary
from penstock.jobs.compile import CompiledJob, compile_job
from penstock.jobs.dump_queue import DumpQueue
from penstock.jobs.events import RunEvents, settings_of, user_name
from penstock.jobs.fetched_removal import fetched_removal
from penstock.jobs.hindrances import check_room, convert_system_errors
from penstock.jobs.intervals import changes_mode, check_cores
from penstock.jobs.metrics_endpoint import serve_metrics
from penstock.jobs.metrics_recorder import MetricsRecorder
from penstock.jobs.model_queue import ModelQueue
from penstock.jobs.model_suspensions import ModelSuspensions
from penstock.jobs.outputs import check_outputs, start_new_outputs
from penstock.jobs.policy_sender import PolicySender
from penstock.jobs.query_run import QueryRun, RunHooks, do_nothing
from penstock.jobs.replan import describe_pending, take_back_plan
from penstock.jobs.requests import Answer, Request, Requests
from penstock.jobs.rescale_attempts import carry_out
from penstock.jobs.restore import begin, declared_state, must_evolve, put_aside
from penstock.jobs.settings import RunSettings
from penstock.jobs.signals import handle_signals
from penstock.jobs.stream_lags import StreamLags
from penstock.jobs.worker_output import WorkerOutput
from penstock.machine.limits import LOCAL_HEAP_MB
from penstock.metrics.batch_metrics import BatchMetricsWriter
from penstock.models.library import ModelLibrary
from penstock.models.model import Model
from penstock.runtime.cuts import write_stream_order
from penstock.savepoints.rescaling import check_mode_change, evolve, finish_rescaling
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.spark.format_files import write_format_files
from penstock.spark.format_sink import FormatSink
from penstock.spark.run_memory import MemoryGauge
from penstock.spark.session import OUTPUT_FILE, SessionSettings, open_session, ship_code
from penstock.spark.startup.warm_up import warm_up
from penstock.spark.state_mount import StateMount
from penstock.spark.types import SparkSession
from penstock.streams.graph import COMMANDS
from penstock.streams.job_description import JobDescription

__all__ = ["JobRunner", "Progress", "RunHooks", "RunSummary"]


@dataclass(frozen=True)
class _Prepared:
    """A job that is ready for Spark.

    `mount` says where the state is, if not in the folder of the checkpoint, and `state_note` which state the job starts
    with. `declared` is the state that the job declares; `evolves` has the reasons to rewrite that of the checkpoint.
    """

    checkpoint: Checkpoint
    mount: StateMount | None
    bound: CompiledJob
    ownership: Ownership
    events: RunEvents
    recorder: MetricsRecorder
    state_note: str
    declared: JobState
    evolves: tuple[str, ...]


_NEW_STATES: Final = "its states have changed"
_NEW_MODE: Final = "it changes between micro-batches and real time"


class JobRunner:
    """Runs one job once.

    Args:
        job: the described job.
        settings: how to run it.
        code: the job's own modules, which the workers need, by their paths below a folder of the import path.
        number: the number of this run of a managed job, by which requests may name it.

    """

    def __init__(
        self,
        job: JobDescription,
        settings: RunSettings,
        code: Mapping[str, Path] | None = None,
        number: int | None = None,
    ) -> None:
        self._job = job
        # The bindings in a SQL file are defaults, which the run may override.
        bound = job.bound_by_default()
        self._settings = dataclasses.replace(settings, bindings={**bound, **settings.bindings})
        self._code = code or {}
        self._number = number
        self.job_id: Final = f"{job.name}-{uuid.uuid4().hex[:8]}"

    @property
    def notes(self) -> list[str]:
        """Notes for the user about settings that the job can run with, but that may surprise."""
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

    def run(self, stop: threading.Event | None = None, hooks: RunHooks | None = None) -> RunSummary:
        """Run until the bounded input is done or `stop` is set. Raises a PenstockError when the job fails."""
        self._job.check()
        stop = stop or threading.Event()
        hooks = hooks or RunHooks()
        with contextlib.ExitStack() as stack:
            prepared = self._prepare(stack, stop, hooks)
            hooks.on_begin()
            session = self._start_spark(stack, stop, prepared)
            self._open_formats(session, prepared, hooks)
            for note in (
                prepared.state_note,
                *prepared.bound.notes,
                describe_pending(prepared.bound, prepared.checkpoint),
            ):
                if note is not None:
                    hooks.on_note(note)
            return self._run_until_end(session, prepared, stop, hooks)

    def _prepare(self, stack: contextlib.ExitStack, stop: threading.Event, hooks: RunHooks) -> _Prepared:
        """Lock the checkpoint, prepare its state, and compile the job. Needs no Spark.

        A run that is refused changes nothing.
        """
        settings = self._settings
        aside = self._put_aside(stop, hooks)
        checkpoint = self._checkpoint(stack, hooks.on_note)
        stack.enter_context(convert_system_errors(checkpoint.folder))
        # Before Spark starts, since an interrupted start can leave a JVM behind.
        stack.enter_context(handle_signals(stop))
        stack.enter_context(lock_checkpoint(checkpoint.folder, stop, settings.lock_timeout_s))
        if checkpoint.stored is not None:
            stack.enter_context(checkpoint.stored.opened(must_continue=settings.must_continue))
        finish_rescaling(checkpoint)
        check_room(checkpoint.folder)
        recovered = recover(checkpoint, settings.retained_batches)
        mount = mount_state(checkpoint, settings.master)
        state_note = recovered + begin(self._job, settings, checkpoint)
        hooks.on_open()
        declared = declared_state(self._job)
        reasons = [_NEW_STATES] if must_evolve(declared, checkpoint) else []
        if changes_mode(checkpoint, settings):
            check_mode_change(checkpoint)
            reasons.append(_NEW_MODE)
        ownership = Ownership.of_next_run(checkpoint.folder)
        if checkpoint.stored is not None:
            ownership = StoredOwnership(checkpoint.stored, ownership)
        bound = compile_job(self._job, settings, checkpoint, fence=ownership.check, gets_seed=bool(reasons))
        new_outputs = check_outputs(bound, checkpoint, settings.bindings, settings.new_outputs_from)
        # Another run that the locks have not kept out has time to notice this while Spark starts.
        ownership.begin()
        if checkpoint.stored is not None:
            library = stored_library(checkpoint)
            if library is not None and _models_of(bound):
                library.take_over()
            checkpoint.stored.remove_left_behind()
        by = user_name() if settings.started_by is None else settings.started_by
        events = RunEvents(checkpoint.folder, self._job.name, self.job_id, by)
        stack.enter_context(events.record_failure())
        events.record_start(self._start_details(bound, state_note, ownership.epoch, aside))
        if new_outputs is not None:
            bound = start_new_outputs(bound, new_outputs, checkpoint, events)
            hooks.on_note(
                f"New outputs start with micro-batch {new_outputs.first_batch}; what the sinks had of it stays."
            )
        if take_back_plan(bound, checkpoint, settings.bindings, settings.replan):
            events.add("replanned", {}, batch=settings.replan)
            hooks.on_note(f"Micro-batch {settings.replan} is planned again; no output had a part of it.")
        kept = BatchMetricsWriter(checkpoint.folder, max_bytes=settings.metrics_mb << 20)
        writer = stack.enter_context(contextlib.closing(kept))
        recorder = MetricsRecorder(
            writer, bound, self.job_id, settings.batch_interval_ms, settings.checkpoint_interval_ms
        )
        stack.enter_context(serve_metrics(settings, recorder, hooks.on_note))
        return _Prepared(
            checkpoint, mount, bound, ownership, events, recorder, state_note, declared, tuple(reasons)
        )

    def _put_aside(self, stop: threading.Event, hooks: RunHooks) -> Path | None:
        """With the setting `fresh` rename the checkpoint; return its new path, else None."""
        if not self._settings.fresh or self._settings.checkpoint is None:
            return None
        folder = Path(self._settings.checkpoint).expanduser().absolute()
        aside = put_aside(folder, stop, self._settings.lock_timeout_s)
        if aside is not None:
            hooks.on_note(f"The old checkpoint is now {aside}.")
        return aside

    def _start_spark(
        self, stack: contextlib.ExitStack, stop: threading.Event, prepared: _Prepared
    ) -> SparkSession:
        """Start Spark with the job's code, and let its JVM lock the checkpoint, too."""
        folder = prepared.checkpoint.folder
        settings = self._session_settings(prepared)
        session = stack.enter_context(open_session(settings))
        # Again, since Spark sets a handler of its own, which cancels the running batch and raises.
        stack.enter_context(handle_signals(stop))
        ship_code(session, folder / "code", {**self._code, **prepared.bound.code})
        warm_up(session)
        # The limit is for four files: Spark's log, this output, and the previous file of each.
        stack.enter_context(WorkerOutput(folder / OUTPUT_FILE, self._settings.log_mb << 18))
        jvm = session._jvm  # noqa: SLF001  # the lock must be the JVM's
        stack.callback(lock_for_jvm(folder, jvm, stop, self._settings.lock_timeout_s))
        return session

    def _open_formats(self, session: SparkSession, prepared: _Prepared, hooks: RunHooks) -> None:
        """Check the formats of Spark that sinks write, and load the streams that it reads, at the first start.

        Raises BindingError for a format that Spark does not know, or cannot load.
        """
        for sink, _, _ in prepared.bound.sinks.values():
            if isinstance(sink, FormatSink):
                sink.check(session)
        types = {source.name: source.record_type for source in self._job.graph.sources()}
        for name, binding in prepared.bound.formats.items():
            files = write_format_files(session, binding, types[name], prepared.checkpoint.inputs / name)
            if files is not None:
                hooks.on_note(f"Spark has loaded {name!r} from the format {binding.format!r}.")

    def _run_until_end(
        self, session: SparkSession, prepared: _Prepared, stop: threading.Event, hooks: RunHooks
    ) -> RunSummary:
        """Run the job, again after each rescaling, until it ends for another reason."""
        checkpoint, bound = prepared.checkpoint, prepared.bound
        requests = Requests(checkpoint.folder, self._number)
        if prepared.evolves:
            lineage = evolve(session, checkpoint, prepared.declared, " and ".join(prepared.evolves))
            bound = dataclasses.replace(bound, lineage=lineage)
            hooks.on_note(
                f"The states of the checkpoint were rewritten, since {' and '.join(prepared.evolves)}."
            )
            prepared.events.add("evolved", {}, batch=lineage.first_batch - 1)
        prepared.recorder.watch_spark(
            lambda: session.sparkContext.defaultParallelism, MemoryGauge(session).sample
        )
        check_cores(self._settings, bound.lineage.parallelism, session.sparkContext.defaultParallelism)
        on_start: Callable[[], None] = functools.partial(hooks.on_running, session)
        mount = prepared.mount
        if prepared.evolves:
            mount = self._save_rewritten(checkpoint)
        lags = StreamLags()
        progress = Progress()
        while True:
            location = None if mount is None else mount.apply(session)
            dumps = DumpQueue(checkpoint, bound.lineage, self._settings.allowed, hooks.on_note)
            services = RunServices(
                prepared.ownership,
                dumps,
                prepared.recorder,
                lags,
                progress,
                self._model_queue(checkpoint, bound, hooks),
                PolicySender(bound.control, self._settings.bindings.get(COMMANDS), hooks.on_note),
                self._suspensions(prepared, bound, hooks),
                fetched_removal(checkpoint, self._settings.retained_batches),
            )
            in_real_time = bool(self._settings.checkpoint_interval_ms)
            committer = BatchCommitter(bound, checkpoint, services, in_real_time=in_real_time)
            run = QueryRun(
                self._settings, session, committer, checkpoint, requests, stop, hooks, on_start, location
            )
            try:
                summary, request = self._run_bound(run, prepared.events)
                if summary.status == "finished":
                    dumps.finish()
            finally:
                committer.sync.close()
                dumps.abandon()
            if request is None or request.action != "rescale":
                return summary
            bound, on_start = self._rescale(run, request, prepared.events)
            mount = self._save_rewritten(checkpoint)
            prepared.recorder.bind(bound)

    def _model_queue(self, checkpoint: Checkpoint, bound: CompiledJob, hooks: RunHooks) -> ModelQueue:
        settings = self._settings
        place = library_of_driver(checkpoint)
        library = ModelLibrary(place, settings.allowed, settings.max_model_mb << 20)
        return ModelQueue(library, _models_of(bound), hooks.on_note, settings.retained_batches)

    @staticmethod
    def _suspensions(prepared: _Prepared, bound: CompiledJob, hooks: RunHooks) -> ModelSuspensions | None:
        if not _models_of(bound):
            return None
        return ModelSuspensions(library_of_driver(prepared.checkpoint), hooks.on_note, prepared.events)

    def _start_details(
        self, bound: CompiledJob, state_note: str, epoch: int, aside: Path | None
    ) -> dict[str, Any]:
        """Return the details for the event that records the start."""
        bindings = {name: redact(uri) for name, uri in sorted(self._settings.bindings.items())}
        found = {
            "state": state_note,
            "epoch": epoch,
            "parallelism": bound.lineage.parallelism,
            "bindings": bindings,
            "settings": settings_of(self._settings),
        }
        return found if aside is None else {**found, "put_aside": aside.name}

    def _run_bound(self, run: QueryRun, events: RunEvents) -> tuple[RunSummary, Request | None]:
        """Run until the end, or until a request stops the job; return the summary and the request, if any."""
        with contextlib.ExitStack() as stack:
            for receiver in run.committer.bound.receivers:
                stack.enter_context(receiver)
                if self._settings.bounded:
                    receiver.wait_for_end(run.stop)
            self._prepare_outputs(run.committer.bound, run.checkpoint)
            status, request = run.run()
        summary = run.committer.summary(self.job_id, status)
        # The receivers have stopped, so a savepoint has all that they received.
        if request is not None and request.action == "stop":
            self._complete_stop(run, request, events)
        elif request is None:
            is_stopped = summary.status == "stopped"
            details = {"how": "signal"} if is_stopped else {}
            batch = run.committer.progress.batch_id
            events.add("stopped" if is_stopped else "finished", details, by="", batch=batch)
        return summary, request

    def _prepare_outputs(self, bound: CompiledJob, checkpoint: Checkpoint) -> None:
        """Prepare the sinks, and describe the job in its checkpoint for other programs."""
        for sink, _, _ in bound.sinks.values():
            sink.prepare(bound.lineage.output_id, str(checkpoint.folder))
        bound.receipts.prepare()
        write_stream_order(checkpoint.folder, bound.lineage.streams, bound.lineage.first_batch)
        checkpoint.save(CONTROL_FILE, bound.control)
        checkpoint.save(GRAPH_FILE, bound.graph)
        checkpoint.save(STATE_FILE, declared_state(self._job))

    def _complete_stop(self, run: QueryRun, request: Request, events: RunEvents) -> None:
        """Take the savepoint that a request to stop asks for, if any, and answer the request."""
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
                taken = {"id": manifest.id, "uri": redact(request.savepoint), "format": manifest.format}
                events.add("savepoint", taken, by=request.by, batch=manifest.batch)
            except PenstockError as e:
                error = f"The job has stopped, but its savepoint could not be taken: {e}"
                events.add("savepoint-failed", {"reason": str(e)}, by=request.by)
        how = {"how": "request", "drain": request.drain}
        events.add("stopped", how, by=request.by, batch=details["batch"])
        run.requests.answer(request, Answer(error, details))

    def _rescale(
        self, run: QueryRun, request: Request, events: RunEvents
    ) -> tuple[CompiledJob, Callable[[], None]]:
        """Redistribute the state to another number of tasks, and compile the job again.

        Returns the job and a callback for when it runs again: it answers the request with the downtime.
        """
        before = run.committer.bound.lineage.parallelism
        begun_s = time.monotonic()
        outcome = carry_out(run.session, run.checkpoint, request)
        lineage = outcome.lineage
        if lineage is None:
            refusal = f"The job continues with {before} tasks: {outcome.why}"
            run.requests.answer(request, Answer(refusal))
            run.hooks.on_note(refusal)
            events.add("rescale-failed", {"before": before, "reason": outcome.why}, by=request.by)
            return self._recompile(run), do_nothing
        run.session.conf.set("spark.sql.shuffle.partitions", str(lineage.parallelism))
        bound = self._recompile(run)
        seconds = time.monotonic() - begun_s
        run.hooks.on_note(
            f"The parallelism is {lineage.parallelism} instead of {before}, after {seconds:.1f} s."
        )
        details = {
            "before": before,
            "after": lineage.parallelism,
            "batch": lineage.first_batch - 1,
            "seconds": round(seconds, 2),
        }
        events.add("rescaled", details, by=request.by, batch=lineage.first_batch - 1)

        def answer() -> None:
            downtime_s = round(time.monotonic() - begun_s, 2)
            run.requests.answer(request, Answer(details={**details, "downtime_s": downtime_s}))

        return bound, answer

    def _save_rewritten(self, checkpoint: Checkpoint) -> StateMount | None:
        """Save the result of a rescaling, since tasks read it in the store; return where the state is from now on."""
        mount = mount_state(checkpoint, self._settings.master)
        if checkpoint.stored is not None:
            checkpoint.stored.save()
            checkpoint.stored.remove_left_behind()
        return mount

    def _recompile(self, run: QueryRun) -> CompiledJob:
        return compile_job(self._job, self._settings, run.checkpoint, fence=run.committer.ownership.check)

    def _checkpoint(self, stack: contextlib.ExitStack, on_note: Callable[[str], None]) -> Checkpoint:
        if self._settings.checkpoint is None:
            return stack.enter_context(temporary_checkpoint(on_note))
        if is_stored(self._settings.checkpoint):
            stored = StoredCheckpoint.at(self._settings.checkpoint)
            on_note(
                f"The checkpoint {stored.shown} is on an object store; this run works in {stored.folder}."
            )
            return Checkpoint(stored.folder, stored)
        if self._settings.must_continue:
            Checkpoint(Path(self._settings.checkpoint).expanduser().absolute()).check_there()
        return Checkpoint.open(self._settings.checkpoint)

    def _session_settings(self, prepared: _Prepared) -> SessionSettings:
        bound, checkpoint = prepared.bound, prepared.checkpoint
        shares = self._settings.memory_shares(bound.lineage.parallelism)
        return SessionSettings(
            app_name=self._job.name,
            master=self._settings.master,
            parallelism=bound.lineage.parallelism,
            log_file=checkpoint.folder / "spark.log",
            log_bytes=self._settings.log_mb << 18,
            bounded=self._settings.bounded,
            heap_mb=LOCAL_HEAP_MB if shares is None else shares.heap_mb,
            frugal=self._settings.is_frugal,
            # In real time the workers have a record in hand, and the JVM only commits after them.
            yields=bool(self._settings.checkpoint_interval_ms),
            retained_batches=self._settings.retained_batches,
            store="" if prepared.mount is None else prepared.mount.target.family,
            more=self._settings.spark_settings,
        )


def _models_of(bound: CompiledJob) -> dict[str, Mapping[str, Model]]:
    """Return the declared models of each step that has any, by name."""
    steps = bound.plan.accepting.steps if bound.plan.graph.steps() else {}
    return {name: step.models for name, step in steps.items() if step.models}
