"""Rescaling a managed job while its runs are killed, as by the out-of-memory killer: it continues without loss."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
from job_process import await_true, kill
from managed import Managed
from reliability import Injected, noting

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.service.job_resources import Operation

SEED = 5
PATIENCE_S = 300.0
# The products of a rescaling, in order: a note of the attempt, the state as a snapshot, the seed, the
# decision.
STATIONS = ("rescale-attempts.json", "rescaling", "seed.next", "rescaling.json")


class Rescales:
    """A job that is rescaled repeatedly, and killed meanwhile."""

    def __init__(self, managed: Managed, injected: Injected) -> None:
        self._managed = managed
        self._injected = injected
        self._chance = random.Random(SEED)
        self._job = managed.submit()
        self._tasks = 2
        managed.until(self._job, JobStatus.RUNNING, PATIENCE_S)
        # Without state there is no stage in which to kill it.
        managed.send()
        managed.await_tallies(PATIENCE_S)

    def rescale(self, stations: list[str]) -> None:
        """Request another number of tasks; kill a run at each of the stages, one after the other.

        After at most one kill the rescaling succeeds. After more, the job may continue unscaled.
        """
        managed = self._managed
        managed.send()
        asked = self._chance.choice([tasks for tasks in (1, 2, 3, 4) if tasks != self._tasks])
        operation = managed.service.rescale(self._job, asked, "ann")
        killed = 0
        while stations and self._kill_at(operation.id, stations[0]):
            stations = stations[1:]
            killed += 1
            managed.send(1)
        ended = self._await_end(operation.id)
        if ended.state == "DONE":
            self._tasks = asked
        else:
            assert killed > 1, ended
            assert ended.error is not None
            assert "and ask again" in str(ended.error), ended.error
        managed.until(self._job, JobStatus.RUNNING, PATIENCE_S)
        managed.await_tallies(PATIENCE_S)
        checkpoint = managed.service.checkpoint(self._job)
        assert json.loads((checkpoint / "lineage.json").read_bytes())["parallelism"] == self._tasks
        left = {path.name for path in checkpoint.iterdir()}
        assert not left & {*STATIONS}, left

    def _kill_at(self, operation: str, station: str) -> bool:
        """Kill the run when it reaches a stage; return whether that was before the end of the operation."""
        path = self._managed.service.checkpoint(self._job) / station
        deadline = time.monotonic() + PATIENCE_S
        while self._managed.service.operation(operation).state in ("PENDING", "RUNNING"):
            assert time.monotonic() < deadline, self._managed.log()
            # Remains of an earlier run stay until the next one looks.
            if path.exists() and self._is_new(path):
                time.sleep(self._chance.uniform(0, 0.3))
                self._injected.add(f"kill -9 within a rescaling, at {station}")
                self._kill_run()
                return True
            time.sleep(0.005)
        return False

    def _kill_run(self) -> None:
        kill(self._managed.pid(self._job), signal.SIGKILL)
        run = self._managed.service.get(self._job).run
        await_true(lambda: self._managed.service.get(self._job).run > run, self._managed.log, PATIENCE_S)

    def _is_new(self, path: Path) -> bool:
        begun = self._managed.home.run(self._job, self._managed.service.get(self._job).run)
        try:
            return path.stat().st_mtime > begun.stat().st_ctime
        except FileNotFoundError:
            return False

    def _await_end(self, operation: str) -> Operation:
        def ended() -> bool:
            return self._managed.service.operation(operation).state in ("DONE", "FAILED")

        await_true(ended, self._managed.log, PATIENCE_S)
        return self._managed.service.operation(operation)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_rescales_whose_runs_are_killed(tmp_path: Path) -> None:
    """One kill at each stage, then two in one rescaling, then none.

    unit/jobs/test_rescaling.py and test_rescale_attempts.py cover each moment without processes.
    """
    managed = Managed(tmp_path)
    try:
        with noting("rescales", "-k rescales_whose_runs_are_killed", str(SEED)) as injected:
            rescales = Rescales(managed, injected)
            for station in STATIONS:
                rescales.rescale([station])
            rescales.rescale(["rescaling", "rescaling"])
            rescales.rescale(["seed.next", "rescaling", "rescaling"])
            rescales.rescale([])
    finally:
        managed.close()
