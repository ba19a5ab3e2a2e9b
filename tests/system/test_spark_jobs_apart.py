"""A Spark job under two servers whose machines share only an object store, through which they also elect the
leader.

Each machine has a private disk. The leader is killed, then its driver, then the leader's machine is lost with
its disk: the other server takes over, and the job continues. Each count is written once.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cluster_feed import ClusterFeed
from file_feed import COUNTING_JOB, SENSORS
from job_process import await_true, kill
from own_disk import can_have_own_disk
from reliability import noting
from s3_server import S3Server
from serving_machines import Machine, Program, ServingPair

from penstock.server.runs.processes import process_of

# Two servers and a Spark run on two busy cores.
PATIENCE_S = 900.0
PENSTOCK = Program(("-m", "penstock.cli", "serve"), "penstock.server.runs.driver")
DEFINITION = """
job: recorded_job.py
master: local[2]
parallelism: 2
restart: fixed-delay:attempts=99,delay=0s
bindings:
{bindings}
"""


class Served(ServingPair):
    """Two machines, their shared store, and the job."""

    def __init__(self, root: Path, s3: S3Server) -> None:
        bucket = f"served-{uuid.uuid4().hex[:8]}"
        s3.put(bucket, "there", b"")
        self.feed = ClusterFeed(root, s3)
        definitions = root / "definitions"
        definitions.mkdir()
        shutil.copy(COUNTING_JOB, definitions)
        bindings = self.feed.settings(root).bindings
        (definitions / "counts.yaml").write_text(
            DEFINITION.format(
                bindings="".join(f"  {name}: {json.dumps(uri)}\n" for name, uri in bindings.items())
            )
        )
        super().__init__(root, bucket, PENSTOCK, PATIENCE_S)

    def begin_again(self, machine: Machine) -> None:
        machine.start()
        machine.await_start()

    def await_run(self, after: int, machine: Machine) -> int:
        """Wait until a server reports a run later than another, and counts from it; return its number."""
        found: list[int] = []

        def works() -> bool:
            try:
                status, run = machine.job(self.job)
            except httpx.HTTPError:
                # A busy server, or one whose store is down, is asked again.
                return False
            found.append(run)
            return status == "RUNNING" and run > after

        await_true(works, self.log, PATIENCE_S)
        self.await_progress()
        return found[-1]

    def await_progress(self) -> None:
        before = len(self.feed.rows())
        await_true(lambda: len(self.feed.rows()) > before, self.log, PATIENCE_S)

    def driver(self) -> tuple[Machine, int]:
        """Return the machine that has the driver, and its process."""
        ((machine, pid),) = [(machine, pid) for machine in self.machines for pid in machine.drivers()]
        return machine, pid


@pytest.fixture
def served(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    if not can_have_own_disk():
        pytest.skip("this system gives a process no disk of its own")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with Served(tmp_path, s3) as made:
        made.start()
        yield made


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_job_on_spark_goes_on_under_the_server_that_takes_over(served: Served, s3: S3Server) -> None:
    """This holds for each loss; a job whose server alone was killed is not even restarted."""
    seed = 33
    chance = random.Random(seed)
    feed = served.feed
    with noting("jobs on Spark under servers apart", "-k a_job_on_spark_goes_on", str(seed)) as injected:
        with feed.feeding():
            leader, other = served.pair()
            run = served.await_run(0, other)

            injected.add("kill -9 of the leader, whose driver goes on")
            machine, driver = served.driver()
            leader.end()
            served.await_leader(other)
            served.await_progress()
            assert process_of(driver) is not None
            assert other.job(served.job) == ("RUNNING", run)
            served.begin_again(leader)

            injected.add("kill -9 of the driver")
            for pid in machine.drivers():
                kill(pid, signal.SIGKILL)
            run = served.await_run(run, served.pair()[0])

            injected.add("kill -9 of the object store")
            s3.kill()
            time.sleep(chance.uniform(0, 4))
            s3.start()
            served.await_progress()

            injected.add("machine of the driver, with its server and its disk")
            lost, _ = served.driver()
            other = next(one for one in served.machines if one is not lost)
            lost.close()
            served.await_leader(other)
            run = served.await_run(run, other)
            served.begin_again(lost)

            injected.add("machine of the leader, with its disk")
            leader, other = served.pair()
            leader.close()
            served.await_leader(other)
            served.await_run(run, other)
            served.begin_again(leader)
        await_true(lambda: len(feed.rows()) >= feed.files * SENSORS, served.log, PATIENCE_S)
        leader, _ = served.pair()
        leader.client.patch(f"/v1/jobs/{served.job}", json={"desired": "CANCELED"}).raise_for_status()
        await_true(lambda: served.pair()[0].job(served.job)[0] == "CANCELED", served.log, PATIENCE_S)
        feed.assert_exactly_once()
