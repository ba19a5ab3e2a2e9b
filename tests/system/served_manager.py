"""`penstock serve` in a process of its own, with the tally job as its only definition."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
from job_process import await_true, kill, processes_of

HERE = Path(__file__).parent
DEFINITION = """
job: tally_job.py
bindings:
  hits: jsonl:{hits}
  tallies: jsonl:{tallies}
parallelism: 2
master: local[2]
"""
CANARY = "canary-8c2e-0123456789-0123456789-0123456789"


class Served:
    """A server in a process of its own, with the tally job."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.hits, self.tallies, self.definitions = (
            root / name for name in ("hits", "tallies", "definitions")
        )
        for folder in (self.hits, self.tallies, self.definitions):
            folder.mkdir()
        shutil.copy(HERE / "tally_job.py", self.definitions)
        (self.definitions / "tally.yaml").write_text(DEFINITION.format(hits=self.hits, tallies=self.tallies))
        self._tag = uuid.uuid4().hex
        self.process = self._start()
        self.started: dict[str, Any] = json.loads(self._first_line())
        self.client = httpx.Client(
            base_url=self.started["url"],
            headers={"Authorization": f"Bearer {self.started['token']}"},
            timeout=30,
        )

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_TOKENS": f"ann viewer {CANARY}",
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),
        }
        command = [sys.executable, "-m", "penstock.cli", "serve", "--bind", "127.0.0.1:0", "-o", "json"]
        command += ["--jobs", str(self.definitions), "--home", str(self.home)]
        with (self.root / "serve.out").open("wb") as out, (self.root / "serve.err").open("wb") as err:
            return subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)

    def _first_line(self) -> str:
        await_true(lambda: "\n" in (self.root / "serve.out").read_text(), self.log)
        return (self.root / "serve.out").read_text().splitlines()[0]

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return found

    def log(self) -> str:
        outputs = "".join(path.read_text()[-2000:] for path in self.home.rglob("output.log"))
        return f"{(self.root / 'serve.err').read_text()[-3000:]}\n{outputs}"

    def close(self) -> None:
        self.client.close()
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        self.process.wait()
