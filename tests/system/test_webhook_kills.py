"""Jobs that send to a webhook: each output arrives, and repetitions have the same id, whatever is killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from file_feed import COUNTING_JOB, FileFeed
from hook_server import HookServer
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from reliability import noting
from sink_kills import KilledSink, victims

from penstock.jobs.settings import RunSettings


def settings(feed: FileFeed, server: HookServer, folder: Path, **more: Any) -> RunSettings:
    bindings = {"readings": feed.binding, "seen": f"{server.url}?requests_at_once=4&retry_s=2"}
    return RunSettings(bindings=bindings, checkpoint=str(folder / "checkpoint"), parallelism=2, **more)


def outputs(server: HookServer) -> Counter[tuple[int, int]]:
    """Return the received records without repetitions; a repeated id must have an equal record."""
    found: dict[str, bytes] = {}
    for one in server.taken:
        assert one.id is not None
        assert found.setdefault(one.id, one.body) == one.body
    return Counter(
        (one.content["sensor"], one.content["count"]) for one in server.taken if found.pop(one.id or "", b"")
    )


@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_a_job_sends_each_output(tmp_path: Path, spark: SparkSession, interval_ms: int) -> None:
    """Each has an id, in both modes."""
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
    """Twenty kills in each mode, under load."""
    seed = 10 if interval_ms else 9
    mode = "real time" if interval_ms else "micro-batches"
    feed = FileFeed(tmp_path)
    feed.write()
    with (
        HookServer() as server,
        noting("webhooks", "-k kills_of_a_job_and_its_webhook", str(seed)) as injected,
    ):

        def make_settings(**more: Any) -> RunSettings:
            return settings(feed, server, tmp_path, checkpoint_interval_ms=interval_ms, **more)

        def interrupt() -> None:
            """Take the server down, either for a moment or until the job gives up."""
            server.stop()
            time.sleep(1)
            server.start()

        KilledSink(tmp_path, feed, make_settings, interrupt).survive(
            victims("server", 20),
            random.Random(seed),
            lambda victim: injected.add(f"{victim} of a job that sends to a webhook in {mode}"),
        )
        assert outputs(server) == feed.expected
