"""Two servers on machines that share only an object store: one leads, and the other takes over its jobs and
history.
"""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import apart_serve
import pytest
import stored_driver
from job_process import await_true, kill
from own_disk import can_have_own_disk
from reliability import Injected, noting
from s3_server import S3Server
from serving_machines import Machine, Program, ServingPair

from penstock.checkpoints.stored_home import place_of_home
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.server.runs.processes import process_of

QUICK = Program((apart_serve.__file__,), stored_driver.__name__)


class Apart(ServingPair):
    """Two machines, their shared store, and a job."""

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
        super().__init__(root, bucket, QUICK)

    def start(self) -> None:
        """Wait for a leader, and submit a job to the other server."""
        super().start()
        checkpoint = self.store.job(self.job).checkpoint
        self._out = ObjectFolder(place_of_home(f"{checkpoint}.out"), {}, AT_WORK)

    def numbers(self) -> list[str]:
        return sorted(one.name for one in self._out.objects())

    def await_run(self, run: int, machine: Machine) -> None:
        """Wait until a server reports a working run, and numbers are written."""
        await_true(lambda: machine.job(self.job) == ("RUNNING", run), self.log)
        self.await_progress()

    def want(self, desired: str) -> None:
        """Request an action, as a user does of the leader."""
        leader = self.pair()[0]
        leader.client.patch(f"/v1/jobs/{self.job}", json={"desired": desired}).raise_for_status()

    def await_progress(self) -> None:
        """Wait until a run writes more numbers."""
        before = len(self.numbers())
        await_true(lambda: len(self.numbers()) > before + 3, self.log)

    def check(self) -> None:
        """Check that each number was written once, run by run, each run started by one leader after the other."""
        runs = self.runs()
        assert runs == sorted(runs)
        statuses = [event for event in self.store.events(self.job) if event.what == "status"]
        leaders = [event.detail["leader"] for event in statuses]
        assert leaders == sorted(leaders)
        epochs = [event.detail["epoch"] for event in self.store.events() if event.what == "a manager leads"]
        assert epochs == sorted(set(epochs))

    def runs(self) -> list[int]:
        """Return the runs in the order of their numbers, which must be complete."""
        names = self.numbers()
        assert names == [f"{number:06}" for number in range(len(names))]
        return [int(self._out.read(name)) for name in names]


@pytest.fixture
def apart(tmp_path: Path, s3: S3Server, s3_environment: pytest.MonkeyPatch) -> Iterator[Apart]:
    with Apart(tmp_path, s3) as made:
        made.start()
        yield made


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_the_other_server_takes_over_and_what_stood_still_commits_nothing(apart: Apart) -> None:
    """A machine is suspended and resumes, a leader is killed, and its driver is asked to stop: the job
    continues.
    """
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
    second.end()
    apart.await_leader(first)
    # Its driver continues.
    time.sleep(2 * apart_serve.RUN_LEASE_S)
    assert first.job(apart.job) == ("RUNNING", 2)
    apart.want("PAUSED")
    await_true(lambda: first.job(apart.job)[0] == "PAUSED", apart.log)
    await_true(lambda: process_of(driver) is None, apart.log)
    apart.want("RUNNING")
    apart.await_run(3, first)
    (driver,) = first.drivers()
    kill(driver, signal.SIGKILL)
    apart.await_run(4, first)

    apart.want("CANCELED")
    await_true(lambda: first.job(apart.job)[0] == "CANCELED", apart.log)
    assert first.drivers() == []
    apart.check()
    assert set(apart.runs()) == {1, 2, 3, 4}
    assert len(apart.leads()) == 3


class Losses:
    """A sequence of losses of whatever the job needs most."""

    def __init__(self, apart: Apart, s3: S3Server, seed: int, injected: Injected) -> None:
        self._apart = apart
        self._s3 = s3
        self._chance = random.Random(seed)
        self._injected = injected

    def stand_still(self) -> None:
        """Suspend the leader's machine, and resume it while another continues."""
        self._injected.add("machine of the leader that stands still beyond all leases")
        leader, other = self._apart.pair()
        leader.signal(signal.SIGSTOP)
        self._apart.await_leader(other)
        if self._chance.random() < 0.5:
            self._apart.await_progress()
        leader.signal(signal.SIGCONT)

    def kill_leader(self) -> None:
        """Kill only the leading server."""
        self._injected.add("kill -9 of the leader")
        leader, other = self._apart.pair()
        leader.end()
        self._apart.await_leader(other)
        self._begin_again(leader)

    def lose_machine(self) -> None:
        """Lose the leader's machine and its disk."""
        self._injected.add("machine of the leader, with its disk")
        leader, other = self._apart.pair()
        leader.close()
        self._apart.await_leader(other)
        self._begin_again(leader)

    def kill_driver(self) -> None:
        """Kill the driver, on whichever machine."""
        drivers = [pid for machine in self._apart.machines for pid in machine.drivers()]
        if drivers:
            self._injected.add("kill -9 of the driver")
            kill(self._chance.choice(drivers), signal.SIGKILL)

    def kill_object_store(self) -> None:
        """Kill the shared object store for some seconds."""
        self._injected.add("kill -9 of the object store")
        self._s3.kill()
        time.sleep(self._chance.uniform(0, 4))
        self._s3.start()

    def _begin_again(self, machine: Machine) -> None:
        time.sleep(self._chance.uniform(0, 2))
        machine.start()
        machine.await_start()

    def lose_one(self) -> None:
        losses = [
            self.stand_still,
            self.kill_leader,
            self.lose_machine,
            self.kill_driver,
            self.kill_object_store,
        ]
        self._chance.choice(losses)()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_losses_of_servers_that_share_only_a_store(apart: Apart, s3: S3Server) -> None:
    """Thirty losses: the job continues, each number is written once, and runs never alternate."""
    seed = 31
    arguments = "-k losses_of_servers_that_share_only_a_store"
    with noting("lost leases", arguments, str(seed)) as injected:
        losses = Losses(apart, s3, seed, injected)
        for _ in range(30):
            losses.lose_one()
            apart.await_progress()
        apart.check()
