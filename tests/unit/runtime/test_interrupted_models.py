"""Models that learn, are dumped, and continue elsewhere from the dump, with the same weights and scores.

This covers learners of penstock, River and scikit-learn, in both forms of a function, in any file format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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
from river import linear_model, naive_bayes, preprocessing, tree
from sklearn.linear_model import SGDClassifier, SGDRegressor

import penstock as ps
from penstock.snapshots.snapshot_reader import read_table
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import FORMATS, json_rows
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.saved_states import begin_from, take_dump

LEARNERS: dict[str, Any] = {
    "covariance": lambda: ps.Covariance("bitrate", "stalls"),
    "river, in columns": lambda: ps.River(
        preprocessing.StandardScaler() | linear_model.LinearRegression(), "bitrate", "stalls", target="rating"
    ),
    "river, some as documents": lambda: ps.River(naive_bayes.GaussianNB(), "bitrate", target="was_left"),
    "river, documents": lambda: ps.River(
        tree.HoeffdingTreeRegressor(grace_period=4), "bitrate", "stalls", target="rating"
    ),
    "scikit-learn": lambda: ps.ScikitLearn(
        SGDRegressor(random_state=1), "bitrate", "stalls", target="rating"
    ),
    "scikit-learn, some wait": lambda: ps.ScikitLearn(
        SGDClassifier(loss="log_loss", random_state=1), "bitrate", "stalls", target="was_left", batch=3
    ),
}


@dataclass
class Viewing:
    title: str
    bitrate: float
    stalls: float
    rating: float
    was_left: bool


@dataclass
class Told:
    title: str
    score: float


class ByRecord(ps.ProcessFunction):
    """Learns record by record."""

    def process_record(self, record: Viewing, ctx: ps.Context) -> Iterator[Told]:
        known = self.model.score(record)
        score = self.model.learn(record)
        assert np.float64(known).tobytes() == np.float64(score).tobytes(), "learning tells the score before"
        yield Told(record.title, -1.0 if np.isnan(score) else score)


class ByBatch(ps.ProcessFunction):
    """Learns columns."""

    def process_batch(
        self, records: pa.RecordBatch, ctx: ps.BatchContext
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        scores = np.nan_to_num(self.model.learn(records, ctx.key_indices), nan=-1.0)
        return ctx.select(np.arange(len(scores)), "title", score=scores)


def job_of(form: Any, learner: Any, key_groups: int) -> ps.Job:
    function = type(form.__name__, (form,), {"model": ps.LearnedState(learner)})
    job = ps.Job("viewings", key_groups=key_groups)
    viewings = job.data_stream("viewings", schema=Viewing)
    viewings.key_by("title").process("learn", function(), output=Told).sink_to("told")
    return job


@dataclass
class Part:
    """Micro-batches of one run of the job before it is dumped, and the run's settings."""

    batches: list[list[Viewing]]
    form: Any
    parallelism: int
    key_groups: int
    file_format: str
    in_real_time: bool


def ran(learner: Any, parts: list[Part]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the scores of each title, and the final learned state; each run starts from the previous dump."""
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            job = job_of(part.form, learner, part.key_groups)
            runner = BatchRunner(job, parallelism=part.parallelism, in_real_time=part.in_real_time)
            if number:
                begin_from(runner, f"{folder}/{number - 1}")
            for batch in part.batches:
                for told in runner.run({"viewings": [("0", batch)]}).output("told"):
                    scores.setdefault(told.title, []).append(told.score)
            manifest = take_dump(runner, f"{folder}/{number}", part.file_format)
        store = open_store(f"{folder}/{len(parts) - 1}")
        rows = [row for batch in read_table(store, manifest, "learn/model") for row in json_rows(batch)]
    return scores, {row["key"]: repr(row["value"]) for row in rows}


# Such numbers use every digit.
NUMBERS = st.integers(0, 999).map(lambda number: number / 997)
VIEWINGS = st.builds(Viewing, st.sampled_from("aaabc"), NUMBERS, NUMBERS, NUMBERS, st.booleans())
PARTS = st.builds(
    Part,
    st.lists(st.lists(VIEWINGS, max_size=12), min_size=1, max_size=3),
    st.sampled_from([ByRecord, ByBatch]),
    st.integers(1, 3),
    st.sampled_from([4, 8]),
    st.sampled_from(FORMATS),
    st.booleans(),
)


@pytest.mark.parametrize("name", LEARNERS)
@given(parts=st.lists(PARTS, min_size=1, max_size=3))
@examples(9)
def test_nothing_tells_that_a_model_was_interrupted(name: str, parts: list[Part]) -> None:
    """The scores of all records and the final weights are equal to the bit."""
    learner = LEARNERS[name]()
    whole = [viewing for part in parts for batch in part.batches for viewing in batch]
    expected = ran(learner, [Part([whole], ByRecord, 1, 4, "jsonl", False)])
    assert ran(learner, parts) == expected


@pytest.mark.parametrize("name", LEARNERS)
def test_both_forms_give_the_same_for_many_records(name: str) -> None:
    """One or many micro-batches have enough records for models to converge and to grow."""
    random = np.random.default_rng(5)
    rows = zip(
        random.choice(list("abcd"), 240).tolist(),
        *random.random((3, 240)).tolist(),
        (random.random(240) < 0.5).tolist(),
        strict=True,
    )
    viewings = [Viewing(*row) for row in rows]
    learner = LEARNERS[name]()
    expected = ran(learner, [Part([viewings], ByRecord, 1, 4, "jsonl", False)])
    halves = [
        Part(
            [viewings[at : at + 40] for at in range(begin, begin + 120, 40)],
            form,
            parallelism,
            8,
            "csv",
            False,
        )
        for begin, form, parallelism in ((0, ByBatch, 2), (120, ByRecord, 3))
    ]
    assert ran(learner, halves) == expected
    assert ran(learner, [Part([viewings], ByBatch, 2, 4, "parquet", True)]) == expected


@pytest.mark.parametrize("form", [ByRecord, ByBatch])
def test_weights_are_set_by_commands_and_broken_ones_hurt_their_key_alone(form: Any) -> None:
    """A number that a user sets takes effect at once; an unreadable document makes dead letters with the
    reason.
    """
    learner = ps.River(linear_model.LinearRegression(intercept_lr=0.0), "bitrate", target="rating")
    runner = BatchRunner(job_of(form, learner, 4))
    viewings = [Viewing(title, 0.5, 0.0, 0.0, False) for title in "ab"]
    runner.run({"viewings": [("0", viewings)]})
    for key, weights in (("a", {"weights_bitrate": 3.0}), ("b", {"document": '{"#":"os:system"}'})):
        applied(runner.run(commands(command_to("learn", "set", {"model": weights}, key=key))))
    result = runner.run({"viewings": [("0", viewings)]})
    assert [(told.title, told.score) for told in result.output("told")] == [("a", 1.5)]
    (letter,) = result.dead_letters
    assert "os:system, which is not a model of river" in letter.reason
