"""Query run: a compiled job as Spark queries, one after the other, until it ends or is stopped."""

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
from penstock.jobs.failure_diagnosis import SparkLog, explained
from penstock.jobs.requests import Request, Requests
from penstock.jobs.settings import RunSettings
from penstock.spark.query import Query, start_query
from penstock.spark.types import PySparkException, SparkSession, StreamingQuery

__all__ = ["QueryRun", "RunHooks", "nobody_waits"]

_POLL_S: Final = 0.2
_RENEWED: Final = "renewed"
_STOP_POLL_S: Final = 0.02


def _ignore(news: Any) -> None:
    """Nobody listens."""


def nobody_waits() -> None:
    """Nobody waits for the job to run."""


@dataclass(frozen=True)
class RunHooks:
    """What a run calls while it goes on; all of them in the thread that runs the job.

    Args:
        on_note: gets sentences: with what state the job begins, and what happens to it as a whole.
        on_open: when the checkpoint is locked and has its first state, before the bindings are looked at.
        on_begin: when nothing has refused the run, before Spark starts.
        on_running: gets Spark's session when the first micro-batch may begin.
        on_progress: gets how far the job is, again and again, and once more behind its last micro-batch.

    """

    on_note: Callable[[str], None] = _ignore
    on_open: Callable[[], None] = nobody_waits
    on_begin: Callable[[], None] = nobody_waits
    on_running: Callable[[SparkSession], None] = _ignore
    on_progress: Callable[[Progress], None] = _ignore


@dataclass(frozen=True)
class QueryRun:
    """A compiled job at work in a session, with those who look on and tell it what to do.

    `on_start` is called when its first query runs.
    """

    settings: RunSettings
    session: SparkSession
    committer: BatchCommitter
    checkpoint: Checkpoint
    requests: Requests
    stop: threading.Event
    hooks: RunHooks
    on_start: Callable[[], None]

    def run(self) -> tuple[str, Request | None]:
        """Run until the end, or until the job is stopped; gives how it went, and the request that has stopped it."""
        committer = self.committer
        bound = committer.bound
        committer.history = control_history(bound.sources, self.checkpoint, bound.lineage)
        if committer.history.told is not None:
            self.hooks.on_note(committer.history.told)
        log = SparkLog(self.checkpoint.folder / "spark.log")
        try:
            status, request = self._run_queries(self._first_query())
        except PySparkException as e:
            # Whatever two runs on one checkpoint have made of it, that is the cause.
            streams = len(bound.lineage.streams)
            failure = committer.failure() or explained(e, log, self.checkpoint.spark_folder, streams)
            raise failure from failure.__cause__
        committer.plans.forget_refused()
        return status, request

    def _first_query(self) -> Query:
        committer = self.committer
        bound = committer.bound
        return Query(
            plan=bound.plan,
            sources=bound.sources,
            writer=bound.writer,
            checkpoint=str(self.checkpoint.spark_folder),
            parallelism=bound.lineage.parallelism,
            bounded=self.settings.bounded,
            batch_interval_ms=self.settings.batch_interval_ms,
            before_batch=committer.before_batch,
            on_batch=committer.on_batch,
            on_rest=committer.recorder.rested,
            holds_data=self.should_hold(),
            first_batch=bound.lineage.first_batch,
            positions=bound.lineage.positions,
            limits=committer.bounds.limits,
        )

    def _run_queries(self, query: Query) -> tuple[str, Request | None]:
        on_start = self.on_start
        while True:
            # A query that is started only to be stopped would first do what a run before has left half done.
            running = None if self.stop.is_set() else start_query(self.session, query)
            on_start()
            on_start = nobody_waits
            status, request = "stopped", None
            if running is not None:
                status, request = self.follow(running, holds_data=query.holds_data)
            drains = request is not None and request.drain
            if drains:
                # All that is there is processed by a query that ends by itself.
                query = self._drain(query)
            if self.committer.bound.plan.awaits_end and (drains or status == "finished"):
                # Nothing will follow, so that what waits for the watermark, or windows for the clock, is done now.
                last = dataclasses.replace(query, bounded=True, ends=True, holds_data=True)
                self.follow(start_query(self.session, last), heeds_requests=False)
            if status != _RENEWED:
                return status, request
            query = self.renewed(query)
            self.committer.closing = False

    def _drain(self, query: Query) -> Query:
        """Process all that is there by queries that end by themselves; gives the last."""
        while True:
            self.committer.closing = False
            query = dataclasses.replace(query, bounded=True)
            running = start_query(self.session, query)
            status, _ = self.follow(running, holds_data=query.holds_data, heeds_requests=False)
            if status != _RENEWED:
                return query
            query = self.renewed(query)

    def renewed(self, query: Query) -> Query:
        """The query as it is to go on, once the one before has ended between two micro-batches."""
        # It was planned with the bounds of before, and nothing of it was done.
        self.committer.plans.forget_refused()
        for told in self.committer.bounds.changes():
            self.hooks.on_note(told)
        limits = self.committer.bounds.renew()
        return dataclasses.replace(query, holds_data=self.should_hold(), limits=limits)

    def _is_outdated(self, *, holds_data: bool) -> bool:
        """Whether the query should go on as another one."""
        return self.should_hold() != holds_data or self.committer.bounds.are_outdated

    def should_hold(self) -> bool:
        """Whether data streams must not be read on.

        So much waits for paused steps, or the history of control streams comes first.
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
    ) -> tuple[str, Request | None]:
        """Wait for the query, and give how it went; without `holds_data` it goes on however much waits."""
        committer = self.committer
        committer.watch(query)
        while query.isActive:
            stops = self.stop.wait(_POLL_S)
            # Requests need the job between two micro-batches, which it is not while one of a run before is half done.
            heeds = heeds_requests and not stops and committer.plans.pending is None
            request = self.requests.next() if heeds else None
            if stops or request is not None:
                committer.closing = True
                _stop_between_batches(query)
                committer.refresh()
                self.hooks.on_progress(committer.progress)
                return "stopped", request
            if holds_data is not None and self._is_outdated(holds_data=holds_data):
                # Spark's sources take no word while they run, so the query goes on as another one.
                committer.closing = True
                _stop_between_batches(query)
                committer.refresh()
                return _RENEWED, None
            failure = committer.failure()
            if failure is not None:
                query.stop()
                raise failure
            committer.dumps.step()
            committer.refresh()
            self.hooks.on_progress(committer.progress)
        query.awaitTermination()
        committer.refresh()
        self.hooks.on_progress(committer.progress)
        committer.history.finish()
        if holds_data and not self.should_hold():
            return _RENEWED, None
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
