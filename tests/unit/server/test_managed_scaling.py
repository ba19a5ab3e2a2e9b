"""Autoscaling by a real manager in real time, of a job without Spark; and who goes first when users ask."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_driver
import waiting_driver
from empty_stores import open_store
from left_drivers import kill_left_drivers

from penstock.metrics.batch_metrics import BatchMetrics, newest_batch_metrics
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.manager.scaling_state import AUTOSCALER
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store.user_requests import Asked

PATIENCE_S = 60.0
POLICY = """
  window: 1s
  scale_in_after: 3s
  cool_down: 2s
  longest_interval: 200ms
  longest_lag: 2s
  catch_up: 10s
"""


class Managed:
    """A home with one job, and managers that come and go."""

    def __init__(self, root: Path, text: str, scaling: str) -> None:
        definitions = root / "definitions"
        definitions.mkdir()
        (definitions / "wait.py").write_text(text)
        (definitions / "wait.yaml").write_text(
            f"job: wait.py\nparallelism: 1\nrestart: none\nscaling: {scaling}\n"
        )
        self.home = ServerDirectory(root / "home")
        self.store = open_store(self.home.store)
        self._catalog = Catalog([definitions])
        self.service = JobService(self.store, self._catalog, self.home)
        result = self.service.submit(Submission(definition="wait"), "ann").result
        assert result is not None
        self.id: str = result["job"]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def manager(self) -> Manager:
        settings = ManagerSettings(poll_s=0.05, lease_s=1.0, scaling_s=0.2)
        return Manager(self.store, self._catalog, self.home, settings)

    def start(self) -> None:
        """Let a new manager work, in place of the one before."""
        self.stop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.manager().run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def metrics(self) -> BatchMetrics:
        found = newest_batch_metrics(self.service.checkpoint(self.id))
        assert found is not None
        return found

    def lag(self) -> int:
        return self.metrics().lag["visits"].records or 0

    def rescales(self) -> list[tuple[int, int]]:
        return [(o.arguments["before"], o.arguments["parallelism"]) for o in self.store.rescales(self.id)]

    def history(self) -> list[Any]:
        return [(event.what, event.detail) for event in self.service.events(self.id)]

    def until(self, done: Callable[[], bool], work: Callable[[], Any] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, (self.history(), self.service.get(self.id).scaling)
            work()
            time.sleep(0.05)

    def close(self) -> None:
        self.stop()
        kill_left_drivers(self.home.root)
        self.store.close()


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Managed]]:
    made: list[Managed] = []

    def make(driver: Any, text: str, scaling: str = "null") -> Managed:
        monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, driver.__file__))
        made.append(Managed(tmp_path, text, scaling))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.chaos  # in real time; test_autoscaler.py has the same decisions in simulated time
@pytest.mark.timeout(300)
def test_a_load_that_rises_fourfold_and_falls_again(managed: Any, tmp_path: Path) -> None:
    """Lag comes back to its level without a hand, in at most four rescales, though the manager is replaced twice."""
    load = tmp_path / "load"
    load.write_text("600")
    job = managed(waiting_driver, str(load), POLICY)
    job.start()
    job.until(lambda: job.service.get(job.id).scaling.decision is not None)
    job.until(lambda: job.service.get(job.id).scaling.decision["cause"] == "fits")
    assert job.rescales() == []
    level = 2 * 600 * waiting_driver.INTERVAL_S

    def rewrite(rate: str) -> None:
        # The driver reads it at any time, and must not find it empty.
        load.with_suffix(".new").write_text(rate)
        load.with_suffix(".new").rename(load)

    rewrite("2400")
    job.until(lambda: bool(job.rescales()))
    job.start()
    job.until(lambda: job.metrics().parallelism >= 4 and job.lag() < 4 * level)

    rewrite("600")
    job.until(lambda: len(job.rescales()) >= 2)
    job.start()
    job.until(lambda: job.metrics().parallelism < 4 and job.lag() < level)
    job.until(lambda: job.service.get(job.id).scaling.decision["cause"] in ("fits", "at-least"))

    changes = job.rescales()
    assert 2 <= len(changes) <= 4
    ups = [after > before for before, after in changes]
    assert ups == sorted(ups, reverse=True)
    assert {operation.created_by for operation in job.store.rescales(job.id)} == {AUTOSCALER}
    ends = [e.detail for e in job.service.events(job.id) if e.what == "rescale is done"]
    assert [end["downtime_s"] for end in ends] == [waiting_driver.DOWNTIME_S] * len(changes)
    assert job.service.get(job.id).run == 1


def test_rescales_are_done_in_the_order_in_which_they_were_asked_for(managed: Any) -> None:
    """One at a time, whatever their ids."""
    job = managed(small_driver, "works")
    manager = job.manager()
    job.until(lambda: job.service.get(job.id).status is JobStatus.RUNNING, manager.look)
    for tasks in (2, 5, 3):
        job.service.rescale(job.id, tasks, "ann")
    job.until(lambda: not job.store.unfinished_of(job.id), manager.look)
    found = job.store.rescales(job.id)
    assert [o.result["after"] for o in found] == [2, 5, 3]
    ends = [o.ended_ms for o in found]
    assert ends == sorted(ends)


@pytest.mark.parametrize("wish", ["pause", "rescale", "stop"])
def test_a_rescale_of_the_autoscaler_gives_way_to_a_user(managed: Any, wish: str) -> None:
    """What it has asked for and nobody has begun is not done any more."""
    job = managed(small_driver, "works")
    manager = job.manager()
    job.until(lambda: job.service.get(job.id).status is JobStatus.RUNNING, manager.look)
    asked = Asked(AUTOSCALER, "rescale", {"parallelism": 8, "before": 1})
    own = job.store.begin_operation(job.id, asked)
    users = getattr(job.service, wish)(job.id, *((3,) if wish == "rescale" else ()), "ann")
    job.until(lambda: not job.store.unfinished_of(job.id), manager.look)
    given = job.store.operation(own.id)
    assert given.state == "FAILED"
    assert given.error is not None
    assert "A user" in given.error
    assert job.store.operation(users.id).state == "DONE"
