"""Reading: what there is to know of a job beside its status, from its checkpoint and the places that it is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.instants import instant_of
from penstock.jobs.control import StepEntry, read_control_entry
from penstock.jobs.described_graph import (
    DescribedEdge,
    DescribedNode,
    DescribedPlace,
    read_described_graph,
)
from penstock.jobs.described_state import DescribedStep, read_described
from penstock.jobs.figures import last_figures, newest_figures
from penstock.jobs.measuring import measured
from penstock.jobs.rates import WINDOW_S
from penstock.server.home import Home
from penstock.server.metrics import BatchInfo, MetricsInfo, batch_info, metrics_info
from penstock.server.statuses import JobStatus
from penstock.server.store.store import Store

__all__ = ["JobReader", "PlanInfo", "PlanNode", "PlanState"]

_AT_WORK: Final = frozenset({JobStatus.RUNNING, JobStatus.STOPPING})


class PlanState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a step: its kind, the type of its values, and whether it is kept for each key or once."""

    name: str
    kind: str
    type: str
    keyed: bool


class PlanNode(DescribedNode, frozen=True, kw_only=True):
    """A part of a job; of a step with its states, and the commands that it takes with their scopes."""

    states: tuple[PlanState, ...]
    commands: dict[str, tuple[str, ...]]


class PlanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is made of, as `penstock.jobs.described_graph.DescribedGraph` with what its steps hold and take."""

    job: str
    key_groups: int
    parallelism: int
    nodes: tuple[PlanNode, ...]
    edges: tuple[DescribedEdge, ...]
    commands: DescribedPlace | None
    receipts: DescribedPlace | None
    dead_letters: DescribedPlace


class JobReader:
    """What there is to know of jobs. It changes nothing, needs no Spark, and opens only what a job is known to have.

    Raises UnknownIdError for a job that there is not, and CheckpointError for what is not there yet or cannot be read.
    """

    def __init__(self, store: Store, home: Home) -> None:
        self._store: Final = store
        self._home: Final = home

    def plan(self, job_id: str) -> PlanInfo:
        """What a job is made of, as its newest run has described it."""
        checkpoint = Path(self._store.job(job_id).checkpoint)
        graph = read_described_graph(checkpoint)
        states = read_described(checkpoint).steps
        takes = read_control_entry(checkpoint).steps
        return PlanInfo(
            job=graph.job,
            key_groups=graph.key_groups,
            parallelism=graph.parallelism,
            nodes=tuple(_plan_node(node, states, takes) for node in graph.nodes),
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

    def exposition(self) -> bytes:
        """The metrics of all jobs that are not over, in the text format of Prometheus, by the ids of the jobs."""
        # Prometheus' client is loaded where somebody asks for it.
        from penstock.jobs.exposition import JobFigures, exposition

        found = []
        for job in self._store.live_jobs():
            newest = newest_figures(Path(job.checkpoint))
            if newest is not None:
                named = msgspec.structs.replace(newest, job=job.id)
                found.append(JobFigures(named, job.status in _AT_WORK))
        return exposition(found)


def _plan_node(
    node: DescribedNode, states: Mapping[str, DescribedStep], takes: Mapping[str, StepEntry]
) -> PlanNode:
    is_step = node.kind == "step"
    step = states.get(node.name) if is_step else None
    entry = takes.get(node.name) if is_step else None
    return PlanNode(
        **{name: getattr(node, name) for name in node.__struct_fields__},
        states=() if step is None else _plan_states(step),
        commands={} if entry is None else entry.kinds,
    )


def _plan_states(step: DescribedStep) -> tuple[PlanState, ...]:
    return tuple(
        PlanState(name=name, kind=found.kind, type=str(found.schema.field("value").type), keyed=keyed)
        for keyed, group in ((True, step.states), (False, step.shared))
        for name, found in group.items()
        if not name.startswith("__")
    )
