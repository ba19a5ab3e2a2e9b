"""A paused step holds its data in order, up to a bound; beyond it the data streams are not read until it is
resumed.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, await_true, run_arguments
from pyspark.sql import SparkSession
from reliability import noting
from rooms import Record, count_records, read_folder, write_file

from penstock.commands.receipt_segments import NewReceipts
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from penstock.runtime.cuts import newest_batch, read_cut
from topics import produce

JOB = Path(__file__).with_name("counting_job.py")
FILE = 50  # readings in one

Job = JobProcess | JobInSession


def test_a_paused_step_stops_its_sources_and_loses_nothing(
    tmp_path: Path, kafka: KafkaBroker, spark: SparkSession
) -> None:
    """Commands continue meanwhile."""
    pause_and_resume(TopicOfReadings(kafka), tmp_path, spark, kills=False)


@pytest.mark.chaos
@pytest.mark.parametrize("data", ["folder", "kafka"])
def test_a_paused_job_that_is_killed_is_paused_again(
    data: str, tmp_path: Path, kafka: KafkaBroker, spark: SparkSession
) -> None:
    """Its sources are stopped from the start."""
    readings = FolderOfReadings(tmp_path / "readings") if data == "folder" else TopicOfReadings(kafka)
    with noting("paused jobs", f'-k "paused_job_that_is_killed and {data}"') as injected:
        injected.add("kill -9 of a driver")
        pause_and_resume(readings, tmp_path, spark, kills=True)


class Readings(Protocol):
    """The input of the job; a micro-batch takes one file, or as many readings."""

    uri: str

    def send(self, files: Sequence[Sequence[Record]]) -> None:
        """Write some files, or as many readings to the topic."""

    def count(self, end: Any) -> int:
        """Return how many readings are before the end in a cut."""


class FolderOfReadings:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.uri = f"jsonl:{folder}?max_files_per_batch=1"

    def send(self, files: Sequence[Sequence[Record]]) -> None:
        for file in files:
            write_file(self._folder, f"{file[0]['number']:08}.jsonl", file)

    def count(self, end: Any) -> int:
        return int(end) * FILE


class TopicOfReadings:
    def __init__(self, kafka: KafkaBroker) -> None:
        self._bootstrap = kafka.bootstrap
        self._topic = f"readings-{time.time_ns()}"
        kafka.create_topic(self._topic, 1)
        self.uri = f"kafka://{kafka.bootstrap}/{self._topic}?start=earliest&max_records_per_batch={FILE}"

    def send(self, files: Sequence[Sequence[Record]]) -> None:
        messages = [(None, json.dumps(record).encode()) for file in files for record in file]
        produce(self._bootstrap, self._topic, messages)

    def count(self, end: Any) -> int:
        return int(sum(end.values()))


class Pausable:
    """The sums job: its readings, the commands to it, and its progress."""

    def __init__(self, readings: Readings, root: Path) -> None:
        for name in ("sums", "seen", "checkpoint/commands"):
            (root / name).mkdir(parents=True)
        self._root = root
        self._checkpoint = root / "checkpoint"
        self._readings = readings
        self.sent = 0
        self._commands = 0
        self.settings = RunSettings(
            bindings={"readings": readings.uri, **{n: f"jsonl:{root / n}" for n in ("sums", "seen")}},
            checkpoint=str(self._checkpoint),
            max_held_bytes=3000,
        )

    def feed(self, files: int) -> None:
        numbers = [range(self.sent + file * FILE, self.sent + (file + 1) * FILE) for file in range(files)]
        self.sent += files * FILE
        self._readings.send([[{"sensor": n % 7, "number": n} for n in file] for file in numbers])

    def command(self, job: Job, kind: str, **more: Any) -> None:
        """Send a command, and wait until it is applied."""
        self._commands += 1
        name = f"{self._commands:04}"
        command = {"id": name, "kind": kind, "target": {"step": "sums", **more.pop("target", {})}, **more}
        write_file(self._checkpoint / "commands", f"{name}.jsonl", [command])
        await_true(lambda: self._is_applied(name) or not job.running, lambda: job.err)
        assert self._is_applied(name), job.err

    def _is_applied(self, name: str) -> bool:
        receipts = NewReceipts(self._checkpoint, from_start=True).read(name)
        return any(receipt.status == "APPLIED" for receipt in receipts)

    def add(self, job: Job, amount: int) -> None:
        self.command(job, "add", target={"key": 3}, payload=amount)

    def seen(self) -> list[Record]:
        return read_folder(self._root / "seen")

    def count_seen(self) -> int:
        return count_records(self._root / "seen")

    def read(self) -> int:
        """Return how many readings are in planned micro-batches so far."""
        cut = read_cut(self._checkpoint, newest_batch(self._checkpoint / "offsets"))
        return self._readings.count(cut.ends["readings"])

    def await_standstill(self, job: Job) -> int:
        """Wait until micro-batches take no readings though some wait; return how many were read."""
        while True:
            before = self.read()
            # The command is applied in a later micro-batch.
            self.add(job, 0)
            if self.read() == before:
                return before


def pause_and_resume(readings: Readings, root: Path, spark: SparkSession, *, kills: bool) -> None:
    """Pause, send more than may be held, and resume; with a kill -9 in between."""
    sums = Pausable(readings, root)
    sums.feed(1)
    with contextlib.ExitStack() as jobs:
        job: Job = (
            JobProcess(run_arguments(JOB, sums.settings), root)
            if kills
            else JobInSession(spark, JOB, sums.settings)
        )
        jobs.enter_context(job)
        await_true(lambda: sums.count_seen() == FILE or not job.running, lambda: job.err)
        sums.command(job, "pause")
        sums.feed(12)
        await_true(lambda: sums.read() > FILE or not job.running, lambda: job.err)
        held = sums.await_standstill(job)
        assert FILE < held < sums.sent
        assert sums.count_seen() == FILE
        if isinstance(job, JobProcess):
            job.signal(signal.SIGKILL)
            job.wait()
            jobs.close()
            job = JobInSession(spark, JOB, sums.settings)
            jobs.enter_context(job)
        sums.add(job, 5)
        assert sums.count_seen() == FILE
        assert sums.read() == held
        sums.command(job, "resume")
        await_true(
            lambda: sums.count_seen() == sums.sent or not job.running,
            lambda: f"{sums.count_seen()} of {sums.sent}: {job.err}",
        )
        assert isinstance(job, JobInSession)
        assert job.stop().status == "stopped"
    seen = sums.seen()
    assert in_order([record["number"] for record in seen]) == list(range(sums.sent))
    # The command came before the held readings, which see its effect.
    totals = {record["number"]: record["total"] for record in seen if record["sensor"] == 3}
    assert all(total == (5 if number >= FILE else 0) for number, total in totals.items())


def in_order(numbers: Sequence[int]) -> list[int]:
    """Return all numbers sorted, after checking that those of each sensor came in order."""
    for sensor in range(7):
        mine = [number for number in numbers if number % 7 == sensor]
        assert mine == sorted(mine)
    return sorted(numbers)
