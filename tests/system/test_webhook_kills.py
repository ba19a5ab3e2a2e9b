"""Jobs that send to a webhook: each output arrives, repetitions have the same id, whatever is killed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from hook_server import HookServer
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import noting

from penstock.jobs.settings import RunSettings

VICTIMS = ("driver", "JVM", "worker", "server")


def settings(feed: FileFeed, server: HookServer, folder: Path, **more: object) -> RunSettings:
    bindings = {"readings": feed.binding, "seen": f"{server.url}?requests_at_once=4&retry_s=2"}
    return RunSettings(bindings=bindings, checkpoint=str(folder / "checkpoint"), parallelism=2, **more)  # type: ignore[arg-type]


def outputs(server: HookServer) -> Counter[tuple[int, int]]:
    """What has arrived, without repetitions; an id that comes again has the same record."""
    found: dict[str, bytes] = {}
    for one in server.taken:
        assert one.id is not None
        assert found.setdefault(one.id, one.body) == one.body
    return Counter(
        (one.content["sensor"], one.content["count"]) for one in server.taken if found.pop(one.id or "", b"")
    )


@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_a_job_sends_each_output(tmp_path: Path, spark: SparkSession, interval_ms: int) -> None:
    """With an id, in both modes."""
    feed = FileFeed(tmp_path)
    feed.write()
    with HookServer() as server:
        run = settings(feed, server, tmp_path, bounded=True, checkpoint_interval_ms=interval_ms)
        with JobInSession(spark, COUNTING_JOB, run) as job:
            job.wait()
        assert outputs(server) == feed.expected


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_webhook(tmp_path: Path, interval_ms: int) -> None:
    """Twenty in each mode, under load."""
    seed = 10 if interval_ms else 9
    chance, mode = random.Random(seed), "real time" if interval_ms else "micro-batches"
    feed = FileFeed(tmp_path)
    feed.write()
    with (
        HookServer() as server,
        noting("webhooks", "-k kills_of_a_job_and_its_webhook", str(seed)) as injected,
    ):
        arguments = run_arguments(
            COUNTING_JOB, settings(feed, server, tmp_path, checkpoint_interval_ms=interval_ms)
        )
        with feed.feeding():
            for number in range(20):
                victim = VICTIMS[number % len(VICTIMS)]
                with JobProcess(arguments, tmp_path) as job:
                    before = newest_commit(tmp_path)
                    await_true(
                        lambda job=job, before=before: not job.running or newest_commit(tmp_path) > before,
                        lambda: "",
                    )
                    assert job.running, job.err
                    time.sleep(chance.uniform(0, 2))
                    injected.add(f"{victim} of a job that sends to a webhook in {mode}")
                    strike(victim, job, server)
                    time.sleep(chance.uniform(0, 2))
        with JobProcess(arguments, tmp_path) as job:
            # A run that has printed its name stops in order when it is asked to.
            await_true(
                lambda: (
                    not job.running or (job.out and sum(outputs(server).values()) >= feed.files * SENSORS)
                ),
                lambda: f"{sum(outputs(server).values())} of {feed.files * SENSORS}: {job.err}",
            )
            job.signal(signal.SIGTERM)
            assert job.wait().code == 0
        assert outputs(server) == feed.expected


def newest_commit(folder: Path) -> int:
    """The newest micro-batch that a run has committed; what it has sent may be of one that it repeats."""
    return max((int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def strike(victim: str, job: JobProcess, server: HookServer) -> None:
    """Kill a process with all at once, or take the server away, now for a moment, now until the job gives up."""
    if victim == "server":
        server.stop()
        time.sleep(1)
        server.start()
        return
    found = {"driver": [job.process.pid], "JVM": job.jvms(), "worker": job.workers()}[victim]
    assert found, victim
    kill(found[0], signal.SIGKILL)
