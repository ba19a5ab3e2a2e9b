"""Jobs that write to an object store: each output is there once, whichever process or server is killed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import obstore
import pytest
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from obstore.store import S3Store
from pyspark.sql import SparkSession
from reliability import noting
from s3_server import KEY, SECRET, S3Server

from penstock.jobs.settings import RunSettings

VICTIMS = ("driver", "JVM", "worker")


class Feed(FileFeed):
    """Readings in files, and the objects of what the job makes of them, as a reader finds them by the manifests."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__(folder)
        (folder / "key").write_text(f"{SECRET}\n")
        self.prefix = f"seen/{time.time_ns()}"
        server.put("outputs", "there", b"")
        endpoint = f"http://127.0.0.1:{server.port}"
        self._uri = (
            f"s3://outputs/{self.prefix}?format=jsonl&endpoint={endpoint}&region=us-east-1"
            f"&access_key_id={KEY}&secret_access_key=file:{folder / 'key'}"
        )
        self._store = S3Store(
            "outputs",
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            endpoint=endpoint,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        # Manifests are never changed.
        self._read: dict[str, list[tuple[int, int]]] = {}

    def settings(self, folder: Path, **settings: object) -> RunSettings:
        return RunSettings(
            bindings={"readings": self.binding, "seen": self._uri},
            checkpoint=str(folder / "checkpoint"),
            parallelism=2,
            **settings,  # type: ignore[arg-type]
        )

    def rows(self) -> list[tuple[int, int]]:
        """The rows of all manifests; those that were read before, while the server is away."""
        try:
            for block in obstore.list(self._store, f"{self.prefix}/_manifests"):
                for name in (one["path"] for one in block if not one["path"].endswith("about.json")):
                    if name not in self._read:
                        self._read[name] = self._rows_of(name)
        except obstore.exceptions.BaseError:
            pass
        return [row for rows in self._read.values() for row in rows]

    def _rows_of(self, manifest: str) -> list[tuple[int, int]]:
        files = json.loads(self._content(manifest))["files"]
        lines = [
            line for file in files for line in self._content(f"{self.prefix}/{file['name']}").splitlines()
        ]
        return [(row["sensor"], row["count"]) for row in map(json.loads, lines)]

    def _content(self, name: str) -> bytes:
        return bytes(obstore.get(self._store, name).bytes())

    def assert_exactly_once(self) -> None:
        assert Counter(self.rows()) == self.expected


def test_a_job_writes_each_output_once_in_both_modes(
    tmp_path: Path, spark: SparkSession, s3: S3Server
) -> None:
    """Micro-batches, also after their driver was killed, then real time; no secret is in the checkpoint."""
    feed = Feed(tmp_path, s3)
    with (
        feed.feeding(),
        JobProcess(run_arguments(COUNTING_JOB, feed.settings(tmp_path)), tmp_path) as process,
    ):
        await_progress(feed, process)
        kill(process.process.pid, signal.SIGKILL)
    for interval_ms in (0, 1000):
        settings = feed.settings(tmp_path, bounded=True, checkpoint_interval_ms=interval_ms)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
    feed.assert_exactly_once()
    checkpoint = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not [path for path in checkpoint if SECRET.encode() in path.read_bytes()]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_and_its_object_store(tmp_path: Path, interval_ms: int) -> None:
    """Ten in each mode, under load: within each run the server, and when the run has gone on, a process."""
    seed = 12 if interval_ms else 11
    chance = random.Random(seed)
    with S3Server(tmp_path) as server:
        feed = Feed(tmp_path, server)
        feed.write()
        arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path, checkpoint_interval_ms=interval_ms))
        with noting("object store sinks", "-k kills_of_a_job_and_its_object_store", str(seed)) as injected:
            with feed.feeding():
                mode = "real time" if interval_ms else "micro-batches"
                for number in range(5):
                    with JobProcess(arguments, tmp_path) as job:
                        await_progress(feed, job)
                        injected.add(f"server of a job that writes to an object store in {mode}")
                        server.kill()
                        time.sleep(chance.uniform(0, 2))
                        server.start()
                        # The same run goes on.
                        await_progress(feed, job)
                        time.sleep(chance.uniform(0, 2))
                        victim = VICTIMS[number % len(VICTIMS)]
                        injected.add(f"{victim} of a job that writes to an object store in {mode}")
                        found = {"driver": [job.process.pid], "JVM": job.jvms(), "worker": job.workers()}[
                            victim
                        ]
                        assert found, victim
                        kill(found[0], signal.SIGKILL)
                        time.sleep(chance.uniform(0, 1))
            with JobProcess(arguments, tmp_path) as job:
                await_true(
                    lambda: not job.running or len(feed.rows()) >= feed.files * SENSORS,
                    lambda: f"{len(feed.rows())} of {feed.files * SENSORS}: {job.err}",
                )
                job.signal(signal.SIGTERM)
                assert job.wait().code == 0
            feed.assert_exactly_once()


def await_progress(feed: Feed, job: JobProcess) -> None:
    """Wait until a run has written more."""
    before = len(feed.rows())
    await_true(lambda: not job.running or len(feed.rows()) > before, lambda: job.err)
    assert job.running, job.err
