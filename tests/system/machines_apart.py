"""Separate machines: a standalone cluster whose machines share only a store, and a job that runs there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import pytest
from cluster_feed import ClusterFeed
from file_feed import COUNTING_JOB, SENSORS
from hdfs_feed import HdfsFeed
from hdfs_server import HdfsServer
from job_process import JobProcess, Result, await_true, kill, run_arguments
from own_disk import can_have_own_disk
from s3_server import S3Server
from spark_cluster import STANDS_STILL_S, WORKERS, SparkCluster, of_a_machine, quick_jvm

from penstock.jobs.settings import RunSettings

__all__ = ["COUNTED", "IN_REAL_TIME", "PATIENCE_S", "Apart", "Site", "Supervisor", "open_site"]

CORES = 2
# Each run starts two JVMs, and loads its state from the store.
PATIENCE_S = 1200.0
COUNTED = 'SELECT count(*) AS keys, min("count") AS least, max("count") AS most FROM state.counts'
IN_REAL_TIME = ("--checkpoint-interval=1s",)
PROGRAM = (str(Path(__file__).with_name("own_disk.py")),)


@dataclass(frozen=True)
class Site:
    """A store, and a cluster whose machines share it."""

    server: S3Server | HdfsServer
    cluster: SparkCluster
    disk: Path


class Apart:
    """A cluster, its store, and a job. Each machine has its own disk at `machine`, invisible to the others."""

    def __init__(self, folder: Path, site: Site) -> None:
        server = site.server
        self.feed = ClusterFeed(folder, server) if isinstance(server, S3Server) else HdfsFeed(folder, server)
        self.store = "S3 server" if isinstance(server, S3Server) else "NameNode and DataNode"
        self.cluster = site.cluster
        self.server = server
        self.folder = folder
        self.disk = disk = site.disk
        self._environment = {**of_a_machine(disk), "SPARK_LOCAL_IP": "127.0.0.1"}

    @property
    def spark(self) -> dict[str, str]:
        """Return settings of a job on the cluster."""
        options, class_path = quick_jvm()
        return {
            "spark.cores.max": str(CORES),
            "spark.network.timeout": f"{STANDS_STILL_S}s",
            # Both workers are on this host, where executors would read each other's files directly.
            "spark.shuffle.readHostLocalDisk": "false",
            "spark.executor.cores": str(CORES // len(self.cluster.workers)),
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": options,
            "spark.executor.extraClassPath": class_path,
        }

    def job(
        self, *more: str, program: Path = COUNTING_JOB, settings: RunSettings | None = None
    ) -> JobProcess:
        """Start the job, or another one, on a machine with an empty disk."""
        arguments = [
            *run_arguments(program, settings or self.feed.settings(self.folder)),
            f"--master={self.cluster.url}",
            *(f"--spark={name}={value}" for name, value in self.spark.items()),
            *more,
        ]
        return JobProcess(arguments, self.folder, self._environment, PROGRAM)

    def penstock(self, job: JobProcess | None, *arguments: str) -> Result:
        """Run a command on the driver's machine, or on a machine that has no files of the job."""
        on = ["-m", "penstock.cli"] if job is None else [*PROGRAM, "--join", str(job.process.pid)]
        done = subprocess.run(
            [sys.executable, *on, *arguments],
            env={**os.environ, **self._environment} if job is not None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def done(self, job: JobProcess, *arguments: str) -> Result:
        """Run a command there, and check that it succeeds."""
        result = self.penstock(job, *arguments)
        assert result.code == 0, (result.err, job.err)
        return result

    def counts(
        self, checkpoint: str, job: JobProcess | None = None, more: Sequence[str] = (), state: str = "count"
    ) -> tuple[int, int, int]:
        """Return how many sensors the state has, and the smallest and the largest of their counts."""
        counted = COUNTED.replace('"count"', f'"{state}"')
        result = self.penstock(job, "query", checkpoint, counted, "--output=json", *more)
        assert result.code == 0, result.err
        (row,) = json.loads(result.out)["rows"]
        return row["keys"], row["least"], row["most"]

    def changed(self, made: str) -> Path:
        """Return the job with its state renamed, by replacing a line."""
        found = COUNTING_JOB.read_text()
        for before, after in (
            ("count = ps.ValueState(int)", 'total = ps.ValueState(int, renamed_from="count")'),
            ("self.count.", "self.total."),
            ('job = ps.Job("recorded")', made),
        ):
            assert before in found
            found = found.replace(before, after)
        path = self.folder / f"changed_{time.time_ns()}.py"
        path.write_text(found)
        return path

    def working_folder(self, job: JobProcess) -> Path:
        """Return the driver's working folder, on its own disk."""
        (found,) = Path(f"/proc/{job.process.pid}/root{self.disk}").glob("penstock-checkpoint-*")
        return found

    def fault(self, what: str, more: tuple[str, ...]) -> str:
        """Return the name of a fault, with the kind of store and the mode."""
        parts = ["HDFS"] * isinstance(self.server, HdfsServer) + ["in real time"] * (more == IN_REAL_TIME)
        return f"{what} ({', '.join(parts)})" if parts else what

    def kill_one(self, victim: str, chance: random.Random) -> None:
        """Kill an executor, or a worker, which is then restarted."""
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
    """Restarts the job when a run has ended, on a machine with an empty disk; a context manager."""

    def __init__(self, apart: Apart, more: tuple[str, ...]) -> None:
        self._apart = apart
        self._more = more
        self.job = apart.job(*more)
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
                self.job = self._apart.job(*self._more)
                self.started += 1


@contextlib.contextmanager
def open_site(folder: Path, kind: Literal["s3", "hdfs"]) -> Iterator[Site]:
    """Open a store, with its credentials in the environment, and a cluster."""
    if not can_have_own_disk():
        pytest.skip("this system lets no process have mounts of its own")
    disk = folder / "machine"
    disk.mkdir()
    opened: S3Server | HdfsServer = S3Server(folder) if kind == "s3" else HdfsServer(folder)
    with pytest.MonkeyPatch.context() as patch, opened as server:
        if isinstance(server, S3Server):
            for name, value in server.environment.items():
                patch.setenv(name, value)
        with SparkCluster(folder, cores=CORES, disk=disk) as cluster:
            yield Site(server, cluster, disk)
