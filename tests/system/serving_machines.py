"""Servers and their drivers on machines that share only an object store, each machine with its own disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import own_disk
from job_process import PATIENCE_S, await_true, kill, processes_of
from spark_cluster import of_a_machine

from penstock.server.store.store import Store

__all__ = ["Machine", "Program", "ServingPair"]

TOKEN = "token-of-both-servers-0123456789-0123456789"


@dataclass(frozen=True)
class Program:
    """The Python arguments that start a server, and what a driver's command line contains."""

    serve: tuple[str, ...]
    driver: str


class Machine:
    """A server with a private disk, and its drivers."""

    def __init__(self, root: Path, name: str, bucket: str, program: Program) -> None:
        self.name = name
        self._program = program
        self._root = root
        self._tag = uuid.uuid4().hex
        disk = root / "disk"
        disk.mkdir(exist_ok=True)
        self._environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_TOKENS": f"ann admin {TOKEN}",
            **of_a_machine(disk),
        }
        serve = [sys.executable, *program.serve, "--bind", "127.0.0.1:0", "-o", "json"]
        serve += ["--jobs", str(root / "definitions"), "--home", str(disk / name)]
        serve += ["--store", f"s3://{bucket}/server", "--shared", f"s3://{bucket}/shared"]
        self._command = [sys.executable, own_disk.__file__, "--exec", *serve]
        self.start()

    def start(self) -> None:
        """Start the server on an empty disk. Drivers still running keep theirs."""
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
        """Send a signal to the server and its drivers: their machine is suspended, continues, or is lost."""
        for pid in processes_of(self._tag):
            kill(pid, number)

    def drivers(self) -> list[int]:
        return [pid for pid, command in processes_of(self._tag).items() if self._program.driver in command]

    def job(self, job_id: str) -> tuple[str, int]:
        """Return the status and the run of a job, according to this server."""
        found = self.client.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return found["status"], found["run"]

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """End the server; its drivers continue."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class ServingPair:
    """Two machines, the store that they share, and a job; a context manager.

    `definitions` is below the root, and the job's definition there is `counts`.
    """

    def __init__(self, root: Path, bucket: str, program: Program, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self.store = Store.open(f"s3://{bucket}/server")
        self.machines = [Machine(root, name, bucket, program) for name in ("north", "south")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for machine in self.machines:
            machine.close()
        self.store.close()

    def start(self) -> None:
        """Wait for a leader, and submit a job to the other server."""
        for machine in self.machines:
            machine.await_start()
        await_true(lambda: self.leads(), self.log, self._patience_s)
        operation = self.pair()[1].client.post("/v1/jobs", json={"definition": "counts"})
        self.job: str = operation.raise_for_status().json()["job"]

    def leads(self) -> list[int]:
        """Return the processes that became leader, in order."""
        events = [event for event in self.store.events() if event.what == "a manager leads"]
        return [int(event.detail["manager"].split("/")[1]) for event in events]

    def pair(self) -> tuple[Machine, Machine]:
        """Return the leading machine and the other one."""
        newest = self.leads()[-1]
        leader = next(machine for machine in self.machines if machine.process.pid == newest)
        return leader, next(machine for machine in self.machines if machine is not leader)

    def await_leader(self, machine: Machine) -> None:
        await_true(lambda: self.leads()[-1] == machine.process.pid, self.log, self._patience_s)

    def log(self) -> str:
        events = [(event.what, event.detail) for event in self.store.events()]
        return f"{events[-12:]} {[machine.log() for machine in self.machines]}"
