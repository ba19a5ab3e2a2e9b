"""A server's home whose managers start real processes, without Spark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from empty_stores import open_store
from left_drivers import kill_left_drivers

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.manager import Manager, ManagerSettings
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import started_process
from penstock.server.service.job_resources import Job, Submission
from penstock.server.service.service import JobService

__all__ = ["PATIENCE_S", "ManagedPlace"]

PATIENCE_S = 40.0


class ManagedPlace:
    """A home with definitions, a service, and successive managers."""

    def __init__(self, root: Path) -> None:
        self.definitions = root / "definitions"
        self.definitions.mkdir()
        self.home = ServerDirectory(root / "home")
        self.store = open_store(self.home.store)
        self.catalog = Catalog([self.definitions])
        self.service = JobService(self.store, self.catalog, self.home)
        self.manager = self.new_manager()

    def new_manager(self, lease_s: float = 0.2) -> Manager:
        return Manager(self.store, self.catalog, self.home, ManagerSettings(poll_s=0.02, lease_s=lease_s))

    def define(self, name: str, words: str, restart: str = "none") -> None:
        (self.definitions / f"{name}.py").write_text(words)
        (self.definitions / f"{name}.yaml").write_text(f"job: {name}.py\nrestart: '{restart}'\n")

    def submit(self, words: str, restart: str = "none", **more: Any) -> str:
        self.define("small", words, restart)
        operation = self.service.submit(Submission(definition="small", **more), "ann")
        assert operation.result is not None
        job_id: str = operation.result["job"]
        return job_id

    def running(self, words: str, restart: str = "none", **more: Any) -> str:
        """Submit a job, and let the manager work until it runs."""
        job_id = self.submit(words, restart, **more)
        self.until(job_id, JobStatus.RUNNING)
        return job_id

    def until(self, job_id: str, status: JobStatus, manager: Manager | None = None) -> Job:
        """Let the manager work until a job has a status."""
        self.work(lambda: self.service.get(job_id).status is status, lambda: self.history(job_id), manager)
        return self.service.get(job_id)

    def work(
        self, done: Callable[[], bool], told: Callable[[], Any] = str, manager: Manager | None = None
    ) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, told()
            (manager or self.manager).look()
            # Polling takes CPU time that the drivers need to start.
            time.sleep(0.05)

    def history(self, job_id: str) -> list[Any]:
        return [(event.what, event.detail) for event in self.service.events(job_id)]

    def statuses(self, job_id: str) -> list[str]:
        return [event.detail["to"] for event in self.service.events(job_id) if event.what == "status"]

    def runs(self, job_id: str) -> list[str]:
        return (self.service.checkpoint(job_id) / "runs").read_text().split()

    def pid(self, job_id: str) -> int:
        begun = started_process(self.home.run(job_id, self.service.get(job_id).run))
        assert begun is not None
        return begun.pid

    def kill_driver(self, job_id: str) -> None:
        """Kill the driver of a job; its successor may be running."""
        os.kill(self.pid(job_id), signal.SIGKILL)
        (self.service.checkpoint(job_id) / "at-work").unlink()

    def close(self) -> None:
        kill_left_drivers(self.home.root)
        self.store.close()
