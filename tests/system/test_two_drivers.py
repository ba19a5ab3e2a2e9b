"""Two drivers on one checkpoint: the second is refused without a trace; where locks fail, the first is fenced."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import Injected, noting
from rooms import count_records, read_folder

from penstock.jobs.settings import RunSettings

JOB = Path(__file__).parents[1] / "integration" / "recorded_job.py"
SENSORS = 20
LOCK = "in-use.lock"


class Feed:
    """Readings, in files of all sensors, and the job's output."""

    def __init__(self, folder: Path) -> None:
        self.readings, self.seen, self.checkpoint = (
            folder / name for name in ("readings", "seen", "checkpoint")
        )
        self.readings.mkdir()
        self.files = 0

    @property
    def settings(self) -> RunSettings:
        bindings = {"readings": f"jsonl:{self.readings}", "seen": f"jsonl:{self.seen}"}
        return RunSettings(bindings=bindings, checkpoint=str(self.checkpoint), parallelism=2)

    @property
    def arguments(self) -> list[str]:
        return run_arguments(JOB, self.settings)

    def write(self, files: int) -> None:
        for _ in range(files):
            lines = [json.dumps({"sensor": sensor, "number": self.files}) for sensor in range(SENSORS)]
            new = self.readings / f".{self.files:05}.tmp"
            new.write_text("".join(line + "\n" for line in lines))
            new.rename(self.readings / f"{self.files:05}.jsonl")
            self.files += 1

    def counts(self) -> list[tuple[int, int]]:
        """Return what was written: each sensor's count, for each of its readings."""
        return [(row["sensor"], row["count"]) for row in read_folder(self.seen)]

    def await_files(self, job: JobProcess | JobInSession, files: int) -> None:
        """Wait until the job has written the output of some files."""
        await_true(
            lambda: not job.running or count_records(self.seen) >= files * SENSORS,
            lambda: f"{count_records(self.seen)} of {files * SENSORS}: {job.err}",
        )
        assert job.running, job.err

    def assert_exactly_once(self) -> None:
        """Check that each sensor has counted each reading once, and each count was written once."""
        expected = Counter((sensor, count) for sensor in range(SENSORS) for count in range(1, self.files + 1))
        assert Counter(self.counts()) == expected


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder except the lock, with their content."""
    paths = (path for path in sorted(folder.rglob("*")) if path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


def outputs(feed: Feed) -> dict[str, bytes]:
    """Return all files of the sink that are not staged for a commit that may never come."""
    return {name: text for name, text in content(feed.seen).items() if not name.startswith(".staging-")}


def batches(feed: Feed, log: str) -> set[str]:
    """Return the micro-batches in one of Spark's logs."""
    return {path.name for path in (feed.checkpoint / log).glob("[0-9]*")}


def test_a_second_driver_is_refused_or_takes_over(tmp_path: Path, spark: SparkSession) -> None:
    """Where the lock holds, it is refused; where locks fail, it takes over, and the first commits nothing any
    more.

    The lock is lost while the first is suspended during its work; `make chaos` also takes it from working
    runs. The first is on a machine with another Hadoop file system, where no file of a checkpoint belongs.
    """
    feed = Feed(tmp_path)
    feed.write(2)
    stop = threading.Event()
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:9</value></property></configuration>"
    )
    with JobProcess(feed.arguments, tmp_path, {"HADOOP_CONF_DIR": str(tmp_path)}) as first:
        feed.await_files(first, 2)
        feeding = threading.Thread(target=feed_until, args=(feed, stop))
        feeding.start()
        try:
            feed.await_files(first, 4)
            family = stand_still(first)
            check_another_is_refused(feed, tmp_path)
            (feed.checkpoint / LOCK).unlink()
            with JobInSession(spark, JOB, feed.settings) as second:
                second.await_true(lambda: epoch_of(feed) == 2)
                feed.await_files(second, feed.files + 3)
                stop.set()
                feeding.join()
                check_the_first_commits_nothing(feed, first, family, second)
                feed.write(1)
                feed.await_files(second, feed.files)
                assert second.stop().status == "stopped"
        finally:
            stop.set()
            feeding.join()
    feed.assert_exactly_once()
    assert epoch_of(feed) == 2


def stand_still(job: JobProcess) -> list[int]:
    """Suspend all processes of a run during their work; return their ids."""
    family = [job.process.pid, *job.family()]
    for pid in family:
        kill(pid, signal.SIGSTOP)
    # A thread stops when it returns from a system call, which may have just created a file for it.
    await_true(lambda: all(map(stands_still, family)), lambda: "a process does not stop")
    return family


def stands_still(pid: int) -> bool:
    """Return whether all threads of a process are stopped, or it has ended."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.append(thread.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)


def go_on(family: Sequence[int]) -> None:
    for pid in family:
        kill(pid, signal.SIGCONT)


def check_another_is_refused(feed: Feed, folder: Path) -> None:
    """Check that it says the checkpoint is in use, and has changed neither checkpoint nor outputs.

    The driver that holds the checkpoint is suspended, so that it changes nothing itself.
    """
    before = content(feed.checkpoint), content(feed.seen)
    with JobProcess([*feed.arguments, "--lock-timeout=1"], folder) as another:
        result = another.wait(60)
        another.await_end_of_family()
    assert result.code == 2, result
    assert "is in use by another run of the job. Stop that one first." in result.err
    assert (content(feed.checkpoint), content(feed.seen)) == before


def check_the_first_commits_nothing(
    feed: Feed, first: JobProcess, family: Sequence[int], second: JobInSession
) -> None:
    """Resume the first driver, suspended while the second took over: it ends, and the output is unchanged."""
    feed.await_files(second, feed.files)
    await_true(lambda: batches(feed, "commits") == batches(feed, "offsets"), lambda: second.err)
    written = outputs(feed)
    go_on(family)
    check_was_fenced(first)
    assert outputs(feed) == written


def check_was_fenced(job: JobProcess) -> None:
    result = job.wait()
    job.await_end_of_family()
    assert result.code == 2, result
    assert "Another run has taken over the checkpoint" in result.err
    assert "Traceback" not in result.err


def feed_until(feed: Feed, stop: threading.Event) -> None:
    while not stop.wait(0.3):
        feed.write(1)


def take_over(feed: Feed, folder: Path, chance: random.Random, injected: Injected, rounds: int) -> None:
    """Let runs lose the checkpoint one after the other: while suspended, to be resumed later, or while working."""
    with contextlib.ExitStack() as runs:
        job = runs.enter_context(JobProcess(feed.arguments, folder))
        feed.await_files(job, feed.files)
        for number in range(rounds):
            stands = number % 3 != 2
            family = stand_still(job) if stands else []
            what = "standing still, and going on under the next run" if stands else "at work"
            injected.add(f"run that loses its checkpoint {what}")
            (feed.checkpoint / LOCK).unlink()
            epoch = epoch_of(feed)
            after = runs.enter_context(JobProcess(feed.arguments, folder))
            await_true(lambda epoch=epoch: epoch_of(feed) > epoch, lambda after=after: after.err)
            # It resumes either while the next one starts, or while that works.
            time.sleep(chance.uniform(0, 15))
            go_on(family)
            check_was_fenced(job)
            if not works_on(feed, after):
                after = runs.enter_context(JobProcess(feed.arguments, folder))
                feed.await_files(after, feed.files + 1)
            job = after
        job.signal(signal.SIGTERM)
        assert job.wait().code == 0


def works_on(feed: Feed, job: JobProcess) -> bool:
    """Wait until a run has made progress; it may have ended, if the previous run was suspended right before
    Spark's commit.

    If that was the commit of the first micro-batch, the run has removed its state by then, since nothing was
    committed. The next start repeats the micro-batch.
    """
    try:
        feed.await_files(job, feed.files + 1)
    except AssertionError:
        if job.running:
            raise
        result = job.wait()
        if result.code == 2:
            assert epoch_of(feed) == 2
            assert re.search(r"checkpoint is damaged: .*/state/0 is missing", result.err), result
        else:
            assert result.code == 1, result
            assert "CONCURRENT_STREAM_LOG_UPDATE" in result.err
        job.await_end_of_family()
        return False
    return True


def epoch_of(feed: Feed) -> int:
    epoch: int = json.loads((feed.checkpoint / "epoch.json").read_bytes())["epoch"]
    return epoch


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_runs_that_lose_their_checkpoint_write_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """Four takeovers, at any moment of the next run."""
    feed, seed, stop = Feed(tmp_path), 19, threading.Event()
    feed.write(2)
    feeding = threading.Thread(target=feed_until, args=(feed, stop))
    with noting("lost leases", "-k runs_that_lose_their_checkpoint", str(seed)) as injected:
        feeding.start()
        try:
            take_over(feed, tmp_path, random.Random(seed), injected, rounds=4)
        finally:
            stop.set()
            feeding.join()
        with JobInSession(spark, JOB, feed.settings) as last:
            feed.await_files(last, feed.files)
            assert last.stop().status == "stopped"
        feed.assert_exactly_once()
