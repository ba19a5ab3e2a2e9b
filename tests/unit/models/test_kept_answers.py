"""Answers that calls of a group took are taken again when the work is repeated."""

from __future__ import annotations

from pathlib import Path

from penstock.models.kept_answers import ByTime, KeptAnswers, write_answers

TAKEN = ([0, 1], [1], [2, 0])


def interval(folder: Path, times: list[int], taken: list[list[int]]) -> list[list[int] | None]:
    """Run a round at each time, which calls a group once; return what each found of an earlier attempt."""
    found: list[list[int] | None] = []
    before: dict[str, ByTime] = {}
    for now_ms, one in zip(times, taken, strict=True):
        answers = KeptAnswers(str(folder), "score", now_ms, 0, before)
        known = answers.next("fraud")
        found.append(known)
        answers.note("fraud", one if known is None else known)
        for group, by_time in answers.new.items():
            for at, some in by_time.items():
                before.setdefault(group, {}).setdefault(at, []).extend(some)
    write_answers(str(folder), "score", 0, before)
    return found


def test_rounds_of_the_same_millisecond_are_told_apart(tmp_path: Path) -> None:
    """Each takes what it took in the first attempt, whatever time would decide now."""
    times = [1_000, 1_000, 1_003]
    assert interval(tmp_path, times, list(TAKEN)) == [None, None, None]
    assert interval(tmp_path, times, [[2], [2], [2]]) == list(TAKEN)


def test_the_next_interval_is_no_repetition(tmp_path: Path) -> None:
    """Its rounds have other times."""
    interval(tmp_path, [1_000, 1_000], [[0], [1]])
    assert interval(tmp_path, [1_004, 1_004], [[1], [0]]) == [None, None]
