"""First contact of a new user: a server without definitions in an empty home, and the page at its URL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from job_process import await_true, kill, processes_of

__all__ = ["FirstContact"]


class FirstContact:
    """`penstock serve` in its own process; `penstock` is the program with its first arguments."""

    def __init__(self, penstock: list[str], root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self._tag = uuid.uuid4().hex
        self.begun_s = time.monotonic()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_SERVER")},
            "PENSTOCK_TEST_RUN": self._tag,
            "SPARK_LOCAL_DIRS": str(root / "spark"),
        }
        command = [*penstock, "serve", "--home", str(self.home), "--bind", "127.0.0.1:0", "-o", "json"]
        with (root / "serve.out").open("wb") as out, (root / "serve.err").open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, env=environment, cwd=root, start_new_session=True
            )
        await_true(self._has_begun, self.log)
        # The login is shown only on a terminal; programs of the same user find it in the home.
        self.started: dict[str, Any] = json.loads((self.home / "server.json").read_text())
        self.client = httpx.Client(base_url=self.started["url"], timeout=30)

    def _has_begun(self) -> bool:
        assert self.process.poll() is None, self.log()
        return "\n" in (self.root / "serve.out").read_text()

    @property
    def seconds(self) -> float:
        """Return the seconds since the command was started."""
        return time.monotonic() - self.begun_s

    def open(self) -> httpx.Response:
        """Open the printed URL as a browser does; return the page that it leads to."""
        return self.client.get(self.started["login"], follow_redirects=True)

    def records(self) -> int:
        """Return how many records the demo has read, from the metrics behind its charts; 0 before it runs."""
        path = f"/v1/jobs/{self.started['demo']}"
        if self.client.get(path).raise_for_status().json()["status"] != "RUNNING":
            return 0
        metrics = self.client.get(f"{path}/metrics")
        batches = metrics.json()["batches"] if metrics.is_success else []
        return sum(sum(batch["records_in"].values()) for batch in batches)

    def log(self) -> str:
        """Return the logged errors."""
        outputs = "".join(path.read_text()[-2000:] for path in self.home.rglob("output.log"))
        return f"{(self.root / 'serve.err').read_text()[-3000:]}\n{outputs}"

    def close(self) -> None:
        """Stop all processes."""
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        self.process.wait()
