"""A standalone cluster whose machines share nothing but an object store: a job runs there, and survives kills."""

from __future__ import annotations

import base64
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from cluster_feed import ClusterFeed
from file_feed import COUNTING_JOB, SENSORS
from job_process import JobProcess, await_true, kill, run_arguments
from own_disk import can_have_own_disk
from reliability import noting
from s3_server import S3Server
from sink_kills import await_progress, kill_process
from spark_cluster import WORKERS, SparkCluster, of_a_machine, quick_jvm

SUITE = "clusters that share a store"
ROUNDS = 6
CORES = 2
WORKING = ("executor", "worker of Spark")
DRIVING = ("driver", "JVM")
# Two JVMs start for each run, and the state is loaded from the store.
PATIENCE_S = 1200.0
PROGRAM = (str(Path(__file__).with_name("own_disk.py")),)


class Apart:
    """A cluster, its store, and a job. Each of its machines has the disk `machine`, which no other one sees."""

    def __init__(self, folder: Path, server: S3Server, cluster: SparkCluster, disk: Path) -> None:
        self.feed = ClusterFeed(folder, server)
        self.cluster = cluster
        self.server = server
        self._folder = folder
        self._disk = disk
        self._environment = {**of_a_machine(disk), "SPARK_LOCAL_IP": "127.0.0.1"}

    def job(self, *more: str) -> JobProcess:
        """Start the job on a machine with an empty disk."""
        options, class_path = quick_jvm()
        arguments = [
            *run_arguments(COUNTING_JOB, self.feed.settings(self._folder)),
            f"--master={self.cluster.url}",
            f"--spark=spark.cores.max={CORES}",
            # Both workers are on this host, on which executors would read each other's files.
            "--spark=spark.shuffle.readHostLocalDisk=false",
            f"--spark=spark.executor.cores={CORES // len(self.cluster.workers)}",
            "--spark=spark.executor.memory=600m",
            f"--spark=spark.executor.extraJavaOptions={options}",
            f"--spark=spark.executor.extraClassPath={class_path}",
            *more,
        ]
        return JobProcess(arguments, self._folder, self._environment, PROGRAM)

    def working_folder(self, job: JobProcess) -> Path:
        """The folder in which a driver works, on its own disk."""
        (found,) = Path(f"/proc/{job.process.pid}/root{self._disk}").glob("penstock-checkpoint-*")
        return found

    def kill_one(self, victim: str, chance: random.Random) -> None:
        """Kill an executor, or a worker, which is started again."""
        if victim == "executor":
            kill(chance.choice(self.cluster.executors()), signal.SIGKILL)
        else:
            worker = chance.choice(WORKERS)
            kill(self.cluster.worker(worker), signal.SIGKILL)
            self.cluster.restart_worker(worker)

    def await_all(self, job: JobProcess) -> None:
        await_true(
            lambda: not job.running or len(self.feed.rows()) >= self.feed.files * SENSORS,
            lambda: f"{len(self.feed.rows())} of {self.feed.files * SENSORS}: {job.err}",
            PATIENCE_S,
        )
        assert job.running, job.err

    def stop(self, job: JobProcess) -> None:
        job.signal(signal.SIGTERM)
        assert job.wait(PATIENCE_S).code == 0, job.err


class Supervisor:
    """Starts the job again when a run has ended, on a machine with an empty disk; a context manager."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self.job = apart.job()
        self.started = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.job.__exit__(*error)

    def await_progress(self) -> None:
        """Wait until a run has counted more."""
        before = len(self._apart.feed.rows())
        deadline = time.monotonic() + PATIENCE_S
        while len(self._apart.feed.rows()) == before:
            assert time.monotonic() < deadline, self.job.err
            if not self.job.running:
                self.job.__exit__()
                self.job = self._apart.job()
                self.started += 1


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    if not can_have_own_disk():
        pytest.skip("this system lets no process have mounts of its own")
    disk = tmp_path / "machine"
    disk.mkdir()
    with pytest.MonkeyPatch.context() as patch, S3Server(tmp_path) as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        with SparkCluster(tmp_path, cores=CORES, disk=disk) as cluster:
            yield Apart(tmp_path, server, cluster, disk)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_job_on_machines_that_share_only_a_store_goes_on_from_an_empty_disk(apart: Apart) -> None:
    """State, positions and dead letters are in the store; commands reach tasks from the driver's folder."""
    feed = apart.feed
    for number in range(2):
        feed.write()
        with apart.job() as job:
            apart.await_all(job)
            if number == 0:
                (apart.working_folder(job) / "commands" / "broken.jsonl").write_text("no command\n")
                await_true(lambda: feed.dead_letters(), lambda: job.err, PATIENCE_S)
            apart.stop(job)
    feed.assert_exactly_once()
    (letter,) = feed.dead_letters()
    assert (letter["stream"], base64.b64decode(letter["raw"])) == ("commands", b"no command\n")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_job_of_a_cluster_goes_on_with_all_tasks_on_one_machine_and_back(apart: Apart) -> None:
    """Its state stays in the store, where tasks of `local[2]` read and write it, too."""
    feed = apart.feed
    for more in ((), ("--master=local[2]",), ()):
        feed.write()
        with apart.job(*more) as job:
            apart.await_all(job)
            apart.stop(job)
    feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_zombie_driver_of_a_cluster_whose_state_is_on_a_store_commits_nothing(apart: Apart) -> None:
    """A driver is suspended while its executors go on; another one takes over, and the first one wakes up."""
    feed = apart.feed
    with noting(SUITE, "-k zombie_driver_of_a_cluster") as injected:
        with apart.job() as zombie:
            with feed.feeding():
                await_progress(zombie, lambda: len(feed.rows()), PATIENCE_S)
            everybody = [zombie.process.pid, *zombie.family()]
            injected.add("driver, asleep while another took over")
            for pid in everybody:
                kill(pid, signal.SIGSTOP)
            with apart.job() as other:
                apart.await_all(other)
                apart.stop(other)
            feed.assert_exactly_once()
            done = feed.expected
            state = feed.state()
            feed.write()
            for pid in everybody:
                kill(pid, signal.SIGCONT)
            result = zombie.wait(PATIENCE_S)
        assert result.code == 2, result.err
        assert "has taken over the checkpoint s3://checkpoints/" in result.err
        assert sorted(feed.rows()) == sorted(done.elements())
        # It may have written more, but nothing over what counts.
        assert state.items() <= feed.state().items()
        with apart.job() as job:
            apart.await_all(job)
            apart.stop(job)
        feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(5400)
def test_kills_of_a_cluster_whose_state_is_on_a_store(apart: Apart) -> None:
    """Thirty under load: the server, an executor, the server, a worker, and then the driver with its machine's disk."""
    seed = 17
    chance = random.Random(seed)
    feed = apart.feed
    with noting(SUITE, "-k kills_of_a_cluster_whose_state", str(seed)) as injected, Supervisor(apart) as runs:
        with feed.feeding():
            for number in range(ROUNDS):
                for victim in WORKING:
                    runs.await_progress()
                    injected.add("S3 server")
                    apart.server.kill()
                    time.sleep(chance.uniform(0, 3))
                    apart.server.start()
                    runs.await_progress()
                    time.sleep(chance.uniform(0, 2))
                    injected.add(victim)
                    apart.kill_one(victim, chance)
                runs.await_progress()
                time.sleep(chance.uniform(0, 2))
                victim = DRIVING[number % len(DRIVING)]
                injected.add(f"{victim}, with its machine's disk")
                kill_process(victim, runs.job)
        feed.write()
        runs.await_progress()
        apart.await_all(runs.job)
        apart.stop(runs.job)
        feed.assert_exactly_once()
    # Six drivers were killed; some runs may have ended for another reason, as where a machine is too busy.
    assert runs.started <= 10
