"""A standalone cluster whose machines share nothing but an object store: a job runs there, and survives kills."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_feed import ClusterFeed
from file_feed import COUNTING_JOB, SENSORS
from job_process import JobProcess, await_true, run_arguments
from own_disk import can_have_own_disk
from s3_server import S3Server
from spark_cluster import SparkCluster, of_a_machine, quick_jvm

PROGRAM = (str(Path(__file__).with_name("own_disk.py")),)


class Apart:
    """A cluster, its store, and a job. Each of its machines has the disk `machine`, which no other one sees."""

    def __init__(self, folder: Path, server: S3Server, cluster: SparkCluster, disk: Path) -> None:
        self.feed = ClusterFeed(folder, server)
        self.cluster = cluster
        self._folder = folder
        self._environment = {**server.environment, **of_a_machine(disk), "SPARK_LOCAL_IP": "127.0.0.1"}

    def job(self, *more: str) -> JobProcess:
        """Start the job on a machine with an empty disk."""
        options, class_path = quick_jvm()
        arguments = [
            *run_arguments(COUNTING_JOB, self.feed.settings(self._folder)),
            f"--master={self.cluster.url}",
            "--spark=spark.cores.max=2",
            # Both workers are on this host, on which executors would read each other's files.
            "--spark=spark.shuffle.readHostLocalDisk=false",
            "--spark=spark.executor.cores=1",
            "--spark=spark.executor.memory=600m",
            f"--spark=spark.executor.extraJavaOptions={options}",
            f"--spark=spark.executor.extraClassPath={class_path}",
            *more,
        ]
        return JobProcess(arguments, self._folder, self._environment, PROGRAM)

    def await_all(self, job: JobProcess) -> None:
        await_true(
            lambda: not job.running or len(self.feed.rows()) >= self.feed.files * SENSORS,
            lambda: f"{len(self.feed.rows())} of {self.feed.files * SENSORS}: {job.err}",
        )

    def stop(self, job: JobProcess) -> None:
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0, job.err


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    if not can_have_own_disk():
        pytest.skip("this system lets no process have mounts of its own")
    disk = tmp_path / "machine"
    disk.mkdir()
    with (
        S3Server(tmp_path) as server,
        SparkCluster(tmp_path, cores=2, disk=disk, environment=server.environment) as cluster,
    ):
        made = Apart(tmp_path, server, cluster, disk)
        made.server = server
        yield made


def test_a_job_on_machines_that_share_only_a_store_goes_on_from_an_empty_disk(apart: Apart) -> None:
    """All state and positions are in the store, to which each worker has written."""
    for _ in range(2):
        with apart.job() as job:
            apart.feed.write()
            apart.await_all(job)
            apart.feed.write()
            apart.await_all(job)
            apart.stop(job)
        apart.feed.assert_exactly_once()
