"""Managed jobs on Spark: drivers and managers are killed, and nothing is lost, doubled, or left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_process import await_true, kill, processes_of
from reliability import Injected, noting
from rooms import read_folder, write_file

from penstock.server.catalog import Catalog
from penstock.server.home import Home
from penstock.server.processes import begun_in
from penstock.server.service import JobInfo, JobService, Submission
from penstock.server.statuses import JobStatus
from penstock.server.store.connecting import sqlite_url
from penstock.server.store.store import Store

HERE = Path(__file__).parent
DEFINITION = """
job: tally_job.py
bindings:
  hits: jsonl:{hits}?max_files_per_batch=2
  tallies: jsonl:${{TALLIES}}
parallelism: 2
master: local[2]
restart: fixed-delay:attempts=5,delay=100ms
"""


class Managed:
    """A home, a definition of the tally job, and one manager after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hits, self.tallies, definitions = (root / name for name in ("hits", "tallies", "definitions"))
        for folder in (self.hits, self.tallies, definitions):
            folder.mkdir()
        shutil.copy(HERE / "tally_job.py", definitions)
        (definitions / "tally.yaml").write_text(DEFINITION.format(hits=self.hits))
        self.home = Home(root / "home")
        self._definitions = definitions
        self._tag = uuid.uuid4().hex
        self._sent = 0
        self.store = Store.open(sqlite_url(self.home.store))
        self.service = JobService(self.store, Catalog([definitions]), self.home)
        self.manager = self.start_manager()

    def start_manager(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_TOKEN": "canary",
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),
            "TALLIES": str(self.tallies),
        }
        with (self.root / "manager.log").open("ab") as log:
            self.manager = subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "manager_program.py"),
                    str(self.home.root),
                    str(self._definitions),
                ],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return self.manager

    def kill_manager(self) -> None:
        self.manager.kill()
        self.manager.wait()

    def send(self, count: int = 4) -> None:
        """Some files with hits of two pages."""
        for _ in range(count):
            records = [{"page": f"page-{n % 2}", "number": 10 * self._sent + n} for n in range(10)]
            write_file(self.hits, f"{self._sent:06}.jsonl", records)
            self._sent += 1

    def received(self) -> list[dict[str, Any]]:
        return read_folder(self.tallies)

    def await_tallies(self) -> None:
        """All hits are tallied, each once, in order."""
        await_true(lambda: len(self.received()) >= 10 * self._sent, self.log)
        found = self.received()
        assert Counter(r["number"] for r in found) == Counter(range(10 * self._sent))
        for page in ("page-0", "page-1"):
            tallies = [(r["hits"], r["number"]) for r in found if r["page"] == page]
            numbers = [n for n in range(10 * self._sent) if n % 2 == int(page[-1])]
            assert sorted(tallies) == list(enumerate(numbers, 1))

    def until(self, job_id: str, status: JobStatus) -> JobInfo:
        await_true(lambda: self.service.get(job_id).status is status, self.log)
        return self.service.get(job_id)

    def pid(self, job_id: str) -> int:
        begun = begun_in(self.home.run(job_id, self.service.get(job_id).run))
        assert begun is not None
        return begun.pid

    def log(self) -> str:
        outputs = "".join(path.read_text()[-2000:] for path in self.home.root.rglob("output.log"))
        events = [(event.what, event.detail) for event in self.store.events()]
        return f"{(self.root / 'manager.log').read_text()[-2000:]}\n{events}\n{outputs}"

    def processes(self) -> dict[int, str]:
        return processes_of(self._tag)

    def close(self) -> None:
        self.kill_manager()
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        self.store.close()


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Managed]:
    made = Managed(tmp_path)
    yield made
    made.close()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_jobs_outlive_kills_of_drivers_and_managers(managed: Managed) -> None:
    """A driver is started again, by the next manager too, which goes on with the drivers of the last; then a cancel.

    `test_a_few_kills` is what `make test` has of it on Spark; unit/server/test_manager.py has each of its stations.
    """
    with noting("job manager", "-k outlive_kills_of_drivers_and_managers") as injected:
        outlive_kills(managed, injected)


def outlive_kills(managed: Managed, injected: Injected) -> None:
    """One job through three kills, a savepoint, and a cancel."""
    submitted = managed.service.submit(Submission(definition="tally"), "ann").result
    assert submitted is not None
    job_id: str = submitted["job"]
    managed.send()
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()

    first = managed.pid(job_id)
    managed.send()
    injected.add("kill -9 of a driver")
    kill(first, signal.SIGKILL)
    await_true(lambda: managed.service.get(job_id).run == 2, managed.log)
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()

    second = managed.pid(job_id)
    injected.add("kill -9 of a manager")
    managed.kill_manager()
    managed.send()
    # Nobody manages it, and it works.
    managed.await_tallies()
    managed.start_manager()
    await_true(lambda: "2" in str(managed.store.events()[-1].detail.get("epoch")), managed.log)
    assert managed.pid(job_id) == second

    # Both at once: the manager that comes later finds that the driver has died.
    injected.add("kill -9 of a manager and its driver at once")
    managed.kill_manager()
    kill(second, signal.SIGKILL)
    managed.send()
    managed.start_manager()
    await_true(lambda: managed.service.get(job_id).run == 3, managed.log)
    managed.until(job_id, JobStatus.RUNNING)
    managed.await_tallies()
    # A run tells how it goes now and then.
    await_true(
        lambda: ((managed.service.get(job_id).progress or {}).get("records_in") or {}).get("hits"),
        managed.log,
    )

    savepoint = managed.service.savepoint(job_id, "ann")
    await_true(lambda: managed.service.operation(savepoint.id).state != "RUNNING", managed.log)
    await_true(lambda: managed.service.operation(savepoint.id).state in ("DONE", "FAILED"), managed.log)
    done = managed.service.operation(savepoint.id)
    assert done.result is not None, done.error
    assert [found.id for found in managed.service.savepoints()] == [done.result["id"]]
    assert managed.service.get(job_id).status is JobStatus.RUNNING

    begun_s = time.monotonic()
    managed.service.cancel(job_id, "ann")
    managed.until(job_id, JobStatus.CANCELED)
    assert time.monotonic() - begun_s < 10
    managed.kill_manager()
    await_true(lambda: not managed.processes(), lambda: f"left behind: {managed.processes()}")
    for path in managed.home.root.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path
