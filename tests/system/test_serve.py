"""`penstock serve` as users start it: a job is submitted, seen and canceled by HTTP, and the server ends in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from job_process import await_true, kill, processes_of
from rooms import read_folder, write_file

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
            kill(pid)
        self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def test_a_job_is_run_and_canceled_by_http(served: Served) -> None:
    """It is RUNNING, works, and is CANCELED within 10 s; SIGTERM ends the server, whose secrets are nowhere."""
    write_file(served.hits, "0.jsonl", [{"page": "a", "number": n} for n in range(10)])
    asked = served.client.post("/v1/jobs", json={"definition": "tally"}, headers={"Idempotency-Key": "1"})
    assert asked.status_code == 201, asked.text
    job_id = asked.json()["job"]
    await_true(lambda: served.job(job_id)["status"] == "RUNNING", served.log)
    await_true(lambda: len(read_folder(served.tallies)) == 10, served.log)
    states = served.client.get(f"/v1/jobs/{job_id}/state").raise_for_status().json()
    assert states[0]["states"]

    seen = httpx.get(f"{served.started['url']}/v1/jobs", headers={"Authorization": f"Bearer {CANARY}"})
    assert [job["id"] for job in seen.json()["items"]] == [job_id]
    assert httpx.get(f"{served.started['url']}/v1/jobs").status_code == 401

    begun = time.monotonic()
    operation = served.client.patch(f"/v1/jobs/{job_id}", json={"desired": "CANCELED"})
    assert operation.status_code == 202
    await_true(lambda: served.job(job_id)["status"] == "CANCELED", served.log)
    assert time.monotonic() - begun < 10
    assert served.client.get(operation.headers["Location"]).json()["state"] == "DONE"

    with served.client.stream("GET", "/v1/events/stream") as events:
        told = ""
        for text in events.iter_text():
            told += text
            if "CANCELED" in told:
                break
        served.process.send_signal(signal.SIGTERM)
        events.read() if not events.is_stream_consumed else None
    assert served.process.wait(30) == 0
    assert not (served.home / "server.json").exists()
    for path in served.root.rglob("*"):
        if path.is_file() and path.name != "serve.out":
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert served.started["token"].encode() not in content, path
