"""A checkpoint restored from an older copy: exactly-once sinks never drop output silently."""

from __future__ import annotations

import collections
import random
import re
import shutil
from pathlib import Path

import pytest
from half_done import JOB, SINKS, FolderPipes, Hit, Pipes, TopicPipes, expected
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from reliability import Injected, noting
from state_stores import stop_state_stores

from penstock.errors import CheckpointError
from penstock.jobs.events import read_events
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker


class Restored:
    """A job whose checkpoint is repeatedly copied and restored.

    `times` is how often each hit must have arrived: those that the checkpoint had forgotten arrive once more.
    """

    def __init__(self, pipes: Pipes, folder: Path, session: SparkSession) -> None:
        self._pipes = pipes
        self._session = session
        self._copy = folder / "copy"
        self._hits: list[Hit] = []
        self._times: collections.Counter[int] = collections.Counter()
        self.checkpoint = folder / "checkpoint"

    def send(self, count: int) -> int:
        """Send some hits; return the number of the first."""
        start = len(self._hits)
        new = [{"page": f"page {n % 7}", "number": n} for n in range(start, start + count)]
        self._hits += new
        self._pipes.send(new)
        return start

    def run(self, since: int, new_outputs_from: int | None = None) -> None:
        """Process all input; hits from a number on are new to the checkpoint."""
        settings = RunSettings(
            bindings=self._pipes.bindings(),
            checkpoint=str(self.checkpoint),
            parallelism=2,
            bounded=True,
            new_outputs_from=new_outputs_from,
        )
        try:
            with JobInSession(self._session, JOB, settings) as job:
                job.wait()
        finally:
            # The session continues to maintain the state in the folder that is now copied and restored.
            stop_state_stores(self._session)
        self._times.update(range(since, len(self._hits)))

    def copy(self) -> None:
        """Copy the checkpoint, while no run uses it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.checkpoint, self._copy)

    def put_back(self) -> None:
        """Restore the copy."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self._copy, self.checkpoint)

    def check(self) -> None:
        """Check that every hit is in each sink as often as expected, with the right count."""
        counts = {tally["number"]: tally["hits"] for tally in expected(self._hits)}
        for sink in SINKS:
            received = self._pipes.received(sink)
            found = collections.Counter(tally["number"] for tally in received)
            assert found == self._times, sink
            assert all(tally["hits"] == counts[tally["number"]] for tally in received)


def go_back(job: Restored, random_: random.Random) -> None:
    """Restore a copy that is some micro-batches old: the job is refused, and continues with new outputs."""
    job.run(job.send(random_.randint(5, 30)))
    job.copy()
    forgotten = job.send(random_.randint(5, 30))
    job.run(forgotten)
    for _ in range(random_.randint(0, 2)):
        job.run(job.send(random_.randint(5, 30)))
    job.put_back()
    new = job.send(30)
    with pytest.raises(CheckpointError, match="it has gone back, perhaps to an older copy") as caught:
        job.run(new)
    (number,) = re.findall(r"--new-outputs-from (\d+):", str(caught.value))
    job.run(forgotten, int(number))
    job.check()


def go_on(job: Restored, random_: random.Random) -> None:
    """Restore a copy that is level with the sinks: the job just continues."""
    job.run(job.send(random_.randint(5, 30)))
    job.copy()
    job.put_back()
    job.run(job.send(30))
    job.check()


def rounds(
    pipes: Pipes, folder: Path, session: SparkSession, seed: int, count: int, injected: Injected | None = None
) -> None:
    """Run some rounds on one checkpoint; each fourth copy is level."""
    injected = injected or Injected()
    random_ = random.Random(seed)
    job = Restored(pipes, folder, session)
    for number in range(count):
        level = number % 4 == 3
        injected.add(f"checkpoint put back from a copy, {'as far as' if level else 'behind'} the sinks")
        (go_on if level else go_back)(job, random_)
    events = [event.event for event in read_events(job.checkpoint)]
    assert events[0] == "started"
    assert "outputs-anew" in events
    job.check()


@pytest.mark.chaos  # one round suffices for what they share with topics
def test_folders_drop_nothing_when_a_checkpoint_goes_back(tmp_path: Path, spark: SparkSession) -> None:
    """The job is refused; with new outputs all new output arrives, and forgotten output arrives once more."""
    rounds(FolderPipes(tmp_path), tmp_path, spark, seed=1, count=1)


def test_topics_drop_nothing_when_a_checkpoint_goes_back(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """The same with transactions."""
    rounds(TopicPipes(kafka), tmp_path, spark, seed=1, count=1)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["folders", "topics"])
def test_twenty_copies(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, kind: str) -> None:
    """The same, with copies that are level as well."""
    pipes: Pipes = FolderPipes(tmp_path) if kind == "folders" else TopicPipes(kafka)
    with noting("older copies", f'-k "twenty_copies and {kind}"', "2") as injected:
        rounds(pipes, tmp_path, spark, seed=2, count=20, injected=injected)
