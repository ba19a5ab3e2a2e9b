"""Query run: run a compiled job as a series of Spark queries until it ends or is stopped.

The settings of Spark's sources are fixed while a query runs. To hold data back, or to read it again, the run stops the
query between two micro-batches and starts the next one on the same checkpoint. A drain and the last firing of windows
are queries of their own, too.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.jobs.commit import STOPPING, BatchCommitter, Progress
from penstock.jobs.control_history import control_history
from penstock.jobs.failure_diagnosis import SparkLog, explain_failure
from penstock.jobs.intervals import open_coordinator
from penstock.jobs.requests import Request, Requests
from penstock.jobs.settings import RunSettings
from penstock.realtime.coordinator import Coordinator
from penstock.spark.query import Query, start_query
from penstock.spark.types import SPARK_ERRORS, SparkSession, StreamingQuery

__all__ = ["QueryRun", "RunHooks", "do_nothing"]

_POLL_S: Final = 0.2
_RENEWED: Final = "renewed"
_STOP_POLL_S: Final = 0.02


def _ignore(news: Any) -> None:
    """Ignore the argument."""


def do_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class RunHooks:
    """Callbacks of a run. It calls all of them in the thread that runs the job.

    Args:
        on_note: gets sentences about the state that the job starts with, and about what happens to the job as a whole.
        on_open: called when the checkpoint is locked and has its first state, before the bindings are checked.
        on_begin: called when all checks have passed, before Spark starts.
        on_running: gets Spark's session when the first micro-batch may start.
        on_progress: gets the progress of the job repeatedly, and once more after its last micro-batch.

    """

    on_note: Callable[[str], None] = _ignore
    on_open: Callable[[], None] = do_nothing
    on_begin: Callable[[], None] = do_nothing
    on_running: Callable[[SparkSession], None] = _ignore
    on_progress: Callable[[Progress], None] = _ignore


@dataclass(frozen=True)
class QueryRun:
    """A compiled job that runs in a Spark session, with its requests, its stop signal and its hooks.

    `on_start` is called when the first query runs. `location` is where Spark finds its part of the checkpoint, if it is
    not in the folder.
    """

    settings: RunSettings
    session: SparkSession
    committer: BatchCommitter
    checkpoint: Checkpoint
    requests: Requests
    stop: threading.Event
    hooks: RunHooks
    on_start: Callable[[], None]
    location: str | None = None

    def run(self) -> tuple[str, Request | None]:
        """Run until the end, or until the job is stopped; return the status and the request that stopped it, if any.

        Raises PenstockError with the cause when a query fails.
        """
        committer = self.committer
        bound = committer.bound
        in_real_time = bool(self.settings.checkpoint_interval_ms)
        committer.history = control_history(
            bound.sources, self.checkpoint, bound.lineage, in_real_time=in_real_time
        )
        if committer.history.note is not None:
            self.hooks.on_note(committer.history.note)
        log = SparkLog(self.checkpoint.folder / "spark.log")
        try:
            status, request = self._run_queries(self._describe_first_query())
        except SPARK_ERRORS as e:
            # If two runs share the checkpoint, that is the cause, whatever the query reports.
            streams = len(bound.lineage.streams)
            store = None if self.location is None else self.checkpoint.shown
            folder = self.checkpoint.spark_folder
            failure = committer.failure() or explain_failure(e, log, folder, streams, store)
            raise failure from failure.__cause__
        committer.plans.forget_refused()
        return status, request

    def _describe_first_query(self) -> Query:
        """Describe the query to start with. `before_batch` and `on_batch` commit its micro-batches."""
        committer = self.committer
        bound = committer.bound
        return Query(
            plan=bound.plan,
            sources=bound.sources,
            writer=bound.writer,
            checkpoint=self.location or self.checkpoint.spark_location,
            parallelism=bound.lineage.parallelism,
            bounded=self.settings.bounded,
            batch_interval_ms=self.settings.batch_interval_ms,
            before_batch=committer.before_batch,
            on_batch=committer.on_batch,
            on_rest=committer.recorder.record_rest,
            holds_data=self.should_hold(),
            first_batch=bound.lineage.first_batch,
            positions=bound.lineage.positions,
            limits=committer.bounds.limits,
            next_version=committer.next_version,
        )

    def _run_queries(self, query: Query) -> tuple[str, Request | None]:
        """Run this query and those that follow it, until one is not renewed."""
        on_start = self.on_start
        while True:
            status, request = "stopped", None
            # After a stop no query starts: it would first finish what an earlier run left half done.
            if self.stop.is_set():
                on_start()
            else:
                status, request = self._run_or_suspend(query, on_start)
            on_start = do_nothing
            drains = request is not None and request.drain
            if drains:
                # A bounded query processes all available input and ends by itself.
                query = self._drain(query)
            if self.committer.bound.plan.awaits_end and (drains or status == "finished"):
                # No input follows. This query fires all that waits for the watermark, and windows that wait for time.
                last = dataclasses.replace(query, bounded=True, ends=True, holds_data=True)
                self._run_query(last, heeds_requests=False)
            if status != _RENEWED:
                return status, request
            query = self.renew(query)
            self.committer.closing = False

    def _drain(self, query: Query) -> Query:
        """Process all available input with queries that end by themselves; return the last query."""
        while True:
            self.committer.closing = False
            query = dataclasses.replace(query, bounded=True)
            status, _ = self._run_or_suspend(query, heeds_requests=False)
            if status != _RENEWED:
                return query
            query = self.renew(query)

    def _run_or_suspend(
        self, query: Query, on_start: Callable[[], None] = do_nothing, *, heeds_requests: bool = True
    ) -> tuple[str, Request | None]:
        """Start a query and follow it. If it fails because a model hung, the caller renews it without that model."""
        try:
            return self._run_query(
                query, on_start, holds_data=query.holds_data, heeds_requests=heeds_requests
            )
        except SPARK_ERRORS:
            suspensions = self.committer.suspensions
            if suspensions is None or not suspensions.note_new():
                raise
            return _RENEWED, None

    def _run_query(
        self,
        query: Query,
        on_start: Callable[[], None] = do_nothing,
        *,
        holds_data: bool | None = None,
        heeds_requests: bool = True,
    ) -> tuple[str, Request | None]:
        """Start a query, and follow it."""
        with open_coordinator(query, self.settings, self.committer, self.checkpoint) as (query, coordinator):
            running = start_query(self.session, query)
            on_start()
            return self.follow(
                running, holds_data=holds_data, heeds_requests=heeds_requests, coordinator=coordinator
            )

    def renew(self, query: Query) -> Query:
        """Return the query to continue with, after the last one has ended between two micro-batches."""
        # The refused micro-batch may have data that is held back now, and none of it was processed.
        self.committer.plans.forget_refused()
        return dataclasses.replace(query, holds_data=self.should_hold())

    def should_hold(self) -> bool:
        """Return whether to hold data streams back.

        They wait when paused steps hold too much data already, and until the history of the control streams is read.
        """
        committer = self.committer
        held_too_much = not self.settings.bounded and committer.held_bytes > self.settings.max_held_bytes
        return held_too_much or committer.history.is_behind()

    def follow(
        self,
        query: StreamingQuery,
        *,
        holds_data: bool | None = None,
        heeds_requests: bool = True,
        coordinator: Coordinator | None = None,
    ) -> tuple[str, Request | None]:
        """Follow the query until it ends; return the status and the request that stopped it, if any.

        `coordinator` ends its intervals early, if it has any. `holds_data` says whether the query holds data back; with
        None, the query is never renewed. Raises the PenstockError that ends the run when it has lost its checkpoint or
        a receiver has failed.
        """
        committer = self.committer
        committer.watch(query)
        while query.isActive:
            stops = self.stop.wait(_POLL_S)
            # Requests need the job between two micro-batches, so one that an earlier run left half done comes first.
            heeds = heeds_requests and not stops and committer.plans.pending is None
            request = self.requests.next() if heeds else None
            if stops or request is not None:
                committer.closing = True
                _stop_between_batches(query, coordinator)
                self._report()
                return "stopped", request
            if holds_data is not None and self.should_hold() != holds_data:
                # The settings of Spark's sources are fixed while the query runs, so another query replaces it.
                committer.closing = True
                _stop_between_batches(query, coordinator)
                committer.refresh()
                return _RENEWED, None
            failure = committer.failure() or (None if coordinator is None else coordinator.error)
            if failure is not None:
                query.stop()
                raise failure
            committer.dumps.step()
            if committer.models is not None:
                committer.models.step()
            if committer.policies is not None:
                committer.policies.step()
            self._report()
        query.awaitTermination()
        self._report()
        committer.history.finish()
        if holds_data and not self.should_hold():
            return _RENEWED, None
        return "finished", None

    def _report(self) -> None:
        """Pass the newest progress to the hooks, and a sentence for each limit of micro-batches that has changed."""
        self.committer.refresh()
        for note in self.committer.bounds.notes():
            self.hooks.on_note(note)
        self.hooks.on_progress(self.committer.progress)


def _stop_between_batches(query: StreamingQuery, coordinator: Coordinator | None) -> None:
    """Stop the query after its current micro-batch, so that no sink has only a part of it.

    `before_batch` refuses the next micro-batch, which ends the query, too. In real time the present interval ends now.
    """
    if coordinator is not None:
        coordinator.finish()
    while query.isActive and query.status["isTriggerActive"]:
        time.sleep(_STOP_POLL_S)
    failure = query.exception()
    if failure is not None and STOPPING not in str(failure):
        raise failure
    query.stop()
