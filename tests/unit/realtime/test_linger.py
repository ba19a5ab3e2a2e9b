"""While many records come, rounds begin at some distance; else nothing waits."""

from __future__ import annotations

import itertools
import time

import pytest

from penstock.realtime.linger import Linger


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleep advances."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_few_records_wait_for_nothing(clock: list[float]) -> None:
    """Records that come one by one are processed at once."""
    linger = Linger()
    for _ in range(10):
        linger.note(1)
        linger.wait()
        linger.begin()
    assert clock[0] == 1000.0


def test_rounds_of_many_records_begin_at_a_distance(clock: list[float]) -> None:
    """However long a round takes; a slot that had to wait for records does not wait once more."""
    linger = Linger()
    begun: list[float] = []
    for took_s, idle_s in ((0.001, 0.0), (0.003, 0.0), (0.0005, 0.002), (0.04, 0.0), (0.001, 0.0)):
        linger.note(100)
        linger.wait()
        clock[0] += idle_s
        linger.begin()
        begun.append(clock[0])
        clock[0] += took_s
    apart = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert apart == pytest.approx([apart[0], apart[0] + 0.002, apart[0], 0.04], abs=1e-6)
    assert 0.002 <= apart[0] <= 0.010


def test_it_ends_with_the_many_records(clock: list[float]) -> None:
    """After a while with fewer records nothing waits any more."""
    linger = Linger()
    linger.note(100)
    linger.begin()
    clock[0] += 1.0
    linger.begin()
    linger.note(2)
    linger.wait()
    assert clock[0] == 1001.0
