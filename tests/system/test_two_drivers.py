"""Two drivers on one checkpoint: the second is refused and leaves no trace; where locks fail, the first is fenced."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from job_process import JobProcess, await_true, kill

JOB = Path(__file__).parents[1] / "integration" / "recorded_job.py"
SENSORS = 20
LOCK = "in-use.lock"


class Feed:
    """Readings, one file of all sensors after the other, and what the job makes of them."""

    def __init__(self, folder: Path) -> None:
        self.readings, self.seen, self.checkpoint = (
            folder / name for name in ("readings", "seen", "checkpoint")
        )
        self.readings.mkdir()
        self.files = 0

    @property
    def arguments(self) -> list[str]:
        bindings = {"readings": f"jsonl:{self.readings}", "seen": f"jsonl:{self.seen}"}
        definitions = [f"-D{name}={uri}" for name, uri in bindings.items()]
        return [f"{JOB}:job", *definitions, f"--checkpoint={self.checkpoint}", "--parallelism=2"]

    def write(self, files: int) -> None:
        for _ in range(files):
            lines = [json.dumps({"sensor": sensor, "number": self.files}) for sensor in range(SENSORS)]
            new = self.readings / f".{self.files:05}.tmp"
            new.write_text("".join(line + "\n" for line in lines))
            new.rename(self.readings / f"{self.files:05}.jsonl")
            self.files += 1

    def counts(self) -> list[tuple[int, int]]:
        """What was written: each sensor's count, for each of its readings."""
        files = sorted(self.seen.glob("part-*.jsonl"))
        rows: list[Any] = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        return [(row["sensor"], row["count"]) for row in rows]

    def await_files(self, job: JobProcess, files: int) -> None:
        """Wait until the job has written what some files give."""
        await_true(
            lambda: not job.running or len(self.counts()) >= files * SENSORS,
            lambda: f"{len(self.counts())} of {files * SENSORS}: {job.err}",
        )
        assert job.running, job.err

    def assert_exactly_once(self) -> None:
        """Each sensor has counted each reading once, and each count was written once."""
        expected = Counter((sensor, count) for sensor in range(SENSORS) for count in range(1, self.files + 1))
        assert Counter(self.counts()) == expected


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the lock, with what is in them."""
    paths = (path for path in sorted(folder.rglob("*")) if path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


def batches(feed: Feed, log: str) -> set[str]:
    """The micro-batches in one of Spark's logs."""
    return {path.name for path in (feed.checkpoint / log).glob("[0-9]*")}


def stop_cleanly(job: JobProcess) -> None:
    job.signal(signal.SIGTERM)
    result = job.wait()
    assert result.code == 0, result


def test_a_second_driver_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    """It says that the checkpoint is in use, and has touched neither the checkpoint nor the outputs."""
    feed = Feed(tmp_path)
    feed.write(3)
    with JobProcess(feed.arguments, tmp_path) as first:
        feed.await_files(first, 3)
        await_true(lambda: batches(feed, "commits") == batches(feed, "offsets"), lambda: first.err)
        # Stopped, it still holds the checkpoint, and changes nothing itself.
        family = [first.process.pid, *first.family()]
        for pid in family:
            kill(pid, signal.SIGSTOP)
        before = content(feed.checkpoint), content(feed.seen)
        with JobProcess([*feed.arguments, "--lock-timeout=1"], tmp_path) as second:
            result = second.wait(60)
            second.await_end_of_family()
        assert result.code == 2, result
        assert "is in use by another run of the job. Stop that one first." in result.err
        assert (content(feed.checkpoint), content(feed.seen)) == before
        for pid in family:
            kill(pid, signal.SIGCONT)
        feed.write(2)
        feed.await_files(first, 5)
        stop_cleanly(first)
    feed.assert_exactly_once()


def test_where_locks_fail_the_second_driver_fences_the_first(tmp_path: Path) -> None:
    """Without the lock file both start: the second takes over, the first ends with an error, nothing is doubled."""
    feed = Feed(tmp_path)
    feed.write(2)
    stop = threading.Event()
    with JobProcess(feed.arguments, tmp_path) as first:
        feed.await_files(first, 2)
        feeding = threading.Thread(target=feed_until, args=(feed, stop))
        feeding.start()
        try:
            (feed.checkpoint / LOCK).unlink()
            with JobProcess(feed.arguments, tmp_path) as second:
                result = first.wait()
                first.await_end_of_family()
                assert result.code == 2, result
                assert "Another run has taken over the checkpoint" in result.err
                assert "Traceback" not in result.err
                done = len(feed.counts()) // SENSORS
                feed.await_files(second, done + 3)
                stop.set()
                feeding.join()
                feed.await_files(second, feed.files)
                stop_cleanly(second)
        finally:
            stop.set()
            feeding.join()
    feed.assert_exactly_once()
    assert json.loads((feed.checkpoint / "epoch.json").read_bytes())["epoch"] == 2


def test_a_driver_that_stood_still_commits_nothing_when_it_goes_on(tmp_path: Path) -> None:
    """Another took over meanwhile, where locks do not reach: the old one ends, and what is written stays as it is."""
    feed = Feed(tmp_path)
    feed.write(2)
    stop = threading.Event()
    with JobProcess(feed.arguments, tmp_path) as first:
        feed.await_files(first, 2)
        # In the midst of its work.
        feeding = threading.Thread(target=feed_until, args=(feed, stop))
        feeding.start()
        try:
            feed.await_files(first, 4)
            family = [first.process.pid, *first.family()]
            for pid in family:
                kill(pid, signal.SIGSTOP)
            (feed.checkpoint / LOCK).unlink()
            with JobProcess(feed.arguments, tmp_path) as second:
                feed.await_files(second, feed.files + 3)
                stop.set()
                feeding.join()
                feed.await_files(second, feed.files)
                await_true(lambda: batches(feed, "commits") == batches(feed, "offsets"), lambda: second.err)
                written = content(feed.seen)
                for pid in family:
                    kill(pid, signal.SIGCONT)
                result = first.wait()
                first.await_end_of_family()
                assert result.code == 2, result
                assert "Another run has taken over the checkpoint" in result.err
                assert content(feed.seen) == written
                feed.write(1)
                feed.await_files(second, feed.files)
                stop_cleanly(second)
        finally:
            stop.set()
            feeding.join()
    feed.assert_exactly_once()


def feed_until(feed: Feed, stop: threading.Event) -> None:
    while not stop.wait(0.3):
        feed.write(1)
