"""Intervals: what a job needs besides its query when it runs in real time."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.errors import JobDefinitionError
from penstock.jobs.commit import BatchCommitter
from penstock.jobs.phases import IntervalEnd
from penstock.jobs.settings import RunSettings
from penstock.realtime.coordinator import Coordinator
from penstock.realtime.coordinator_links import CheckpointLinks, CoordinatedStreams
from penstock.realtime.interval_files import IntervalFiles
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.cuts import batch_numbers, runs_in_real_time
from penstock.sources.base import ReplayableLog
from penstock.sources.starts import StartLog
from penstock.spark.query import Query

__all__ = ["changes_mode", "check_cores", "open_coordinator"]


def check_cores(settings: RunSettings, parallelism: int, cores: int) -> None:
    """Raise JobDefinitionError when the tasks of a job in real time cannot all run at once."""
    if settings.checkpoint_interval_ms and parallelism > cores:
        raise JobDefinitionError(
            f"In real time all tasks of the job stay at work, so its parallelism ({parallelism}) must not exceed the "
            f"cores that Spark has ({cores}). Rescale the job with penstock rescale, or give Spark more cores."
        )


def changes_mode(checkpoint: Checkpoint, settings: RunSettings) -> bool:
    """Return whether a job that has run in micro-batches is to run in real time, or the other way."""
    folder = checkpoint.spark_folder
    has_run = bool(batch_numbers(folder / "offsets"))
    return has_run and runs_in_real_time(folder) != bool(settings.checkpoint_interval_ms)


@contextlib.contextmanager
def open_coordinator(
    query: Query, settings: RunSettings, committer: BatchCommitter, checkpoint: Checkpoint
) -> Iterator[tuple[Query, Coordinator | None]]:
    """Yield the query, with a coordinator of its intervals if the job runs in real time."""
    if not settings.checkpoint_interval_ms:
        yield query, None
        return
    sources = [_source(source, query) for source in query.sources]
    logs = {source.node.name: source.log for source in sources}
    begins = {name: query.positions.get(name) or log.encode(log.beginning()) for name, log in logs.items()}
    controls = frozenset(source.node.name for source in sources if source.node.is_control)

    def check() -> None:
        # Once an interval is durable, tasks commit its outputs.
        committer.ownership.check()
        committer.bound.topics.check()

    held = frozenset(logs) - controls if query.holds_data else frozenset[str]()
    coordinator = Coordinator(
        CoordinatedStreams(logs, controls, held, begins),
        IntervalFiles(checkpoint.spark_folder, settings.retained_batches),
        CheckpointLinks(check, committer.ownership.confirm, committer.next_version),
        tasks=query.parallelism,
        drains=query.bounded,
        interval_s=settings.checkpoint_interval_ms / 1000,
        host=_host(settings.master),
    )

    def before_batch(number: int) -> None:
        query.before_batch(number)
        coordinator.begin(number - query.first_batch)
        # The job may have begun to stop meanwhile, and an interval of an idle job does not end by itself.
        if committer.closing:
            coordinator.finish()

    committer.live_ends = coordinator.ends
    committer.interval_end = lambda: _interval_end(coordinator)
    committer.recorder.watch_intervals(lambda: coordinator.running_s)
    with coordinator:
        yield (
            dataclasses.replace(
                query, sources=sources, coordinator=coordinator.address, before_batch=before_batch
            ),
            coordinator,
        )


def _interval_end(coordinator: Coordinator) -> IntervalEnd | None:
    """Return when the last interval ended, for metrics."""
    ended = coordinator.ended_s
    return None if ended is None else IntervalEnd(*ended)


def _source(source: BoundSource, query: Query) -> BoundSource:
    """Return a source for the query; the source of starts learns whether time ends."""
    log: ReplayableLog[object] = source.log
    if isinstance(log, StartLog):
        log = StartLog(ends=query.ends)
    return dataclasses.replace(source, log=log)


def _host(master: str) -> str:
    """Return the name under which the tasks reach this process."""
    return "127.0.0.1" if master.startswith("local") else socket.gethostbyname(socket.gethostname())
