"""Answers of a model group are stored, and used again when the work is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.models.kept_answers import SlotAnswers
from penstock.models.library_places import FolderPlace

TAKEN = ([0, 1], [1], [2, 0])


def interval(folder: Path, times: list[int], taken: list[list[int]]) -> list[list[int] | None]:
    """Run rounds at these times, each calling a group once; return what each found of an earlier attempt."""
    found: list[list[int] | None] = []
    of_slot = SlotAnswers(FolderPlace(str(folder)), "score", (0,))
    for now_ms, one in zip(times, taken, strict=True):
        answers = of_slot.at(now_ms)
        known = answers.next("fraud")
        found.append(known)
        answers.note("fraud", one if known is None else known)
        of_slot.add(answers)
    of_slot.write()
    return found


def test_rounds_of_the_same_millisecond_are_told_apart(tmp_path: Path) -> None:
    """Each gets its answer of the first attempt, whatever would be chosen now."""
    times = [1_000, 1_000, 1_003]
    assert interval(tmp_path, times, list(TAKEN)) == [None, None, None]
    assert interval(tmp_path, times, [[2], [2], [2]]) == list(TAKEN)


def test_the_next_interval_is_no_repetition(tmp_path: Path) -> None:
    """Its rounds have other times."""
    interval(tmp_path, [1_000, 1_000], [[0], [1]])
    assert interval(tmp_path, [1_004, 1_004], [[1], [0]]) == [None, None]


def test_of_two_attempts_that_answer_differently_one_ends(tmp_path: Path) -> None:
    """Otherwise its work would count with answers that a replay does not use."""
    attempts = [SlotAnswers(FolderPlace(str(tmp_path)), "score", (0,)) for _ in range(2)]
    for number, attempt in enumerate(attempts):
        run = attempt.at(1_000)
        assert run.next("fraud") is None
        run.note("fraud", [number])
        attempt.add(run)
    attempts[0].write()
    with pytest.raises(CheckpointError, match="other answers"):
        attempts[1].write()
    attempts[0].write()
    assert SlotAnswers(FolderPlace(str(tmp_path)), "score", (0,)).at(1_000).next("fraud") == [0]
