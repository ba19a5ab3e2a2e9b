"""Random schedules of runs, commands, rescales, crashes and failing disks: all output is there once in the end."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from life import Life
from reliability import note_result
from schedules import live_schedule, schedule

_SCHEDULES = 30
_PARTS = 20
_IN_CHAOS = int(os.environ.get("PENSTOCK_SCHEDULES", "20000"))


def _lived(life: Life, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Return how often each fault was injected in some schedules, and what went wrong."""
    faults: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        told = live_schedule(life, schedule(seed))
        faults += told.faults
        faults["refusal with the remedy"] += told.outcome.result == "refused"
        if told.outcome.result == "violation":
            lines = "\n".join([*told.outcome.why, *told.trace])
            wrong.append(f"replay it: python tests/crash/replay.py {seed}\n{lines}")
    return faults, wrong


def test_a_seed_gives_the_same_schedule(life: Life) -> None:
    """So a failure can be reproduced."""
    one, other = live_schedule(life, schedule(7)), live_schedule(life, schedule(7))
    assert one.trace == other.trace


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.chaos) for part in (1, 2, 3))])
def test_some_random_schedules(life: Life, part: int) -> None:
    """The first seeds are run."""
    faults, wrong = _lived(life, part * _SCHEDULES, _SCHEDULES)
    assert not wrong, wrong[0]
    assert faults["kill"] > 5


@pytest.mark.chaos
@pytest.mark.parametrize("part", range(_PARTS))
def test_many_random_schedules(life: Life, part: int) -> None:
    """Later seeds are run; PENSTOCK_SCHEDULES says how many."""
    count = _IN_CHAOS // _PARTS
    first = 1000 + part * count
    faults, wrong = _lived(life, first, count)
    command, seeds = "-k test_many_random_schedules", f"{first} to {first + count - 1}"
    note_result("random schedules", "schedule", count, len(wrong), command, seeds)
    for fault, number in sorted(faults.items()):
        note_result("random schedules", fault, number, 0, command, seeds)
    assert not wrong, "\n\n".join(wrong)
