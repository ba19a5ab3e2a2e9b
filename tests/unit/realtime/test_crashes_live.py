"""Crashes in real time: random schedules of lost state, failing sinks and tasks, new workers and new drivers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from live_runner import LiveRunner
from test_intervals import by_room, emitted, fold, sums_job

EVENTS: Final = (
    "nothing",
    "nothing",
    "lost commit",
    "failing sink",
    "lost task",
    "new workers",
    "new driver",
)


class Schedule:
    """A random schedule of a job in real time. `alerts` and `counts` are what was committed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random: Final = random.Random(seed)
        self.live: Final = LiveRunner(sums_job(), folder, self._random.randint(1, 3))
        self.readings: list[tuple[int, int]] = []
        self.alerts: list[tuple[int, int, int]] = []
        self.counts: list[tuple[int, int, int]] = []
        self.happened: list[str] = []

    def run(self, intervals: int) -> None:
        """Run several intervals with crashes, and a last one without."""
        with self.live:
            for _ in range(intervals):
                event = self._random.choice(EVENTS)
                self.happened.append(event)
                self._happen(event)
                self._commit(lambda: self._send(self._random.randrange(10)))
            self._commit(lambda: None)

    def _send(self, count: int) -> None:
        for _ in range(count):
            room, value = self._random.randrange(9), self._random.randrange(1, 9)
            self.live.send("readings", {"room": room, "value": value})
            self.readings.append((room, value))
            if self._random.random() < 0.3:
                time.sleep(0.002)

    def _happen(self, event: str) -> None:
        live = self.live
        if event == "lost commit":
            # The interval is durable, and perhaps its outputs are visible, but Spark has not committed its state.
            live.run(lambda: self._send(self._random.randrange(10)), commits=False)
        elif event == "failing sink":
            sink = self._random.choice(["alerts", "counts"])
            live.sinks[sink][0].fails_at_write = True
            self._fail(lambda: self._send(20))
            live.sinks[sink][0].fails_at_write = False
        elif event == "lost task":
            self._fail(lambda: (self._send(self._random.randrange(10)), live.lose_task()))
        if event in ("new driver", "lost commit") and self._random.random() < 0.5:
            live.__exit__(None, None, None)
            live.__enter__()
        if event == "new workers" or self._random.random() < 0.3:
            live.forget()

    def _fail(self, during: Callable[[], Any]) -> None:
        with pytest.raises(ExceptionGroup):
            self.live.run(during)

    def _commit(self, during: Callable[[], None]) -> None:
        outcome = self.live.run(during)
        self.alerts += emitted(outcome, "alerts")
        self.counts += emitted(outcome, "counts")


def check(folder: Path, seed: int, intervals: int) -> None:
    """Run a schedule; afterwards every output is there once, as the model computes it from the readings."""
    schedule = Schedule(folder, seed)
    schedule.run(intervals)
    expected = fold(schedule.readings, {})
    assert by_room(schedule.alerts) == by_room(expected), schedule.happened
    seen = {value: [total for _, one, total in schedule.counts if one == value] for _, value, _ in expected}
    wanted = {value: list(range(1, 1 + sum(one == value for _, one, _ in expected))) for value in seen}
    assert {value: sorted(found) for value, found in seen.items()} == wanted, schedule.happened


@pytest.mark.parametrize("seed", range(3))
def test_random_crashes_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Both steps pass, over several intervals with a random failure before each."""
    check(tmp_path, seed, 6)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_random_crashes_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """The same for 200 schedules of ten intervals."""
    check(tmp_path, seed, 10)
