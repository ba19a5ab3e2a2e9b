"""Learned states in jobs: both forms give the same bits, for any division of records; bad input is a dead
letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from encoded_commands import applied, command_to, commands
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.errors import StateMismatchError
from penstock.testing import JobHarness
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import rescale_runner


@dataclass
class Sample:
    title: str
    bitrate: float | None
    stalls: float


@dataclass
class Scored:
    title: str
    score: float


class Quality(ps.ProcessFunction):
    """Scores how unusual a sample of a title is, record by record."""

    normal = ps.LearnedState(ps.Covariance("bitrate", "stalls"))

    def process_record(self, record: Sample, ctx: ps.Context) -> Iterator[Scored]:
        known = self.normal.score(record)
        score = self.normal.learn(record)
        assert known == score or np.isnan(known), "learning tells the score before"
        yield Scored(record.title, -1.0 if np.isnan(score) else score)


class QualityInColumns(ps.ProcessFunction):
    """The same in columns."""

    normal = ps.LearnedState(ps.Covariance("bitrate", "stalls"))

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        scores = np.nan_to_num(self.normal.learn(records, ctx.key_indices), nan=-1.0)
        return ctx.select(np.arange(len(scores)), "title", score=scores)


def quality_job(function: ps.ProcessFunction) -> ps.Job:
    job = ps.Job("quality", key_groups=8)
    samples = job.data_stream("samples", schema=Sample)
    samples.key_by("title").process("quality", function, output=Scored).sink_to("scores")
    return job


def ran(
    function: ps.ProcessFunction, batches: Any, moves: Sequence[int] = (), **more: Any
) -> dict[str, list[float]]:
    """Return the scores of each title in order, over micro-batches; `moves` are the task counts of restarts."""
    runner = BatchRunner(quality_job(function), **more)
    found: dict[str, list[float]] = {}
    for number, batch in enumerate(batches):
        if 0 < number <= len(moves):
            # The state is saved, and restored for other tasks.
            runner = rescale_runner(runner, moves[number - 1])
        again = runner.copy()
        result = runner.run({"samples": [("0", batch)]})
        assert again.run({"samples": [("0", batch)]}).data == result.data, "a replay gives the same bytes"
        for scored in result.output("scores"):
            found.setdefault(scored.title, []).append(scored.score)
    return found


SAMPLES = st.builds(Sample, st.sampled_from("aabcd"), st.floats(0, 1e4), st.floats(0, 10))


@given(
    batches=st.lists(st.lists(SAMPLES, max_size=30), max_size=4),
    parallelism=st.integers(1, 3),
    moves=st.lists(st.integers(1, 4), max_size=3),
)
@examples(25)
def test_both_forms_learn_the_same_however_records_are_cut(
    batches: list[list[Sample]], parallelism: int, moves: list[int]
) -> None:
    """Scores are equal to the bit in one or several micro-batches, on any tasks, after moves, as columns, and
    in real time.
    """
    whole = [sample for batch in batches for sample in batch]
    expected = ran(Quality(), [whole])
    assert ran(Quality(), batches, moves, parallelism=parallelism) == expected
    assert ran(QualityInColumns(), batches, moves, parallelism=parallelism) == expected
    assert ran(QualityInColumns(), batches, parallelism=parallelism, in_real_time=True) == expected


@pytest.mark.parametrize("function", [Quality(), QualityInColumns()])
def test_a_sample_without_a_number_is_a_dead_letter(function: ps.ProcessFunction) -> None:
    """It is not learned, and the others are."""
    samples = [Sample("a", 1.0, 0.0), Sample("a", None, 0.0), Sample("a", 2.0, 1.0)]
    result = BatchRunner(quality_job(function)).run({"samples": [("0", samples)]})
    (letter,) = result.dead_letters
    assert "needs" in letter.reason
    assert "bitrate" in letter.reason
    assert [scored.score for scored in result.output("scores")] == [-1.0, 0.0]


class Trips(ps.ProcessFunction):
    """Predicts the minutes of a trip, and emits its weights."""

    expected = ps.LearnedState(ps.LinearRegression("km", target="minutes", rate=0.1))

    def process_record(self, record: dict[str, Any], ctx: ps.Context) -> Iterator[Scored]:
        yield Scored("expected", self.expected.learn(record))


@dataclass
class Trip:
    line: str
    km: float
    minutes: float


def test_weights_are_values_with_names_that_commands_set() -> None:
    """A user may correct a model while the job runs; learning continues from there."""
    job = ps.Job("trips", key_groups=4)
    trips = job.data_stream("trips", schema=Trip)
    trips.key_by("line").process("trips", Trips(), output=Scored).sink_to("expected")
    running = BatchRunner(job)
    running.run({"trips": [("0", [Trip("m1", 1.0, 5.0)])]})
    weights = {"count": 100, "bias": 2.0, "of_km": 3.0}
    applied(running.run(commands(command_to("trips", "set", {"expected": weights}, key="m1"))))
    result = running.run({"trips": [("0", [Trip("m1", 2.0, 8.0)])]})
    assert [scored.score for scored in result.output("expected")] == [8.0]


class WiderQuality(ps.ProcessFunction):
    """Scores with the model of two fields until the model of other fields has learned enough."""

    normal = ps.LearnedState(ps.Covariance("bitrate", "stalls"))
    wider = ps.LearnedState(ps.Covariance("stalls"))

    def process_record(self, record: Sample, ctx: ps.Context) -> Iterator[Scored]:
        known = self.wider.get()
        scores = [model.learn(record) for model in (self.normal, self.wider)]
        yield Scored(record.title, scores[known is not None and known.count >= 3])


class OtherQuality(QualityInColumns):
    """The same state with other fields."""

    normal = ps.LearnedState(ps.Covariance("bitrate", "stalls", "title_age"))


def test_a_changed_model_is_refused_or_stands_beside_the_old_one() -> None:
    """Weights of other fields do not exist; a new state learns them while the old one still scores."""
    first, second = JobHarness(quality_job(Quality())), JobHarness(quality_job(Quality()))
    samples = [Sample("a", float(number % 5), float(number % 3)) for number in range(20)]
    for run in (first, second):
        run.send("samples", samples)
        run.run_batch()
    place = first.savepoint()
    with pytest.raises(StateMismatchError, match="'mean_title_age' must have a value"):
        JobHarness(quality_job(OtherQuality()), from_savepoint=place)
    beside = JobHarness(quality_job(WiderQuality()), from_savepoint=place)
    for run in (beside, second):
        run.send("samples", samples)
    found = [scored.score for scored in beside.run_batch().output("scores")]
    known = [scored.score for scored in second.run_batch().output("scores")]
    assert found[:3] == known[:3]
    assert found[3:] != known[3:]
