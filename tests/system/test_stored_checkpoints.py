"""Checkpoints on an object store: a job continues from an empty disk, and a driver believed dead commits
nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import time
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB, SENSORS
from http_sender import Sender
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from object_feed import ObjectFeed
from own_disk import DISK, can_have_own_disk
from pyspark.sql import SparkSession
from reliability import noting
from s3_server import S3Server
from sink_kills import await_progress, finish, kill_process
from stored_homes import checkpoint_on, lose_disk, lose_machines

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.checkpoints.stored_copies import read_copy
from penstock.checkpoints.stored_home import place_in, place_of_home
from penstock.machine.local_server import free_port
from penstock.models.library_places import ANSWERS, StorePlace
from penstock.savepoints.snapshot_capture import Capture, capture

HOW = {0: "", 1000: " (in real time)"}
"""How the fault of a mode is named, by the checkpoint interval in milliseconds."""

VICTIMS = ("driver", "JVM", "worker", "driver")


def test_a_job_goes_on_from_an_empty_disk(
    tmp_path: Path, spark: SparkSession, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All state and positions are in the store, in both modes, and a last run finds no more input."""
    feed = ObjectFeed(tmp_path, s3)
    with checkpoint_on(s3, monkeypatch) as uri:
        settings = feed.settings(tmp_path, checkpoint=uri, bounded=True)
        for interval_ms in (0, 1000, 1000):
            feed.write()
            mode = dataclasses.replace(settings, checkpoint_interval_ms=interval_ms)
            with JobInSession(spark, COUNTING_JOB, mode) as job:
                job.wait()
            lose_disk(uri)
            feed.assert_exactly_once()
        # This works on any machine: Spark's paths in the checkpoint are those of a deleted folder.
        with read_copy(uri) as copied:
            capture(spark, Checkpoint(copied), Capture("savepoint", str(tmp_path / "taken"), "arrow"))
        counted = 'SELECT count(*) AS keys, min("count") AS least, max("count") AS most FROM state.counts'
        assert ps.query_snapshot(str(tmp_path / "taken"), counted).to_pylist() == [
            {"keys": SENSORS, "least": 3, "most": 3}
        ]
        with JobInSession(spark, COUNTING_JOB, dataclasses.replace(settings, must_continue=True)) as job:
            job.wait()
        feed.assert_exactly_once()


def test_answers_are_kept_in_the_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones stay; names are listed, and unneeded answers are removed."""
    with checkpoint_on(s3, monkeypatch) as uri:
        place = StorePlace(place_in(place_of_home(uri), ANSWERS), ())
        assert place.names("score/fraud") == []
        for number in range(3):
            content = b"%d" % number
            assert place.keep_first(f"score/fraud/0-{number}.json", content) == content
        assert place.keep_first("score/fraud/0-1.json", b"later") == b"1"
        place.remove(["score/fraud/0-0.json"])
        assert sorted(place.names("score/fraud")) == ["score/fraud/0-1.json", "score/fraud/0-2.json"]
        assert place.find("score/fraud/0-2.json") == b"2"


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_a_zombie_whose_checkpoint_is_on_an_object_store_commits_nothing(
    tmp_path: Path, spark: SparkSession, s3: S3Server, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    """A driver on a separate machine is suspended; another takes over, and the first one resumes."""
    if not can_have_own_disk():
        pytest.skip("this system lets no process have mounts of its own")
    feed = ObjectFeed(tmp_path, s3)
    command = "-k a_zombie_whose_checkpoint_is_on"
    mode = {"checkpoint_interval_ms": interval_ms}
    with checkpoint_on(s3, monkeypatch) as uri, noting("checkpoints on object stores", command) as injected:
        working_folder(uri).mkdir()
        arguments = run_arguments(COUNTING_JOB, feed.settings(tmp_path, checkpoint=uri, **mode))
        program = (str(Path(__file__).with_name("own_disk.py")),)
        with JobProcess(arguments, tmp_path, {DISK: str(working_folder(uri))}, program) as zombie:
            with feed.feeding():
                await_progress(zombie, lambda: len(feed.rows()))
            everybody = [zombie.process.pid, *zombie.family()]
            injected.add(f"driver, asleep while another took over{HOW[interval_ms]}")
            for pid in everybody:
                kill(pid, signal.SIGSTOP)
            last = feed.settings(tmp_path, checkpoint=uri, bounded=True, **mode)
            with JobInSession(spark, COUNTING_JOB, last) as job:
                job.wait()
            feed.assert_exactly_once()
            done = feed.expected
            feed.write()
            for pid in everybody:
                kill(pid, signal.SIGCONT)
            result = zombie.wait()
        assert result.code == 2, result.err
        assert "Another run" in result.err
        assert "has taken over the checkpoint s3://checkpoints/jobs/" in result.err
        assert sorted(feed.rows()) == sorted(done.elements())
        with JobInSession(spark, COUNTING_JOB, last) as job:
            job.wait()
        feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_whose_checkpoint_is_on_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    """Thirty kills under load: in each run the server, then a process; then the machine is lost with its disk."""
    seed = 13
    chance = random.Random(seed)
    with S3Server(tmp_path) as server, checkpoint_on(server, monkeypatch) as uri:
        feed = ObjectFeed(tmp_path, server)
        feed.write()
        settings = feed.settings(tmp_path, checkpoint=uri, checkpoint_interval_ms=interval_ms)
        arguments = run_arguments(COUNTING_JOB, settings)
        command = "-k kills_of_a_job_whose_checkpoint_is_on"
        with noting("checkpoints on object stores", command, str(seed)) as injected:
            with feed.feeding():
                for number in range(15):
                    with JobProcess(arguments, tmp_path) as job:
                        await_progress(job, lambda: len(feed.rows()))
                        injected.add(f"server that has a job's checkpoint{HOW[interval_ms]}")
                        server.kill()
                        time.sleep(chance.uniform(0, 2))
                        server.start()
                        # The same run continues.
                        await_progress(job, lambda: len(feed.rows()))
                        time.sleep(chance.uniform(0, 2))
                        victim = VICTIMS[number % len(VICTIMS)]
                        injected.add(f"{victim}, and then its machine's disk{HOW[interval_ms]}")
                        kill_process(victim, job)
                        time.sleep(chance.uniform(0, 1))
                    lose_disk(uri)
            finish(arguments, tmp_path, lambda: len(feed.rows()), feed.files * SENSORS)
            feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_kills_of_a_job_that_receives_requests_and_of_its_machine(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    """Requests answered with 202 are processed once, though the machine that answered is lost with its disk."""
    chance = random.Random(19)
    with checkpoint_on(s3, monkeypatch) as uri:
        feed = ObjectFeed(tmp_path, s3)
        port = free_port()
        settings = feed.settings(tmp_path, checkpoint=uri, checkpoint_interval_ms=interval_ms)
        settings.bindings["readings"] = f"http-listen://127.0.0.1:{port}/readings"
        arguments = run_arguments(COUNTING_JOB, settings)
        senders = [
            Sender(
                f"http://127.0.0.1:{port}/readings",
                sensor,
                lambda key: {"sensor": int(key.split("-")[0]), "number": 1},
            )
            for sensor in range(SENSORS)
        ]
        command = "-k kills_of_a_job_that_receives_requests"
        with (
            noting("checkpoints on object stores", command, "19") as injected,
            contextlib.ExitStack() as stack,
        ):
            for sender in senders:
                sender.start()
                stack.callback(sender.stop)
            what = f"of a job that receives requests, and its machine's disk{HOW[interval_ms]}"
            lose_machines(
                uri,
                arguments,
                tmp_path,
                VICTIMS * 2,
                chance,
                lambda: len(feed.rows()),
                lambda victim: injected.add(f"{victim} {what}"),
            )
            with JobProcess(arguments, tmp_path) as job:
                await_progress(job, lambda: len(feed.rows()))
                for sender in senders:
                    sender.stop()
                taken = [len(sender.taken) for sender in senders]
                await_true(lambda: len(feed.rows()) >= sum(taken), lambda: job.err)
                job.signal(signal.SIGTERM)
                assert job.wait().code == 0, job.err
            expected = [(sensor, count + 1) for sensor in range(SENSORS) for count in range(taken[sensor])]
            assert sorted(feed.rows()) == expected
