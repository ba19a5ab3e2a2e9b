"""Starts a job again, also with another number of tasks, as a restore does: whole key groups move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from in_process_job import MILLISECOND, BatchResult, InProcessJob, Input
from memory_entries import MemoryEntries

import penstock as ps
from penstock.engine.slot import header_of, merged, put_header
from penstock.state.kept_slots import kept_slots
from penstock.state.slot_tables import SlotTables
from penstock.state.unions import UnionListState, unions

__all__ = ["MOVES", "Stage", "again_after", "rescaled", "run_beside", "stages"]

MOVES: Final = st.sampled_from(["go on", "restart", "rescale"])
_STAGE_MS: Final = 8


@dataclass(frozen=True)
class Stage:
    """A micro-batch: users with times and what they came by, when it comes, and what becomes of the job before it."""

    clicks: Sequence[tuple[str, int, str]]
    passed_ms: int
    move: str = "go on"
    tasks: int = 1


def stages(places: Sequence[str]) -> st.SearchStrategy[list[Stage]]:
    """Some micro-batches of clicks from partitions or streams."""
    click = st.tuples(st.sampled_from("abcde"), st.integers(0, 12), st.sampled_from(places))
    clicks = st.lists(click, max_size=6)
    stage = st.builds(Stage, clicks, st.integers(0, 12), MOVES, st.integers(1, 4))
    return st.lists(stage, min_size=2, max_size=7)


def run_beside(
    straight: InProcessJob,
    moved: InProcessJob,
    drawn: Sequence[Stage],
    click_of: Callable[[str, int, int], Any],
    inputs_of: Callable[[Mapping[str, list[Any]]], tuple[Input, Input]],
) -> Iterator[tuple[BatchResult, BatchResult]]:
    """What comes of a job that runs straight on, and of one that is moved before micro-batches, until time ends.

    `click_of` makes a record of a user, a time and a number; `inputs_of` the inputs of both of what came by each place.
    A micro-batch of the moved job that is done again gives the same bytes.
    """
    number = 0
    for place, stage in enumerate([*drawn, Stage([], 30)]):
        runs: dict[str, list[Any]] = {}
        for user, at, name in stage.clicks:
            runs.setdefault(name, []).append(click_of(user, _STAGE_MS * place + at, number))
            number += 1
        ends = place == len(drawn)
        moved = again_after(moved, stage.move, stage.tasks)
        straight.now += stage.passed_ms * MILLISECOND
        moved.now = straight.now
        replayed = moved.copy()
        inputs, moved_inputs = inputs_of(runs)
        expected, result = straight.run(inputs, ends=ends), moved.run(moved_inputs, ends=ends)
        yield expected, result
        assert replayed.run(moved_inputs, seed=place + 1, ends=ends).data == result.data
        assert replayed.states == moved.states


def again_after(job: InProcessJob, move: str, tasks: int) -> InProcessJob:
    """The job after it has been started again, if that is the move, with so many tasks if it is rescaled."""
    if move == "rescale":
        return rescaled(job.job, job, tasks)
    if move == "restart":
        kept_slots._kept.clear()
        job.wakes = dict.fromkeys(job.wakes, 0)
    return job


def rescaled(job: ps.Job, before: InProcessJob, partitions: int) -> InProcessJob:
    """The job with what its steps hold in `before`."""
    after = InProcessJob(job, partitions=partitions, topics=before.plan.partitions)
    after._offsets, after.now = dict(before._offsets), before.now
    # All slots run in the first micro-batch, as they take over their seeds.
    after.wakes = {(level[0].id, slot): 0 for level in after.plan.levels() for slot in after.plan.slot_of}
    for node in after.plan.graph.steps():
        core = after.plan.core(node)
        stored = [SlotTables(core.state_schema, MemoryEntries(s)) for s in _slots(before, node.id)]
        for slot, share in after.plan.slot_of.items():
            tables = SlotTables(
                core.state_schema, MemoryEntries(after.states.setdefault((node.id, slot), {}))
            )
            for found in stored:
                for group in share.own & found.tables.keys():
                    tables.put(group, found.table(group).all_rows())
            # What the slots keep once is the same in all of them, but for the union, which is made anew.
            every = {group: one.table(group).all_rows() for one in stored for group in one.tables}
            kinds = {
                spec.name: spec.arrow_type
                for spec in core.specs
                if isinstance(core.states[spec.name], UnionListState)
            }
            header = merged([header_of(one) for one in stored])
            header.unions = unions(every, kinds)
            put_header(tables, header)
            if tables.changed:
                tables.store()
    return after


def _slots(job: InProcessJob, step_id: str) -> list[dict[str, bytes]]:
    return [stored for (name, _), stored in job.states.items() if name == step_id and stored]
