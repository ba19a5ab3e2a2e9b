"""A job with checkpoint, inputs and outputs on HDFS survives kills, and a driver believed dead commits nothing."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB, SENSORS
from hdfs_feed import HdfsFeed
from hdfs_server import HdfsServer
from job_process import JobProcess, run_arguments
from reliability import noting
from sink_kills import BUSY_S, await_progress, finish, kill_process

from penstock.checkpoints.stored_checkpoint import working_folder

SUITE = "checkpoints on HDFS"
VICTIMS = ("driver", "JVM", "worker")
ROUNDS = 10


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_kills_of_a_job_whose_checkpoint_is_on_hdfs(tmp_path: Path) -> None:
    """Twenty kills under load: in each run the NameNode or the DataNode, then a process together with its
    machine.
    """
    seed = 19
    chance = random.Random(seed)
    with HdfsServer(tmp_path) as server:
        feed = HdfsFeed(tmp_path, server)
        feed.write()
        arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path))
        try:
            with noting(SUITE, "-k kills_of_a_job_whose_checkpoint_is_on_hdfs", str(seed)) as injected:
                with feed.feeding():
                    for number in range(ROUNDS):
                        with JobProcess(arguments, tmp_path) as job:
                            await_progress(job, lambda: len(feed.rows()), BUSY_S)
                            name, daemon = chance.choice(
                                [("NameNode", server.name_node), ("DataNode", server.data_node)]
                            )
                            injected.add(f"{name} that has a job's checkpoint")
                            daemon.kill()
                            time.sleep(chance.uniform(0, 2))
                            daemon.start()
                            # The same run continues.
                            await_progress(job, lambda: len(feed.rows()), BUSY_S)
                            time.sleep(chance.uniform(0, 2))
                            victim = VICTIMS[number % len(VICTIMS)]
                            injected.add(f"{victim}, and then its machine's disk")
                            kill_process(victim, job)
                        shutil.rmtree(working_folder(feed.checkpoint))
                finish(arguments, tmp_path, lambda: len(feed.rows()), feed.files * SENSORS, BUSY_S)
                feed.assert_exactly_once()
        finally:
            shutil.rmtree(working_folder(feed.checkpoint), ignore_errors=True)
