"""State of a running job: rescaled, dumped and carried over; killed operations leave nothing half done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from job_in_session import JobInSession
from job_process import PATIENCE_S, JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import Injected, noting
from rooms import Record, count_records, read_folder, write_file
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.settings import RunSettings
from penstock.snapshots.manifest import MANIFEST
from penstock.snapshots.snapshot_reader import verify

JOB = Path(__file__).with_name("tally_job.py")
FILE = 200


def penstock(*arguments: str) -> Any:
    """Run a command in this process; return its JSON output. It cannot detect that a job of this process runs."""
    result = CliRunner().invoke(app, [*arguments, "-o", "json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def penstock_process(*arguments: str) -> Any:
    """Run a command in its own process; return its JSON output."""
    command = [sys.executable, "-m", "penstock.cli", *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Hits:
    """The input and the output of the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hits").mkdir()
        self.sent = 0
        self._chance = random.Random(1)

    def feed(self, files: int) -> None:
        for _ in range(files):
            numbers = range(self.sent, self.sent + FILE)
            lines = [json.dumps({"page": f"p{self._chance.randrange(40)}", "number": n}) for n in numbers]
            hidden = self.folder / "hits" / f".{self.sent:08}"
            hidden.write_text("".join(line + "\n" for line in lines))
            hidden.rename(self.folder / "hits" / f"{self.sent:08}.jsonl")
            self.sent += FILE

    def settings(self, checkpoint: str, from_savepoint: str | None = None) -> RunSettings:
        bindings = {
            "hits": f"jsonl:{self.folder / 'hits'}?max_files_per_batch=1",
            "tallies": f"jsonl:{self.folder / 'tallies'}",
        }
        return RunSettings(
            bindings=bindings,
            checkpoint=str(self.folder / checkpoint),
            parallelism=2,
            from_savepoint=from_savepoint,
            allow_write=(str(self.folder),),
        )

    def tallies(self) -> list[Record]:
        return read_folder(self.folder / "tallies")

    def await_all(self, job: JobProcess | JobInSession) -> None:
        await_true(
            lambda: count_records(self.folder / "tallies") >= self.sent or not job.running, lambda: job.err
        )
        assert job.running, job.err

    def check(self) -> None:
        """Check that every hit is there once, and every page was counted without a gap."""
        found: dict[str, list[int]] = defaultdict(list)
        tallies = self.tallies()
        for tally in tallies:
            found[tally["page"]].append(tally["hits"])
        assert sorted(tally["number"] for tally in tallies) == list(range(self.sent))
        for counts in found.values():
            assert sorted(counts) == list(range(1, len(counts) + 1))


def rescale_and_dump(hits: Hits, job: JobProcess | JobInSession) -> None:
    """Rescale a job, and dump its state, while records arrive."""
    checkpoint = hits.folder / "one"
    hits.await_all(job)
    hits.feed(4)
    rescaled = penstock_process("rescale", str(checkpoint), "--parallelism", "4")
    assert (rescaled["before"], rescaled["after"]) == (2, 4)
    hits.feed(2)
    to = f"{hits.folder}/d{{batch}}"
    command = {"id": "d", "kind": "dump-state", "target": {}, "payload": {"to": to}}
    write_file(checkpoint / "commands", "1.jsonl", [command])
    await_true(lambda: any(hits.folder.glob(f"d*/{MANIFEST}")), lambda: job.err)
    (dump,) = hits.folder.glob("d[0-9]*")
    assert verify(str(dump)).sound
    hits.await_all(job)


def kill_the_jvm(hits: Hits, job: JobProcess) -> None:
    """Kill the JVM during the work on some records."""
    hits.feed(3)
    await_true(lambda: count_records(hits.folder / "tallies") > hits.sent - 3 * FILE, lambda: job.err)
    kill(job.jvms()[0], signal.SIGKILL)
    killed = job.wait()
    job.await_end_of_family()
    assert killed.code in (1, 3), killed
    assert killed.err.strip(), "the job failed without a word"
    assert "Traceback" not in killed.err


def stop_with_a_savepoint(hits: Hits, job: JobInSession) -> Any:
    """Stop and drain; return the savepoint."""
    hits.feed(3)
    stopped = penstock_process("stop", str(hits.folder / "one"), "--savepoint", "--drain")
    assert job.wait().status == "stopped"
    assert len(hits.tallies()) == hits.sent, "drained"
    (listed,) = penstock("savepoint", str(hits.folder / "one"), "--list")
    assert listed["id"] == stopped["savepoint"]
    return stopped


def carry_over(hits: Hits, spark: SparkSession, savepoint: Any) -> None:
    """Start another job from the savepoint; together the runs must equal one run."""
    with JobInSession(spark, JOB, hits.settings("two", from_savepoint=savepoint["uri"])) as other:
        hits.feed(2)
        hits.await_all(other)
        assert f"starts from the savepoint {savepoint['savepoint']}" in other.err
        assert other.stop().status == "stopped"
    hits.check()
    two = str(hits.folder / "two")
    (step,) = penstock("state", "ls", two)
    assert step["keys"] == 40
    page = hits.tallies()[-1]["page"]
    held = penstock("state", "get", two, "--step", "count", "--key", page)
    assert held["hits"] == max(t["hits"] for t in hits.tallies() if t["page"] == page)


def test_a_job_is_rescaled_dumped_and_carried_over(tmp_path: Path, spark: SparkSession) -> None:
    """Records arrive throughout; together the runs equal one run."""
    hits = Hits(tmp_path)
    hits.feed(2)
    with JobInSession(spark, JOB, hits.settings("one")) as job:
        rescale_and_dump(hits, job)
        savepoint = stop_with_a_savepoint(hits, job)
    carry_over(hits, spark, savepoint)


@pytest.mark.chaos
def test_a_job_is_rescaled_dumped_killed_and_carried_over(tmp_path: Path, spark: SparkSession) -> None:
    """The same, with a kill of the JVM after the dump, and another run."""
    hits = Hits(tmp_path)
    hits.feed(2)
    with JobProcess(run_arguments(JOB, hits.settings("one")), tmp_path) as process:
        rescale_and_dump(hits, process)
        kill_the_jvm(hits, process)
    with JobInSession(spark, JOB, hits.settings("one")) as job:
        hits.feed(3)
        hits.await_all(job)
        assert "resumes from its checkpoint" in job.err
        savepoint = stop_with_a_savepoint(hits, job)
    carry_over(hits, spark, savepoint)


@pytest.mark.chaos
def test_a_savepoint_that_is_killed_is_not_there(tmp_path: Path) -> None:
    """The kill comes at any moment; listed savepoints are complete, and the next one succeeds."""
    with noting("savepoints", "-k savepoint_that_is_killed", "7") as injected:
        kill_savepoints(tmp_path, random.Random(7), injected)


def kill_savepoints(tmp_path: Path, chance: random.Random, injected: Injected) -> None:
    """Kill four savepoints, each at another moment."""
    hits = Hits(tmp_path)
    hits.feed(2)
    with JobProcess([*run_arguments(JOB, hits.settings("one")), "--bounded"], tmp_path) as job:
        assert job.wait().code == 0
    checkpoint = str(tmp_path / "one")
    command = [sys.executable, "-m", "penstock.cli", "savepoint", checkpoint]
    begun_s = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole_s = time.monotonic() - begun_s
    for _ in range(4):
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(whole_s * chance.uniform(0.6, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        injected.add("kill -9 while a savepoint is written")
    subprocess.run(command, check=True, capture_output=True)
    listed = penstock("savepoint", checkpoint, "--list")
    assert len(listed) >= 2
    for found in listed:
        assert verify(found["uri"]).sound
    places = [p for p in (tmp_path / "one.savepoints").iterdir() if not (p / MANIFEST).exists()]
    assert len(places) + len(listed) <= 6
