"""A micro-batch that a killed run has left half done is finished as it was planned, whatever stops the next run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from half_done import FolderPipes, RoundsResult, TopicPipes, run_rounds, write_results

from penstock.local.kafka import KafkaBroker


def check(result: RoundsResult) -> None:
    """Every round was what it should be, and nothing is lost, doubled or wrong."""
    assert result.pending == result.rounds
    assert (result.lost, result.doubled, result.wrong) == (0, 0, 0), result


def test_a_stop_during_start_up_leaves_a_half_done_micro_batch_as_it_was_planned(tmp_path: Path) -> None:
    """Killed when one of two folders has its file; stopped before the other gets its own; then more comes."""
    check(run_rounds(FolderPipes(tmp_path), tmp_path, seed=1, rounds=1))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_twenty_half_done_micro_batches_of_folders(tmp_path: Path) -> None:
    """As above, at each moment behind a sink and behind the counts."""
    result = run_rounds(FolderPipes(tmp_path), tmp_path, seed=2, rounds=20)
    write_results("half_done_folders", "make chaos ARGS='-k twenty_half_done'", asdict(result))
    check(result)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_twenty_half_done_micro_batches_of_topics(kafka: KafkaBroker, tmp_path: Path) -> None:
    """As above, with transactions of which some were committed."""
    result = run_rounds(TopicPipes(kafka), tmp_path, seed=3, rounds=20)
    write_results("half_done_topics", "make chaos ARGS='-k twenty_half_done'", asdict(result))
    check(result)
