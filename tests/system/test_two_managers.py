"""Two managers on one PostgreSQL: one leads; when it is killed or suspended, only the other acts."""

from __future__ import annotations

import json
import os
import random
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
import small_serve
from job_process import await_true, kill, processes_of
from postgres_server import PostgresServer
from reliability import Injected, noting

from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import process_of, started_process
from penstock.server.store.row_types import Event
from penstock.server.store.store import Store

TAKES_OVER_S = 15.0
LEASE_MS = 10_000  # the default lease of servers is longer
TOKEN = "token-of-both-servers-0123456789-0123456789"


class Server:
    """One `penstock serve`, whose jobs have drivers without Spark."""

    def __init__(self, root: Path, store: str, tag: str) -> None:
        self._log = root / f"{uuid.uuid4().hex}.log"
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": tag,
            "PENSTOCK_SERVER_STORE": store,
            "PENSTOCK_SERVER_TOKENS": f"ann admin {TOKEN}",
        }
        command = [sys.executable, small_serve.__file__, "--bind", "127.0.0.1:0", "-o", "json"]
        command += ["--jobs", str(root / "definitions"), "--home", str(root / "home")]
        with self._log.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=err, env=environment, start_new_session=True
            )

    def await_start(self) -> None:
        """Wait until it listens, and log in."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        started = json.loads(line)
        self.client = httpx.Client(
            base_url=started["url"], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30
        )

    def log(self) -> str:
        return self._log.read_text()[-3000:]

    def submit(self, definition: str) -> str:
        job: str = (
            self.client.post("/v1/jobs", json={"definition": definition}).raise_for_status().json()["job"]
        )
        return job

    def want(self, job_id: str, desired: str) -> None:
        self.client.patch(f"/v1/jobs/{job_id}", json={"desired": desired}).raise_for_status()

    def status(self, job_id: str) -> str:
        status: str = self.client.get(f"/v1/jobs/{job_id}").raise_for_status().json()["status"]
        return status

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class TwoManagers:
    """A home and a store with two servers, of which one leads."""

    def __init__(self, root: Path, store: str) -> None:
        definitions = root / "definitions"
        definitions.mkdir()
        for name, words in (("works", "works"), ("finishes", "finishes")):
            (definitions / f"{name}.py").write_text(words)
            (definitions / f"{name}.yaml").write_text(
                f"job: {name}.py\nrestart: 'fixed-delay:attempts=99,delay=0s'\n"
            )
        self.home = ServerDirectory(root / "home")
        self.store = Store.open(store)
        self._tag = uuid.uuid4().hex
        self.servers = [Server(root, store, self._tag), Server(root, store, self._tag)]
        for server in self.servers:
            server.await_start()
        await_true(lambda: self.leader() is not None, self.log)

    def leads(self) -> list[Event]:
        return [event for event in self.store.events() if event.what == "a manager leads"]

    def leader(self) -> Server | None:
        """Return the server that became leader last."""
        pids = {str(server.process.pid): server for server in self.servers}
        found = self.leads()
        return pids[found[-1].detail["manager"].split("/")[1]] if found else None

    def pair(self) -> tuple[Server, Server]:
        """Return the leader and the other server."""
        leader = self.leader()
        assert leader is not None
        return leader, next(server for server in self.servers if server is not leader)

    def running(self, server: Server, definition: str = "works") -> str:
        """Submit a job, and wait until it runs."""
        job_id = server.submit(definition)
        await_true(lambda: server.status(job_id) == "RUNNING", self.log)
        return job_id

    def runs_as(self, job_id: str, run: int) -> bool:
        """Return whether a job runs in the run of that number, from a single query."""
        job = self.store.job(job_id)
        return job.status is JobStatus.RUNNING and job.epoch == run

    def runs(self, job_id: str) -> list[str]:
        """Return the runs that began to work, by their own records."""
        return (Path(self.store.job(job_id).checkpoint) / "runs").read_text().split()

    def pid(self, job_id: str) -> int:
        begun = started_process(self.home.run(job_id, self.store.job(job_id).epoch))
        assert begun is not None
        return begun.pid

    def log(self) -> str:
        events = [(event.job_id, event.what, event.detail) for event in self.store.events()]
        return f"{events[-20:]} {[server.log() for server in self.servers]}"

    def close(self) -> None:
        for server in self.servers:
            server.client.close()
            server.kill()
            assert server.process.stdout is not None
            server.process.stdout.close()
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        self.store.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[TwoManagers]:
    made = TwoManagers(tmp_path_factory.mktemp("two"), postgres.new_schema())
    yield made
    made.close()


def test_a_leader_that_stood_still_changes_nothing_when_it_goes_on(two: TwoManagers) -> None:
    """The new leader has carried out requests; the old one follows, and still accepts requests."""
    old, new = two.pair()
    before = len(two.leads())
    goes_on, canceled, ended = two.running(old), two.running(old), two.running(old)
    old.signal(signal.SIGSTOP)
    begun_s = time.monotonic()
    new.want(canceled, "CANCELED")
    started = new.submit("works")
    await_true(
        lambda: new.status(started) == "RUNNING" and new.status(canceled) == "CANCELED", two.log, TAKES_OVER_S
    )
    assert time.monotonic() - begun_s < TAKES_OVER_S
    # A driver dies that is a child of the old leader.
    kill(two.pid(ended), signal.SIGKILL)
    (Path(two.store.job(ended).checkpoint) / "at-work").unlink()
    await_true(lambda: two.runs_as(ended, 2), two.log)
    pids = {job_id: two.pid(job_id) for job_id in (goes_on, ended, started)}
    assert len(two.leads()) == before + 1
    seen = two.store.events()[-1].id

    old.signal(signal.SIGCONT)
    # The leader carries out requests made to the follower.
    asked = old.submit("finishes")
    await_true(lambda: old.status(asked) == "FINISHED", two.log)
    old.want(started, "PAUSED")
    await_true(lambda: new.status(started) == "PAUSED", two.log)
    old.want(started, "RUNNING")
    await_true(lambda: old.status(started) == "RUNNING", two.log)
    await_true(lambda: "Another manager leads" in old.log(), two.log)

    assert two.leader() is new
    behind = [event for event in two.store.events(after=seen) if event.what == "status"]
    assert {event.job_id for event in behind} == {asked, started}
    assert {event.detail["leader"] for event in behind} == {two.leads()[-1].detail["epoch"]}
    assert two.pid(goes_on) == pids[goes_on]
    assert two.pid(ended) == pids[ended]
    assert all(process_of(two.pid(job_id)) is not None for job_id in (goes_on, ended, started))
    assert [two.runs(job_id) for job_id in (goes_on, ended, started, asked)] == [
        ["1"],
        ["1", "2"],
        ["1", "2"],
        ["1"],
    ]


def test_when_the_leader_is_killed_the_other_acts(two: TwoManagers, record_property: Any) -> None:
    """Within 15 s of the kill it has carried out pending requests: a job runs, another is canceled."""
    leader, other = two.pair()
    goes_on, canceled = two.running(leader), two.running(other)
    pid = two.pid(goes_on)

    leader.kill()
    begun_s = time.monotonic()
    new = other.submit("works")
    other.want(canceled, "CANCELED")
    await_true(
        lambda: other.status(new) == "RUNNING" and other.status(canceled) == "CANCELED", two.log, TAKES_OVER_S
    )
    took_s = time.monotonic() - begun_s
    record_property("acts_after_s", round(took_s, 1))
    assert took_s < TAKES_OVER_S
    assert two.leader() is other
    # Nothing was started twice, and the driver of the other job was not affected.
    assert two.pid(goes_on) == pid
    assert process_of(pid) is not None
    assert [two.runs(job_id) for job_id in (goes_on, canceled, new)] == [["1"]] * 3


class Leases:
    """Four jobs of two servers, whose leases are lost repeatedly."""

    def __init__(self, two: TwoManagers, seed: int, injected: Injected) -> None:
        self._two = two
        self._chance = random.Random(seed)
        self._injected = injected
        self._jobs = [two.running(two.servers[number % 2]) for number in range(4)]
        self._killed: dict[str, int] = dict.fromkeys(self._jobs, 0)

    def stand_still(self) -> None:
        """Suspend the leader until the other has done its work, and resume it while that continues."""
        leader, other = self._two.pair()
        before = len(self._two.leads())
        self._injected.add("leader that stands still beyond its lease")
        leader.signal(signal.SIGSTOP)
        killed = self._kill_drivers()
        await_true(lambda: len(self._two.leads()) > before, self._two.log, 3 * TAKES_OVER_S)
        if self._chance.random() < 0.5:
            self._await_runs(killed)
        leader.signal(signal.SIGCONT)
        self._await_runs(killed)
        assert self._two.leader() is other

    def take(self) -> None:
        """Let a third leader take the lease while both are suspended; they do nothing until it expires."""
        self._injected.add("lease of the leader taken by another manager")
        store = self._two.store
        for server in self._two.servers:
            server.signal(signal.SIGSTOP)
        await_true(lambda: store.lead("elsewhere/0/x", LEASE_MS), self._two.log, 3 * TAKES_OVER_S)
        killed = self._kill_drivers()
        seen = store.events()[-1].id
        for server in self._two.servers:
            server.signal(signal.SIGCONT)
        time.sleep(self._chance.uniform(1, 4))
        what = {event.what for event in store.events(after=seen)}
        assert not what & {"status", "a manager leads"}, self._two.log()
        store.resign("elsewhere/0/x")
        self._await_runs(killed)

    def check(self) -> None:
        """Check that each run has begun once, by successive leaders, and its driver is there."""
        for job_id in self._jobs:
            assert self._two.runs(job_id) == [str(run) for run in range(1, self._killed[job_id] + 2)]
            assert process_of(self._two.pid(job_id)) is not None
        leaders = [e.detail["leader"] for e in self._two.store.events() if e.what == "status"]
        assert leaders == sorted(leaders)

    def _kill_drivers(self) -> list[str]:
        """Kill drivers, so that the leader has work."""
        jobs = self._chance.sample(self._jobs, self._chance.randint(1, 3))
        for job_id in jobs:
            kill(self._two.pid(job_id), signal.SIGKILL)
            (Path(self._two.store.job(job_id).checkpoint) / "at-work").unlink()
            self._killed[job_id] += 1
        return jobs

    def _await_runs(self, jobs: list[str]) -> None:
        def all_run() -> bool:
            return all(self._two.runs_as(job_id, self._killed[job_id] + 1) for job_id in jobs)

        await_true(all_run, self._two.log, 3 * TAKES_OVER_S)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_leaders_that_lose_their_lease_double_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    """Twenty times, while drivers die: each is restarted once."""
    seed = 17
    with noting("lost leases", "-k leaders_that_lose_their_lease", str(seed)) as injected:
        two = TwoManagers(tmp_path, postgres.new_schema())
        try:
            leases = Leases(two, seed, injected)
            for number in range(20):
                (leases.take if number % 3 == 2 else leases.stand_still)()
                leases.check()
        finally:
            for server in two.servers:
                server.signal(signal.SIGCONT)
            two.close()
