"""A micro-batch that a killed run left half done is completed as planned, whatever stops the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
from half_done import FolderPipes, Pipes, RoundsResult, TopicPipes, run_rounds
from pyspark.sql import SparkSession
from reliability import noting


def check(result: RoundsResult) -> None:
    """Check that every round went as intended, and nothing is lost, doubled or wrong."""
    assert result.pending == result.rounds
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0), result


@pytest.mark.chaos  # tests/crash kills and stops at each operation of a start
def test_a_stop_during_start_up_leaves_a_half_done_micro_batch_as_it_was_planned(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The kill comes when one of two folders has its file, the stop before the other has; then more input
    comes.
    """
    check(run_rounds(FolderPipes(tmp_path), tmp_path, spark, seed=1, rounds=1))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "seed", "rounds"), [("folders", 2, 20), ("topics", 3, 7), ("topics", 4, 7), ("topics", 5, 7)]
)
def test_twenty_half_done_micro_batches(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, kind: str, seed: int, rounds: int
) -> None:
    """The same at each moment after a sink and after the counts; with topics, some transactions were committed."""
    with noting("half-done micro-batches", f'-k "twenty_half_done and {kind}"', str(seed)) as injected:
        pipes: Pipes = FolderPipes(tmp_path)
        if kind == "topics":
            pipes = TopicPipes(request.getfixturevalue("kafka"))
        check(run_rounds(pipes, tmp_path, spark, seed, rounds, injected))
