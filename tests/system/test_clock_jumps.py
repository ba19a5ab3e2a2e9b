"""The wall clock jumps under a manager and its job, which has timers, expiring state and leases."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from job_process import await_true, kill
from managed import Managed
from moved_clock import MovedClock
from reliability import Injected, noting
from rooms import Record

from penstock.runtime.cuts import batch_numbers
from penstock.server.lifecycle.statuses import JobStatus

SEED = 11
JUMPS = 30
PATIENCE_S = 400.0
_HOUR, _DAY = 3600, 86_400
_PLACES = (-400 * _DAY, -_DAY, -_HOUR, -5, 0, 5, _HOUR, _DAY, 400 * _DAY)


def jump(managed: Managed, clock: MovedClock, job_id: str, injected: Injected) -> int:
    """Move the clock while hits arrive; now and then kill the driver, whose restart depends on the clock.
    Return the kills.
    """
    chance = random.Random(SEED)
    kills, at_s = 0, 0
    for number in range(JUMPS):
        managed.send(2)
        before, at_s = at_s, chance.choice([place for place in _PLACES if place != at_s])
        injected.add(f"clock goes {'back' if at_s < before else 'on'} by seconds to years")
        clock.move(at_s)
        time.sleep(chance.uniform(0.2, 4))
        if number % 10 == 5:
            injected.add("kill -9 of a driver under a clock that jumps")
            run = managed.service.get(job_id).run
            kill(managed.pid(job_id), signal.SIGKILL)
            clock.move(at_s - _DAY)
            time.sleep(1)
            clock.move(at_s)
            await_true(lambda run=run: managed.service.get(job_id).run > run, managed.log, PATIENCE_S)
            kills += 1
        # So that each jump is seen by a micro-batch.
        await_true(lambda: hits_of(managed) == 10 * managed.sent, managed.log, PATIENCE_S)
    return kills


def hits_of(managed: Managed) -> int:
    """Return how many hits have been emitted, without timers."""
    return sum(not one["called"] for one in managed.received())


def check(sent: int, received: list[Record]) -> None:
    """Check that each hit came once, with counts that continue or restart after expiry, and each timer fired
    once.
    """
    assert Counter(one["number"] for one in received if not one["called"]) == Counter(range(sent))
    assert Counter(one["number"] for one in received if one["called"]) == Counter(range(sent))
    for page in ("page-0", "page-1"):
        tallies = [one for one in received if one["page"] == page and not one["called"]]
        tallies.sort(key=lambda one: one["number"])
        assert [one["hits"] for one in tallies] == list(range(1, len(tallies) + 1))
        recent = 0
        for one in tallies:
            assert one["recent"] in (1, recent + 1), one
            recent = one["recent"]
        assert max(one["recent"] for one in tallies) < len(tallies), "nothing has expired"


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_clock_jumps_cost_nothing(tmp_path: Path) -> None:
    """Nothing is lost, doubled or fired twice, and only killed runs end.

    unit/server/store_cases.py tests leases, and unit/runtime the state of a job, under a clock that goes
    back.
    """
    clock = MovedClock(tmp_path)
    with noting("clock jumps", "-k clock_jumps_cost_nothing", str(SEED)) as injected:
        managed = Managed(tmp_path, job="clocked_job.py", environment=clock.environment)
        try:
            job_id = managed.submit()
            managed.send()
            managed.until(job_id, JobStatus.RUNNING, PATIENCE_S)
            kills = jump(managed, clock, job_id, injected)
            # Later than all registered timers.
            last_s = 2 * max(_PLACES)
            clock.move(last_s)
            count = 2 * 10 * managed.sent
            await_true(lambda: len(managed.received()) >= count, managed.log, PATIENCE_S)
            check(10 * managed.sent, managed.received())
            found = managed.service.get(job_id)
            assert (found.status, found.run) == (JobStatus.RUNNING, 1 + kills)
            check_the_clock_was_moved(managed.service.checkpoint(job_id), last_s)
        finally:
            managed.close()


def check_the_clock_was_moved(checkpoint: Path, by_s: int) -> None:
    """Check that the clock did move; otherwise the test would prove nothing."""
    newest = batch_numbers(checkpoint / "offsets")[-1]
    noted = json.loads((checkpoint / "offsets" / str(newest)).read_text().splitlines()[1])
    assert abs(noted["batchTimestampMs"] / 1000 - time.time() - by_s) < PATIENCE_S
