"""A server in its own process, with a job, and an HTTP client for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from job_process import await_true, kill, processes_of

__all__ = ["Served"]

HERE = Path(__file__).parent


class Served:
    """A server whose folder of definitions has one job.

    Args: root: an empty folder. job_file: the file of the job, beside this one. definition: its definition as
    text. environment: variables in addition to those of the tests. port: where it listens; 0 for a free port.
    more: further arguments of the server.
    """

    def __init__(
        self,
        root: Path,
        job_file: str,
        definition: str,
        environment: Mapping[str, str],
        port: int = 0,
        more: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.home = root / "home"
        self.definitions = root / "definitions"
        self.definitions.mkdir()
        shutil.copy(HERE / job_file, self.definitions)
        name = Path(job_file).stem.removesuffix("_job")
        (self.definitions / f"{name}.yaml").write_text(definition)
        self._environment = environment
        self._port = port
        self._more = more
        self._tag = uuid.uuid4().hex
        self.start()

    def start(self) -> None:
        """Start the server, for the first time or after it has ended."""
        self.process = self._begin()
        # The token is shown only on a terminal; programs of the same user find it in the home.
        self._await_first_line()
        self.started: dict[str, Any] = json.loads((self.home / "server.json").read_text())
        self.client = httpx.Client(
            base_url=self.started["url"],
            headers={"Authorization": f"Bearer {self.started['token']}"},
            timeout=30,
        )

    def _begin(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),
            **self._environment,
        }
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "serve",
            "--bind",
            f"127.0.0.1:{self._port}",
            "-o",
            "json",
        ]
        command += ["--jobs", str(self.definitions), "--home", str(self.home), *self._more]
        working = self.root / "cwd"
        working.mkdir(exist_ok=True)
        with (self.root / "serve.out").open("wb") as out, (self.root / "serve.err").open("ab") as err:
            return subprocess.Popen(
                command, stdout=out, stderr=err, env=environment, cwd=working, start_new_session=True
            )

    def _await_first_line(self) -> None:
        await_true(lambda: "\n" in (self.root / "serve.out").read_text(), self.log)

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the server's view of a job."""
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return found

    def log(self) -> str:
        """Return the last output of the server and its runs."""
        outputs = "".join(path.read_text()[-2000:] for path in self.home.rglob("output.log"))
        return f"{(self.root / 'serve.err').read_text()[-3000:]}\n{outputs}"

    def processes(self) -> dict[int, str]:
        """Return the server and all processes that it started, by id, with their command lines."""
        return processes_of(self._tag)

    def close(self) -> None:
        """Stop all processes."""
        self.client.close()
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        self.process.wait()
