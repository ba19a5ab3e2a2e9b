"""Kill -9 at random moments: each sensor's commands equal those of a model in plain Python.

Each run has two kinds of rooms (rooms.py). For steady rooms the expected commands do not depend on which
readings and settings share a micro-batch, so they are known beforehand. For lively rooms they do; there the
model follows the cuts that Spark's offset log fixed before the micro-batch ran, so kills must not change
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import pytest
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill, run_arguments
from pyspark.sql import SparkSession
from reliability import Injected, noting
from rooms import Record, Rooms, by_sensor, fold, read_folder, write_file

from penstock.jobs.runner import RunSummary
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from penstock.runtime.cuts import Cut, read_cut
from topics import Message, producer, read_topic

JOB = Path(__file__).with_name("thermostat_job.py")
Victim = Literal["driver", "jvm", "worker", "any python process"]
VICTIMS: tuple[Victim, ...] = ("driver", "jvm", "worker", "any python process")
STREAMS = ("readings", "settings")
_NAMES: dict[Victim, str] = {
    "driver": "a driver",
    "jvm": "a JVM",
    "worker": "a worker",
    "any python process": "any Python process",
}


class Input(Protocol):
    """The input of one stream of the job."""

    uri: str

    def send(self, records: Sequence[Record]) -> None:
        """Send records to the job."""

    def sent(self, start: Any, end: Any) -> list[Record]:
        """Return the records between two ends of cuts; `start` None is the beginning, `end` None takes all."""


class Topic:
    """A keyed topic; the end in a cut is an offset for each partition."""

    def __init__(self, kafka: KafkaBroker, name: str, partitions: int) -> None:
        self._bootstrap = kafka.bootstrap
        self._name = f"{name}-{time.time_ns()}"
        kafka.create_topic(self._name, partitions)
        self._producer = producer(self._bootstrap)
        self._read: list[Message] = []
        self.uri = f"kafka://{self._bootstrap}/{self._name}"

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            self._producer.produce(self._name, json.dumps(record).encode(), str(record["sensor_id"]).encode())
        self._producer.flush()

    def sent(self, start: Any, end: Any) -> list[Record]:
        self._read = self._read or self.committed()
        start = start or {}
        return [
            json.loads(message.value or b"")
            for message in self._read
            if message.offset >= start.get((self._name, message.partition), 0)
            and (end is None or message.offset < end.get((self._name, message.partition), 0))
        ]

    def committed(self, at_least: int = 0) -> list[Message]:
        """Return what a read_committed consumer sees."""
        return read_topic(self._bootstrap, self._name, at_least)


class Folder:
    """A folder of JSON Lines; the end in a cut is a number of files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._files: list[Sequence[Record]] = []
        self.uri = f"jsonl:{folder}"

    def send(self, records: Sequence[Record]) -> None:
        write_file(self.folder, f"{len(self._files):06}.jsonl", records)
        self._files.append(records)

    def sent(self, start: Any, end: Any) -> list[Record]:
        return list(itertools.chain.from_iterable(self._files[start or 0 : end]))


class Pipes:
    """One stream comes from a topic, the other from a folder. The output goes to both."""

    def __init__(self, kafka: KafkaBroker, root: Path, in_topic: str) -> None:
        self.inputs: dict[str, Input] = {
            name: Topic(kafka, name, 3) if name == in_topic else Folder(root / name) for name in STREAMS
        }
        self._heaters = Topic(kafka, "heaters", 2)
        self._protocol = Folder(root / "protocol")

    def bindings(self) -> dict[str, str]:
        """Return the URI of each stream."""
        uris = {name: found.uri for name, found in self.inputs.items()}
        if uris["readings"].startswith("kafka:"):
            uris["readings"] += "?start=earliest"
        heaters = f"{self._heaters.uri}?delivery=exactly-once"
        return {**uris, "heaters": heaters, "protocol": self._protocol.uri}

    def received(self, at_least: int) -> dict[str, list[Record]]:
        """Return the commands by sink, in order for each sensor."""
        messages = self._heaters.committed(at_least)
        heaters = [json.loads(message.value or b"") for message in messages]
        assert [message.key for message in messages] == [str(r["sensor_id"]).encode() for r in heaters]
        return {"topic": heaters, "folder": read_folder(self._protocol.folder)}


class Feeder(threading.Thread):
    """Sends readings and settings until it is stopped, and records the cuts, of which the checkpoint keeps
    only the newest.
    """

    def __init__(self, pipes: Pipes, rooms: Rooms, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self._pipes = pipes
        self._rooms = rooms
        self._checkpoint = checkpoint
        self._stop_asked = threading.Event()
        self._failed: BaseException | None = None
        self.cuts: dict[int, Cut] = {}

    def __enter__(self) -> Self:
        self._pipes.inputs["settings"].send(self._rooms.first_settings())
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_asked.set()
        self.join()
        assert self._failed is None, self._failed

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(0.1):
                self._pipes.inputs["readings"].send(self._rooms.readings())
                self._pipes.inputs["settings"].send(self._rooms.settings())
                self.note_cuts()
        except BaseException as e:
            self._failed = e

    def note_cuts(self) -> None:
        """Read the new cuts. A micro-batch that was only planned is planned anew after a stop."""
        for batch_id in numbered(self._checkpoint / "commits") - self.cuts.keys():
            with contextlib.suppress(FileNotFoundError):
                self.cuts[batch_id] = read_cut(self._checkpoint, batch_id)


def numbered(folder: Path) -> set[int]:
    """Return the batches that a log of the checkpoint has."""
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}


class Run:
    """The job under attack: restarted again and again on one checkpoint."""

    def __init__(self, pipes: Pipes, folder: Path, seed: int, interval_ms: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self.checkpoint = folder / "checkpoint"
        self._settings = RunSettings(
            bindings=pipes.bindings(), checkpoint=str(self.checkpoint), checkpoint_interval_ms=interval_ms
        )
        self.ended: list[JobProcess] = []

    def kill(self, victim: Victim) -> None:
        """Start the job, and kill a part of it at a random moment."""
        with contextlib.ExitStack() as stack:
            job = stack.enter_context(JobProcess(run_arguments(JOB, self._settings), self._folder))
            starting = victim in ("driver", "jvm") and self._random.random() < 0.25
            self._await_moment(job, starting=starting)
            if victim == "driver":
                job.signal(signal.SIGKILL)
                job.wait()
                # The next run starts now, while the JVM of this one may still be running.
                self.ended.append(job)
                stack.pop_all()
            else:
                self._kill_part(job, victim)
                # At the start it may have been one of the short-lived JVMs that look for Java or compose a command.
                self._check_end(job, may_survive=victim != "jvm" or starting)

    def _await_moment(self, job: JobProcess, *, starting: bool) -> None:
        if starting:
            await_true(lambda: job.jvms() or not job.running, lambda: f"no JVM: {job.err}")
            time.sleep(self._random.uniform(0, 8))
        else:
            # The first micro-batch may have no readings, but those of lively rooms must not all be in one.
            before = max(numbered(self.checkpoint / "commits") | {1})
            await_true(
                lambda: not job.running or max(numbered(self.checkpoint / "commits"), default=-1) > before,
                lambda: f"no micro-batch after {before}: {job.out} {job.err}",
            )
            time.sleep(self._random.uniform(0, 2))
        assert job.running, f"it ended by itself: {job.out} {job.err}"

    def _kill_part(self, job: JobProcess, victim: Victim) -> None:
        def candidates() -> list[int]:
            if victim == "jvm":
                return job.jvms()
            return job.workers(any_kind=victim != "worker")

        found: list[int] = []
        await_true(lambda: found.extend(candidates()) or found, lambda: f"no {victim}: {job.family()}")
        kill(self._random.choice(sorted(found)), signal.SIGKILL)

    def _check_end(self, job: JobProcess, *, may_survive: bool) -> None:
        """Check that the job ends with an error, or that it survives the kill, in which case it is stopped."""
        before = max(numbered(self.checkpoint / "commits"), default=-1)
        await_true(
            lambda: not job.running or max(numbered(self.checkpoint / "commits"), default=-1) > before + 3,
            lambda: f"neither ended nor went on: {job.out} {job.err}",
        )
        if job.running:
            assert may_survive
            job.signal(signal.SIGTERM)
            assert job.wait().code == 0
        else:
            result = job.wait()
            assert result.code in (1, 3), result
            assert result.err.strip(), "the job failed without a word"
            assert "Traceback" not in result.err, result.err
        job.await_end_of_family()

    def finish(self, session: SparkSession) -> RunSummary:
        """Run to the end of the input; no earlier process may be left."""
        with JobInSession(session, JOB, dataclasses.replace(self._settings, bounded=True)) as job:
            summary = job.wait()
        for process in self.ended:
            process.await_end_of_family()
        return summary


def survive(
    pipes: Pipes,
    folder: Path,
    session: SparkSession,
    seed: int,
    victims: Iterable[Victim],
    injected: Injected | None = None,
    interval_ms: int = 0,
) -> None:
    """Kill the victims one after the other, let the job finish, and compare."""
    rooms = Rooms(seed)
    run = Run(pipes, folder, seed, interval_ms)
    with Feeder(pipes, rooms, run.checkpoint) as feeder:
        for victim in victims:
            if injected is not None:
                injected.add(f"kill -9 of {_NAMES[victim]}")
            run.kill(victim)
    summary = run.finish(session)
    feeder.note_cuts()
    if interval_ms:
        check_in_real_time(pipes, summary)
    else:
        check(pipes, feeder.cuts, summary)


def check(pipes: Pipes, cuts: dict[int, Cut], summary: RunSummary) -> None:
    """Check that nothing is missing, doubled or out of order, for both kinds of rooms, in both sinks."""
    assert sorted(cuts) == list(range(len(cuts))), "every cut was noted"
    settings, readings = pipes.inputs["settings"].sent(None, None), pipes.inputs["readings"].sent(None, None)
    by_cuts = fold(batches(pipes, [cuts[batch_id] for batch_id in sorted(cuts)]))
    all_at_once = fold([(settings, readings)])
    for place, commands in pipes.received(sum(map(len, by_cuts.values()))).items():
        received = by_sensor(commands)
        for sensor in Rooms.STEADY:
            assert received[sensor] == all_at_once[sensor], f"steady room {sensor} in the {place}"
        assert received == by_cuts, place
    assert any(by_cuts[sensor] != all_at_once.get(sensor) for sensor in Rooms.LIVELY if sensor in by_cuts)
    assert summary.status == "finished"
    assert summary.dead_letters == 0
    heard_of = {record["sensor_id"] for record in settings}
    assert summary.state == {"thermostat": len(heard_of)}


def check_in_real_time(pipes: Pipes, summary: RunSummary) -> None:
    """The same; where settings and readings meet within an interval, check only that a heater is never
    switched on twice.
    """
    settings, readings = pipes.inputs["settings"].sent(None, None), pipes.inputs["readings"].sent(None, None)
    expected = fold([(settings, readings)])
    count = sum(len(expected[sensor]) for sensor in Rooms.STEADY)
    everywhere = {place: by_sensor(commands) for place, commands in pipes.received(count).items()}
    wrong = {
        (place, sensor): (len(received.get(sensor, [])), len(expected[sensor]))
        for place, received in everywhere.items()
        for sensor in Rooms.STEADY
        if received.get(sensor, []) != expected[sensor]
    }
    assert not wrong, "steady rooms by place, and how many commands they have and should have"
    for place, received in everywhere.items():
        for sensor in Rooms.LIVELY:
            codes = received.get(sensor, [])
            assert all(one != next_one for one, next_one in itertools.pairwise(codes)), (sensor, place)
    assert (summary.status, summary.dead_letters) == ("finished", 0)
    assert summary.state == {"thermostat": len({record["sensor_id"] for record in settings})}


def batches(pipes: Pipes, cuts: Sequence[Cut]) -> Iterable[tuple[list[Record], list[Record]]]:
    """Return the settings and readings of each micro-batch."""
    ends: dict[str, Any] = dict.fromkeys(STREAMS)
    for cut in cuts:
        # A stream without any input yet has no end.
        parts = {
            name: found.sent(ends[name], cut.ends[name])
            for name, found in pipes.inputs.items()
            if name in cut.ends
        }
        ends.update(cut.ends)
        yield parts.get("settings", []), parts.get("readings", [])
    for name, found in pipes.inputs.items():
        assert found.sent(ends[name], None) == [], f"all {name} were read"


def test_kills(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession) -> None:
    """The JVM is killed: a topic and a folder have each command once, in order.

    test_origin_kills.py kills a worker; `make chaos` covers all victims in both modes.
    """
    survive(Pipes(kafka, tmp_path, "readings"), tmp_path, spark, seed=2, victims=["jvm"])


def test_kills_in_real_time(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession) -> None:
    """The driver is killed while tasks run for a second: uncommitted work is repeated once.

    Settings come from the topic, which test_kills uses for readings; `make chaos` covers both combinations.
    """
    pipes = Pipes(kafka, tmp_path, "settings")
    survive(pipes, tmp_path, spark, seed=5, victims=["driver"], interval_ms=1000)


def many(seed: int, count: int = 32) -> list[Victim]:
    """Return many victims in random order, with the same number of each kind."""
    victims = [VICTIMS[i % len(VICTIMS)] for i in range(count)]
    random.Random(seed).shuffle(victims)
    return victims


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("in_topic", "seed"), [("readings", 3), ("settings", 4)])
def test_many_kills(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, in_topic: str, seed: int
) -> None:
    """The same with more than 30 kills."""
    with noting("kills of jobs", f'-k "test_many_kills and {in_topic}"', str(seed)) as injected:
        survive(Pipes(kafka, tmp_path, in_topic), tmp_path, spark, seed, many(seed), injected)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("in_topic", "seed"), [("readings", 11), ("settings", 12)])
def test_many_kills_in_real_time(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, in_topic: str, seed: int
) -> None:
    """The same with 100 kills for each."""
    arguments = f'-k "test_many_kills_in_real_time and {in_topic}"'
    with noting("kills of jobs in real time", arguments, str(seed)) as injected:
        pipes = Pipes(kafka, tmp_path, in_topic)
        survive(pipes, tmp_path, spark, seed, many(seed, 100), injected, interval_ms=1000)
