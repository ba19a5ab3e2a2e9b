"""Job views: the internals of a job, read from its checkpoint and the places it writes to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.instants import instant_of
from penstock.bindings.parse import parse_binding
from penstock.checkpoints.checkpoint import Checkpoint as CheckpointFolder
from penstock.checkpoints.described_graph import read_described_graph
from penstock.checkpoints.described_state import read_described
from penstock.checkpoints.ownership import newest_epoch
from penstock.commands.command_sender import MASK
from penstock.commands.listed_models import ListedModel, list_models
from penstock.errors import CheckpointError
from penstock.jobs.dead_letters import newest_letters
from penstock.metrics.batch_metrics import BatchMetrics, newest_batch_metrics, read_batch_metrics
from penstock.metrics.job_metrics import measure_job
from penstock.metrics.rates import WINDOW_S
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.query_answers import AnswerContent
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.state_pages import KeyPage, KeysWanted, find_step, key_of_text
from penstock.scaling.checkpoint_advice import advice_on
from penstock.scaling.policy import policy_of
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.definitions import JobSettings
from penstock.server.runs.driver import expand_variables
from penstock.server.runs.processes import job_environment
from penstock.server.service.job_resources import mask_bindings, mask_settings
from penstock.server.service.metrics_resources import Batch, Metrics, batch_of, metrics_of
from penstock.server.service.plan_resources import Plan, read_plan
from penstock.server.service.state_client import StateClient
from penstock.server.service.state_process import KeysQuestion, QueryQuestion
from penstock.server.service.view_resources import (
    Advice,
    Checkpoint,
    Checkpoints,
    DeadLetters,
    JobConfig,
    Setting,
    StateStep,
    dead_letters_of,
)
from penstock.server.store.row_types import JobRow
from penstock.server.store.store import Store
from penstock.streams.own_streams import DEAD_LETTERS

__all__ = ["JobViews", "resolve_place"]

_MAX_KEY_BYTES: Final = 1 << 20
_AT_WORK: Final = frozenset({JobStatus.RUNNING, JobStatus.STOPPING})


class JobViews:
    """A reader of the internals of jobs. Changes nothing, needs no Spark, and opens only known files of a job.

    Raises UnknownIdError for an unknown job, and CheckpointError if something does not exist yet or cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._state: Final = StateClient()

    def plan(self, job_id: str) -> Plan:
        """Return the graph of a job, as its newest run described it."""
        return read_plan(self._store.job(job_id).folder)

    def metrics(
        self,
        job_id: str,
        limit: int,
        *,
        after: int | None = None,
        since_ms: int | None = None,
        window_s: float = WINDOW_S,
    ) -> Metrics:
        """Return the rates and totals of a job, and at most `limit` of its newest micro-batches, oldest first.

        `after` selects micro-batches after another one, `since_ms` those that ended after a time. Rates cover the last
        `window_s` seconds.
        """
        job = self._store.job(job_id)
        checkpoint = job.folder
        since = None if since_ms is None else instant_of(since_ms)
        batches = read_batch_metrics(checkpoint, limit, after=after, since=since)
        return metrics_of(measure_job(checkpoint, window_s, is_running=job.status in _AT_WORK), batches)

    def batches(self, job_id: str, limit: int, *, after: int | None = None) -> list[Batch]:
        """Return at most `limit` of the newest micro-batches, oldest first; with `after`, only those after that one."""
        checkpoint = self._store.job(job_id).folder
        return [batch_of(found) for found in read_batch_metrics(checkpoint, limit, after=after)]

    def advice(self, job_id: str, window_s: float, cores: int | None = None) -> Advice:
        """Return which parallelism, batch interval and cores a job needs, by the policy of its definition, if any."""
        job = self._store.job(job_id)
        given = job.settings.get("scaling")
        policy = None if given is None else policy_of(given)
        advice, decision = advice_on(job.folder, policy, window_s, cores)
        return Advice(
            has_policy=policy is not None,
            advice=msgspec.to_builtins(advice),
            decision=None if decision is None else msgspec.to_builtins(decision),
        )

    def exposition(self) -> bytes:
        """Return the metrics of all unfinished jobs in Prometheus' text format, labelled with the jobs' ids."""
        # Prometheus' client is imported only when needed.
        from penstock.metrics.exposition import ExposedJob, exposition

        found = []
        for job in self._store.live_jobs():
            newest = newest_batch_metrics(job.folder)
            if newest is not None:
                named = msgspec.structs.replace(newest, job=job.id)
                found.append(ExposedJob(named, job.status in _AT_WORK))
        return exposition(found)

    def checkpoints(self, job_id: str, limit: int, before: int | None = None) -> Checkpoints:
        """Return the committed micro-batches to which a job can go back, newest first, or only those `before` one."""
        job = self._store.job(job_id)
        checkpoint = CheckpointFolder(job.folder)
        lineage = checkpoint.known_lineage()
        commits = checkpoint.spark_folder / "commits"
        numbers = batch_numbers(commits)
        wanted = [n for n in reversed(numbers) if before is None or lineage.first_batch + n < before]
        metrics = {
            found.batch: found for found in read_batch_metrics(checkpoint.folder, 2 * len(numbers) + 1)
        }
        found = [
            _checkpoint(commits / str(n), metrics.get(lineage.first_batch + n), lineage.first_batch + n)
            for n in wanted[:limit]
        ]
        items = tuple(item for item in found if item is not None)
        return Checkpoints(
            lineage=lineage.id,
            epoch=newest_epoch(checkpoint.folder),
            parallelism=lineage.parallelism,
            key_groups=lineage.key_groups,
            retained_batches=int(job.settings["retained_batches"]),
            origin=lineage.origin.kind,
            origin_id=lineage.origin.id,
            items=items,
            next=str(items[-1].batch) if len(wanted) > limit and items else None,
        )

    def dead_letters(self, job_id: str, limit: int) -> DeadLetters:
        """Return the newest dead letters of a job, from where its binding writes them."""
        job = self._store.job(job_id)
        place = read_described_graph(job.folder).dead_letters.uri
        binding = parse_binding(DEAD_LETTERS, resolve_place(job, DEAD_LETTERS, place), "sink")
        return dead_letters_of(newest_letters(binding, limit))

    def models(self, job_id: str) -> list[ListedModel]:
        """Return the models that the steps of a job declare, with their versions."""
        return list_models(self._store.job(job_id).folder)

    def states(self, job_id: str) -> list[StateStep]:
        """Return the steps of a job with their states and numbers of keys."""
        # Imports PySpark, which would delay the start of the server.
        from penstock.savepoints.state_listing import list_steps

        checkpoint = self._store.job(job_id).folder
        return msgspec.convert(list_steps(checkpoint, read_described(checkpoint)), list[StateStep])

    def keys(self, job_id: str, wanted: KeysWanted) -> KeyPage:
        """Return keys of a step with their values. Also raises UnknownIdError for an unknown step.

        Raises ExternalSystemError while keys are being read for others; then retry.
        """
        checkpoint = CheckpointFolder(self._store.job(job_id).folder)
        checkpoint.known_lineage()
        # An invalid request fails here, without a process.
        step = find_step(read_described(checkpoint.folder), wanted.step)
        if wanted.key is not None:
            key_of_text(wanted.key, step)
            wanted = msgspec.structs.replace(wanted, max_bytes=_MAX_KEY_BYTES)
        if not batch_numbers(checkpoint.spark_folder / "commits") and not checkpoint.seed.exists():
            # Nothing is committed, and the job began without state.
            return KeyPage(batch=-1, items=(), next=None)
        return self._state.keys(KeysQuestion(str(checkpoint.folder), wanted))

    def query(self, job_id: str, sql: str, limits: QueryLimits) -> AnswerContent:
        """Answer a query over the newest committed state of a job. Also raises QueryError for a wrong one.

        Raises ExternalSystemError while other queries are being answered; then retry.
        """
        checkpoint = CheckpointFolder(self._store.job(job_id).folder)
        checkpoint.known_lineage()
        question = QueryQuestion(str(checkpoint.folder), sql, **dataclasses.asdict(limits))
        return self._state.query(question)

    def config(self, job_id: str) -> JobConfig:
        """Return the settings of a job, each with its default. Possible secrets are masked."""
        job = self._store.job(job_id)
        given = {**job.settings, "restart": job.restart}
        defaults = JobSettings().model_dump()
        masked = mask_settings(given)
        return JobConfig(
            definition=job.definition,
            bindings=mask_bindings(job.settings),
            limits=_limits(job.folder),
            settings=tuple(
                Setting(name=name, value=masked[name], default=default, is_default=given[name] == default)
                for name, default in defaults.items()
                if name in masked
            ),
        )


def resolve_place(job: JobRow, name: str, described: str) -> str:
    """Return the URI of a stream of a job: `described` by its checkpoint or, if that masks a secret, its binding.

    Raises BindingError if the binding has a variable that is not set here.
    """
    given = job.settings.get("bindings", {})
    if MASK not in described or name not in given:
        return described
    return expand_variables({name: given[name]}, job_environment())[name]


def _checkpoint(commit: Path, metrics: BatchMetrics | None, batch: int) -> Checkpoint | None:
    try:
        at_ms = commit.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        # The job has deleted it since the listing.
        return None
    return Checkpoint(
        batch=batch,
        committed_ms=at_ms,
        duration_s=None if metrics is None else metrics.duration_s,
        state_bytes=None if metrics is None else sum(step.state_bytes for step in metrics.steps.values()),
        keys=None if metrics is None else sum(step.keys for step in metrics.steps.values()),
    )


def _limits(checkpoint: Path) -> dict[str, dict[str, int]]:
    """Return the limits of each stream per micro-batch; empty before the first start."""
    try:
        graph = read_described_graph(checkpoint)
    except CheckpointError:
        return {}
    return {node.name: node.binding.limits for node in graph.nodes if node.binding and node.binding.limits}
