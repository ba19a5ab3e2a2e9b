"""Two servers on machines that share only an object store: one leads, and the other takes over with all that it had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import apart_serve
import httpx
import own_disk
import pytest
import stored_driver
from job_process import await_true, kill, processes_of
from own_disk import DISK, can_have_own_disk
from s3_server import S3Server

from penstock.checkpoints.stored_home import place_of_home
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.server.store.store import Store

TOKEN = "token-of-both-servers-0123456789-0123456789"


class Machine:
    """A server with a disk that no other process sees, and its drivers."""

    def __init__(self, root: Path, name: str, bucket: str) -> None:
        self.name = name
        self._root = root
        self._tag = uuid.uuid4().hex
        disk = root / "disk"
        disk.mkdir(exist_ok=True)
        self._environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_TOKENS": f"ann admin {TOKEN}",
            "TMPDIR": str(disk),
            DISK: str(disk),
        }
        serve = [sys.executable, apart_serve.__file__, "--bind", "127.0.0.1:0", "-o", "json"]
        serve += ["--jobs", str(root / "definitions"), "--home", str(disk / name)]
        serve += ["--store", f"s3://{bucket}/server", "--shared", f"s3://{bucket}/shared"]
        self._command = [sys.executable, own_disk.__file__, "--exec", *serve]
        self.start()

    def start(self) -> None:
        """Start the server, on a new disk."""
        with (self._root / f"{self.name}.log").open("ab") as err:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=err,
                env=self._environment,
                start_new_session=True,
            )

    def await_start(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        url, header = json.loads(line)["url"], {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=url, headers=header, timeout=30)

    def log(self) -> str:
        return (self._root / f"{self.name}.log").read_text()[-3000:]

    def signal(self, number: int) -> None:
        """To the server and its drivers: their machine stands still, or goes on, or is gone."""
        for pid in processes_of(self._tag):
            kill(pid, number)

    def drivers(self) -> list[int]:
        return [pid for pid, command in processes_of(self._tag).items() if stored_driver.__name__ in command]

    def job(self, job_id: str) -> tuple[str, int]:
        """The status and the run of a job, as this server tells it."""
        found = self.client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return found["status"], found["run"]

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Apart:
    """Two machines, what they share, and a job."""

    def __init__(self, root: Path, s3: S3Server) -> None:
        if not can_have_own_disk():
            pytest.skip("this system gives a process no disk of its own")
        bucket = f"apart-{uuid.uuid4().hex[:8]}"
        s3.put(bucket, "there", b"")
        definitions = root / "definitions"
        definitions.mkdir()
        (definitions / "counts.py").touch()
        (definitions / "counts.yaml").write_text(
            "job: counts.py\nrestart: 'fixed-delay:attempts=99,delay=0s'\n"
        )
        self.store = Store.open(f"s3://{bucket}/server")
        self.machines = [Machine(root, name, bucket) for name in ("north", "south")]

    def start(self) -> None:
        """Wait for a leader, and ask the other for a job."""
        for machine in self.machines:
            machine.await_start()
        await_true(lambda: self.leads(), self.log)
        operation = self.pair()[1].client.post("/v1/jobs", json={"definition": "counts"})
        self.job: str = operation.raise_for_status().json()["job"]
        checkpoint = self.store.job(self.job).checkpoint
        self._out = ObjectFolder(place_of_home(f"{checkpoint}.out"), {}, AT_WORK)

    def leads(self) -> list[int]:
        """The processes that came to lead, one after the other."""
        events = [event for event in self.store.events() if event.what == "a manager leads"]
        return [int(event.detail["manager"].split("/")[1]) for event in events]

    def pair(self) -> tuple[Machine, Machine]:
        """The one that leads, and the other."""
        newest = self.leads()[-1]
        leader = next(machine for machine in self.machines if machine.process.pid == newest)
        return leader, next(machine for machine in self.machines if machine is not leader)

    def numbers(self) -> list[str]:
        return sorted(one.name for one in self._out.objects())

    def await_run(self, run: int, machine: Machine) -> None:
        """A run works, as a server says, and numbers come out."""
        await_true(lambda: machine.job(self.job) == ("RUNNING", run), self.log)
        before = len(self.numbers())
        await_true(lambda: len(self.numbers()) > before + 2, self.log)

    def runs(self) -> list[int]:
        """The runs that numbers came from, in the order of the numbers, which are all there."""
        names = self.numbers()
        assert names == [f"{number:06}" for number in range(len(names))]
        return [int(self._out.read(name)) for name in names]

    def log(self) -> str:
        events = [(event.what, event.detail) for event in self.store.events()]
        return f"{events[-12:]} {[machine.log() for machine in self.machines]}"

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        self.store.close()


@pytest.fixture
def apart(tmp_path: Path, s3: S3Server, s3_environment: pytest.MonkeyPatch) -> Iterator[Apart]:
    made = Apart(tmp_path, s3)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_the_other_server_takes_over_and_what_stood_still_commits_nothing(apart: Apart) -> None:
    """A machine stands still and comes back, a leader is killed, and then its machine: the job counts on, once each."""
    first, second = apart.pair()
    apart.await_run(1, second)

    first.signal(signal.SIGSTOP)
    apart.await_run(2, second)
    assert apart.pair()[0] is second
    before = len(apart.numbers())
    first.signal(signal.SIGCONT)
    await_true(lambda: not first.drivers(), apart.log)
    assert first.job(apart.job) == ("RUNNING", 2)
    await_true(lambda: "Another manager leads" in first.log(), apart.log)
    assert set(apart.runs()[before:]) <= {2}

    (driver,) = second.drivers()
    second.process.kill()
    second.process.wait()
    await_true(lambda: apart.pair()[0] is first, apart.log)
    # Its driver goes on.
    time.sleep(2 * apart_serve.RUN_LEASE_S)
    assert first.job(apart.job) == ("RUNNING", 2)
    kill(driver, signal.SIGKILL)
    apart.await_run(3, first)

    first.client.patch(f"/v1/jobs/{apart.job}", json={"desired": "CANCELED"}).raise_for_status()
    await_true(lambda: first.job(apart.job)[0] == "CANCELED", apart.log)
    assert first.drivers() == []
    runs = apart.runs()
    assert runs == sorted(runs)
    assert set(runs) == {1, 2, 3}
    statuses = [event for event in apart.store.events(apart.job) if event.what == "status"]
    leaders = [event.detail["leader"] for event in statuses]
    assert leaders == sorted(leaders)
    assert len(apart.leads()) == 3
