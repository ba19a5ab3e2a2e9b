"""Starts a job again, also with another number of tasks, as a restore does: whole key groups move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from penstock.base.instants import MILLISECOND
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner, Inputs
from penstock.testing.saved_states import rescale_runner

__all__ = ["MOVES", "Stage", "again_after", "run_beside", "stages"]

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
    straight: BatchRunner,
    moved: BatchRunner,
    drawn: Sequence[Stage],
    click_of: Callable[[str, int, int], Any],
    inputs_of: Callable[[Mapping[str, list[Any]]], tuple[Inputs, Inputs]],
) -> Iterator[tuple[BatchOutcome, BatchOutcome]]:
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


def again_after(job: BatchRunner, move: str, tasks: int) -> BatchRunner:
    """The job after it has been started again, if that is the move, with so many tasks if it is rescaled."""
    if move == "rescale":
        return rescale_runner(job, tasks)
    if move == "restart":
        job.forget()
        job.wake()
    return job
