"""Job views: what there is to know of a job beside its status, from its checkpoint and its places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.instants import instant_of
from penstock.bindings.parse import parse_binding
from penstock.bindings.secrets import redacted
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_graph import (
    DescribedEdge,
    DescribedNode,
    DescribedPlace,
    read_described_graph,
)
from penstock.checkpoints.described_state import DescribedStep, read_described
from penstock.checkpoints.ownership import newest_epoch
from penstock.commands.command_catalog import StepEntry, read_command_catalog
from penstock.commands.command_sender import MASK
from penstock.commands.settings_in_force import settings_in_force
from penstock.errors import CheckpointError
from penstock.jobs.dead_letters import FoundLetter, newest_letters
from penstock.metrics.batch_metrics import Figures, last_figures, newest_figures
from penstock.metrics.job_metrics import measured
from penstock.metrics.rates import WINDOW_S
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.state_pages import KeyPage, KeysWanted, described_step, key_of_text
from penstock.scaling.checkpoint_advice import advice_on
from penstock.scaling.policy import policy_of
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.definitions import JobSettings
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.driver import with_variables
from penstock.server.runs.processes import job_environment
from penstock.server.service.metrics_views import BatchInfo, MetricsInfo, batch_info, metrics_info
from penstock.server.service.state_reader import Question
from penstock.server.service.state_reader_client import StateReader
from penstock.server.store.row_types import JobRow
from penstock.server.store.store import Store
from penstock.streams.graph import DEAD_LETTERS

__all__ = [
    "AdviceInfo",
    "CheckpointInfo",
    "CheckpointsInfo",
    "JobViews",
    "PlanInfo",
    "PlanNode",
    "PlanState",
    "SettingInfo",
    "bound_place",
    "shown_bindings",
    "shown_settings",
]

_MOST_KEY_BYTES: Final = 1 << 20
_AT_WORK: Final = frozenset({JobStatus.RUNNING, JobStatus.STOPPING})


class PlanState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a step: its kind, the type of its values, and whether it is kept for each key or once."""

    name: str
    kind: str
    type: str
    keyed: bool


class PlanNode(DescribedNode, frozen=True, kw_only=True):
    """A part of a job; of a step with its states, its settings in force, and the commands that it takes."""

    states: tuple[PlanState, ...]
    commands: dict[str, tuple[str, ...]]
    settings: dict[str, Any]


class PlanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is made of, as `DescribedGraph` with what its steps hold and take."""

    job: str
    key_groups: int
    parallelism: int
    nodes: tuple[PlanNode, ...]
    edges: tuple[DescribedEdge, ...]
    commands: DescribedPlace | None
    receipts: DescribedPlace | None
    dead_letters: DescribedPlace


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A committed micro-batch that is kept. What its figures would tell is None when they are gone."""

    batch: int
    committed_ms: int
    duration_s: float | None
    state_bytes: int | None
    keys: int | None


class CheckpointsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of a job: its lineage, the number of the run that owns it, what it began with, what it keeps.

    `more` says that there are older micro-batches than `items`.
    """

    lineage: str
    epoch: int
    parallelism: int
    key_groups: int
    retained_batches: int
    origin: str
    origin_id: str
    items: tuple[CheckpointInfo, ...]
    more: bool


class SettingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a job. Secrets are masked."""

    name: str
    value: Any
    default: Any
    is_default: bool


class AdviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wants, as `penstock.scaling.advice.Advice`, and what its policy would decide, if it has one."""

    has_policy: bool
    advice: dict[str, Any]
    decision: dict[str, Any] | None


class JobViews:
    """What there is to know of jobs. It changes nothing, needs no Spark, and opens only what a job is known to have.

    Raises UnknownIdError for a job that there is not, and CheckpointError for what is not there yet or cannot be read.
    """

    def __init__(self, store: Store, home: ServerDirectory) -> None:
        self._store: Final = store
        self._state: Final = StateReader(home.root)

    def plan(self, job_id: str) -> PlanInfo:
        """What a job is made of, as its newest run has described it."""
        checkpoint = Path(self._store.job(job_id).checkpoint)
        graph = read_described_graph(checkpoint)
        states = read_described(checkpoint).steps
        takes = read_command_catalog(checkpoint).steps
        settings = settings_in_force(checkpoint)
        return PlanInfo(
            job=graph.job,
            key_groups=graph.key_groups,
            parallelism=graph.parallelism,
            nodes=tuple(_plan_node(node, states, takes, settings) for node in graph.nodes),
            edges=graph.edges,
            commands=graph.commands,
            receipts=graph.receipts,
            dead_letters=graph.dead_letters,
        )

    def metrics(
        self,
        job_id: str,
        most: int,
        *,
        after: int | None = None,
        since_ms: int | None = None,
        window_s: float = WINDOW_S,
    ) -> MetricsInfo:
        """How a job is doing, and at most so many of its newest micro-batches, oldest first.

        With `after` of those behind a micro-batch, with `since_ms` of those that ended after a time. Rates are over
        `window_s`.
        """
        job = self._store.job(job_id)
        checkpoint = Path(job.checkpoint)
        since = None if since_ms is None else instant_of(since_ms)
        batches = last_figures(checkpoint, most, after=after, since=since)
        return metrics_info(measured(checkpoint, window_s, is_running=job.status in _AT_WORK), batches)

    def batches(self, job_id: str, most: int, *, after: int | None = None) -> list[BatchInfo]:
        """At most so many of the newest micro-batches of a job behind another, oldest first."""
        checkpoint = Path(self._store.job(job_id).checkpoint)
        return [batch_info(found) for found in last_figures(checkpoint, most, after=after)]

    def advice(self, job_id: str, window_s: float, cores: int | None = None) -> AdviceInfo:
        """Which parallelism, batch interval and cores a job wants, by the policy of its definition, if it has one."""
        job = self._store.job(job_id)
        given = job.settings.get("scaling")
        policy = None if given is None else policy_of(given)
        advice, decision = advice_on(Path(job.checkpoint), policy, window_s, cores)
        return AdviceInfo(
            has_policy=policy is not None,
            advice=msgspec.to_builtins(advice),
            decision=None if decision is None else msgspec.to_builtins(decision),
        )

    def exposition(self) -> bytes:
        """The metrics of all jobs that are not over, in the text format of Prometheus, by the ids of the jobs."""
        # Prometheus' client is loaded where somebody asks for it.
        from penstock.metrics.exposition import JobFigures, exposition

        found = []
        for job in self._store.live_jobs():
            newest = newest_figures(Path(job.checkpoint))
            if newest is not None:
                named = msgspec.structs.replace(newest, job=job.id)
                found.append(JobFigures(named, job.status in _AT_WORK))
        return exposition(found)

    def checkpoints(self, job_id: str, most: int, before: int | None = None) -> CheckpointsInfo:
        """The committed micro-batches to which the checkpoint of a job can go back, newest first."""
        job = self._store.job(job_id)
        checkpoint = Checkpoint(Path(job.checkpoint))
        lineage = checkpoint.known_lineage()
        commits = checkpoint.spark_folder / "commits"
        numbers = batch_numbers(commits)
        wanted = [n for n in reversed(numbers) if before is None or lineage.first_batch + n < before]
        figures = {found.batch: found for found in last_figures(checkpoint.folder, 2 * len(numbers) + 1)}
        items = [
            _checkpoint_info(commits / str(n), figures.get(lineage.first_batch + n), lineage.first_batch + n)
            for n in wanted[: most + 1]
        ]
        return CheckpointsInfo(
            lineage=lineage.id,
            epoch=newest_epoch(checkpoint.folder),
            parallelism=lineage.parallelism,
            key_groups=lineage.key_groups,
            retained_batches=int(job.settings["retained_batches"]),
            origin=lineage.origin.kind,
            origin_id=lineage.origin.id,
            items=tuple(item for item in items[:most] if item is not None),
            more=len(items) > most,
        )

    def dead_letters(self, job_id: str, most: int) -> list[FoundLetter]:
        """At most so many of the newest dead letters of a job, oldest first, from where its binding puts them."""
        job = self._store.job(job_id)
        place = read_described_graph(Path(job.checkpoint)).dead_letters.uri
        return newest_letters(
            parse_binding(DEAD_LETTERS, bound_place(job, DEAD_LETTERS, place), "sink"), most
        )

    def states(self, job_id: str) -> list[dict[str, Any]]:
        """The steps of a job with their states, and how many keys they hold."""
        # PySpark comes with it, for which the start of the server need not wait.
        from penstock.savepoints.state_listing import list_steps

        checkpoint = Path(self._store.job(job_id).checkpoint)
        return list_steps(checkpoint, read_described(checkpoint))

    def keys(self, job_id: str, wanted: KeysWanted) -> KeyPage:
        """What a step of a job holds, key by key. UnknownIdError also for a step that there is not.

        Raises ExternalSystemError while a process reads it, which may take a while; ask again then.
        """
        checkpoint = Checkpoint(Path(self._store.job(job_id).checkpoint))
        checkpoint.known_lineage()
        # What is said wrongly is told at once, without Spark.
        step = described_step(read_described(checkpoint.folder), wanted.step)
        if wanted.key is not None:
            key_of_text(wanted.key, step)
            wanted = msgspec.structs.replace(wanted, most_bytes=_MOST_KEY_BYTES)
        if not batch_numbers(checkpoint.spark_folder / "commits") and not checkpoint.seed.exists():
            # Nothing is committed, and nothing was begun with.
            return KeyPage(batch=-1, items=(), next=None)
        return self._state.ask(Question(str(checkpoint.folder), wanted))

    def close(self) -> None:
        """End the process that reads state, if there is one."""
        self._state.close()

    def limits(self, job_id: str) -> dict[str, dict[str, int]]:
        """How much of each stream goes into a micro-batch at most; nothing before the first start has told it."""
        try:
            graph = read_described_graph(Path(self._store.job(job_id).checkpoint))
        except CheckpointError:
            return {}
        return {
            node.name: node.binding.limits for node in graph.nodes if node.binding and node.binding.limits
        }

    def config(self, job_id: str) -> list[SettingInfo]:
        """The settings with which a job runs, each with its default. What may be secret is masked."""
        job = self._store.job(job_id)
        given = {**job.settings, "restart": job.restart}
        defaults = JobSettings().model_dump()
        shown = shown_settings(given)
        return [
            SettingInfo(name=name, value=shown[name], default=default, is_default=given[name] == default)
            for name, default in defaults.items()
            if name in shown
        ]


def bound_place(job: JobRow, name: str, told: str) -> str:
    """Where a stream of a job is: as its checkpoint tells, or where that masks a secret, as it is bound.

    Raises BindingError when the binding has a variable that is not set here.
    """
    given = job.settings.get("bindings", {})
    if MASK not in told or name not in given:
        return told
    return with_variables({name: given[name]}, job_environment())[name]


def _checkpoint_info(commit: Path, figures: Figures | None, batch: int) -> CheckpointInfo | None:
    try:
        at_ms = commit.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        # The job has gone on meanwhile.
        return None
    return CheckpointInfo(
        batch=batch,
        committed_ms=at_ms,
        duration_s=None if figures is None else figures.duration_s,
        state_bytes=None if figures is None else sum(step.state_bytes for step in figures.steps.values()),
        keys=None if figures is None else sum(step.keys for step in figures.steps.values()),
    )


def _plan_node(
    node: DescribedNode,
    states: Mapping[str, DescribedStep],
    takes: Mapping[str, StepEntry],
    settings: Mapping[str, dict[str, Any]],
) -> PlanNode:
    is_step = node.kind == "step"
    step = states.get(node.name) if is_step else None
    entry = takes.get(node.name) if is_step else None
    return PlanNode(
        **{name: getattr(node, name) for name in node.__struct_fields__},
        states=() if step is None else _plan_states(step),
        commands={} if entry is None else entry.kinds,
        settings=settings.get(node.name, {}) if is_step else {},
    )


def _plan_states(step: DescribedStep) -> tuple[PlanState, ...]:
    return tuple(
        PlanState(name=name, kind=found.kind, type=str(found.schema.field("value").type), keyed=keyed)
        for keyed, group in ((True, step.states), (False, step.shared))
        for name, found in group.items()
        # What a step keeps for itself, its windows and timers, is told by them.
        if not name.startswith(("__", "@"))
    )


def shown_bindings(settings: Mapping[str, Any]) -> dict[str, str]:
    """The bindings of a job's settings with secrets masked."""
    return {name: redacted(uri) for name, uri in settings.get("bindings", {}).items()}


def shown_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings but for bindings, without what may be secret. Spark's may be keys of object stores: only their names."""
    shown = {
        name: redacted(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if name != "bindings"
    }
    return {**shown, "spark": dict.fromkeys(settings.get("spark", {}), "***")}
