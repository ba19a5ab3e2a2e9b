"""Patience: a task keeps retrying while anything is written at all."""

from __future__ import annotations

import time

import pytest

from penstock.sinks.patience import Patience


def test_rests_grow_until_it_has_been_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts from the last successful write."""
    clock = [100.0]
    rests: list[float] = []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    patience = Patience(20)
    while patience.rest(has_progressed=False):
        assert len(rests) < 20
    assert rests == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert patience.rest(has_progressed=True)
    assert rests[-1] == 0.1
