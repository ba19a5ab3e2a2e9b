"""A managed job in processes of its own: a home, a definition, and a succession of managers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from job_process import PATIENCE_S, await_true, kill, processes_of
from rooms import read_folder, write_file

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import started_process
from penstock.server.service.job_resources import Job, Submission
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

__all__ = ["SECRET", "Managed"]

SECRET = "managed-8c2e-0123456789"
"""What runs must not get from the environment of their manager."""

HERE = Path(__file__).parent
DEFINITION = """
job: {job}
bindings:
  hits: jsonl:{hits}?max_files_per_batch=2
  tallies: jsonl:${{TALLIES}}
parallelism: 2
master: local[2]
restart: exponential-delay:initial=100ms,max=3s,stable=1m
"""


class Managed:
    """A home, a definition of a job, and a succession of managers.

    Args: root: an empty folder. disk: the place of home and output, if it is another. job: a job with the
    streams of the tally job. environment: variables in addition to those of the tests.
    """

    def __init__(
        self,
        root: Path,
        disk: Path | None = None,
        job: str = "tally_job.py",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        disk = disk or root
        self.hits, self.tallies, definitions = root / "hits", disk / "tallies", root / "definitions"
        for folder in (self.hits, self.tallies, definitions):
            folder.mkdir()
        self._environment = environment or {}
        shutil.copy(HERE / job, definitions)
        (definitions / "tally.yaml").write_text(DEFINITION.format(job=job, hits=self.hits))
        self.home = ServerDirectory(disk / "home")
        self._definitions = definitions
        self._tag = uuid.uuid4().hex
        self.sent = 0
        self.store = Store.open(sqlite_url(self.home.store))
        self.service = JobService(self.store, Catalog([definitions]), self.home)
        self.manager = self.start_manager()

    def start_manager(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_TOKEN": SECRET,
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),
            "TALLIES": str(self.tallies),
            **self._environment,
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
        """Send some files with hits of two pages."""
        for _ in range(count):
            records = [{"page": f"page-{n % 2}", "number": 10 * self.sent + n} for n in range(10)]
            write_file(self.hits, f"{self.sent:06}.jsonl", records)
            self.sent += 1

    def received(self) -> list[dict[str, Any]]:
        return read_folder(self.tallies)

    def submit(self) -> str:
        """Submit the job; return its id."""
        submitted = self.service.submit(Submission(definition="tally"), "ann").result
        assert submitted is not None
        job_id: str = submitted["job"]
        return job_id

    def await_tallies(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all hits are tallied, each once, in order."""
        await_true(lambda: len(self.received()) >= 10 * self.sent, self.log, timeout_s)
        found = self.received()
        assert Counter(r["number"] for r in found) == Counter(range(10 * self.sent))
        for page in ("page-0", "page-1"):
            tallies = [(r["hits"], r["number"]) for r in found if r["page"] == page]
            numbers = [n for n in range(10 * self.sent) if n % 2 == int(page[-1])]
            assert sorted(tallies) == list(enumerate(numbers, 1))

    def until(self, job_id: str, status: JobStatus, timeout_s: float = PATIENCE_S) -> Job:
        await_true(lambda: self.service.get(job_id).status is status, self.log, timeout_s)
        return self.service.get(job_id)

    def pid(self, job_id: str) -> int:
        begun = started_process(self.home.run(job_id, self.service.get(job_id).run))
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
