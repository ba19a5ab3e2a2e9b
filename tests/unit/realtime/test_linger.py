"""While many records come, work waits for common moments; else nothing waits."""

from __future__ import annotations

import time

import pytest

from penstock.realtime.linger import SLOTS_AFTER_S, Linger


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
        linger.wait(0.0)
    assert clock[0] == 1000.0


def test_readers_and_slots_meet(clock: list[float]) -> None:
    """All wait for the same moments, slots for those a little after the readers'."""
    linger = Linger()
    moments: dict[str, list[float]] = {"reader": [], "slot": []}
    for _ in range(5):
        for who, after_s in (("reader", 0.0), ("slot", SLOTS_AFTER_S)):
            linger.note(100)
            clock[0] += 0.0003
            before_s = clock[0]
            linger.wait(after_s)
            assert 0 < clock[0] - before_s <= 0.010
            moments[who].append(clock[0])
    ticks = [b - a for a, b in zip(moments["reader"], moments["reader"][1:], strict=False)]
    assert ticks == pytest.approx([ticks[0]] * 4, abs=1e-6)
    for reader, slot in zip(moments["reader"], moments["slot"], strict=True):
        assert slot - reader == pytest.approx(SLOTS_AFTER_S, abs=1e-6)


def test_it_ends_with_the_many_records(clock: list[float]) -> None:
    """After a while with fewer records nothing waits any more."""
    linger = Linger()
    linger.note(100)
    clock[0] += 1.0
    linger.note(2)
    linger.wait(0.0)
    assert clock[0] == 1001.0
