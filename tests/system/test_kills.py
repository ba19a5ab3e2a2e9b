"""Kill -9 at random moments: per sensor, the commands that come out are exactly those of a fold in plain Python.

Each run has rooms of two sorts (rooms.py). For steady rooms the expected commands do not depend on which readings and
settings share a micro-batch, so they are known beforehand. For lively rooms they do; there the fold follows the cuts,
which Spark's offset log has fixed before the work on a micro-batch began, so that no kill may change them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import pytest
from job_process import EXAMPLE, JobProcess, await_true, kill
from rooms import Record, Rooms, by_sensor, fold, read_folder, write_file

from penstock.local.kafka import KafkaBroker
from penstock.runtime.cuts import Cut, read_cut
from topics import Message, producer, read_topic

Victim = Literal["driver", "jvm", "worker", "any python process"]
VICTIMS: tuple[Victim, ...] = ("driver", "jvm", "worker", "any python process")
STREAMS = ("readings", "settings")


class Pipes(Protocol):
    """Where the job reads and writes."""

    def bindings(self) -> dict[str, str]:
        """The URI of each stream."""

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Give records to the job."""

    def sent(self, stream: str, start: Any, end: Any) -> list[Record]:
        """The records between two ends of cuts; `start` None is the beginning, `end` None takes all."""

    def received(self, at_least: int) -> list[Record]:
        """The commands that the job gave, in order for each sensor."""


class Topics:
    """Topics of a Kafka broker, written by transactions and read by a read_committed consumer."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self._bootstrap = kafka.bootstrap
        self._topics = {name: f"{name}-{time.time_ns()}" for name in (*STREAMS, "heaters")}
        for name, partitions in (("readings", 3), ("settings", 2), ("heaters", 2)):
            kafka.create_topic(self._topics[name], partitions)
        self._producer = producer(self._bootstrap)
        self._read: dict[str, list[Message]] = {}

    def bindings(self) -> dict[str, str]:
        uris = {name: f"kafka://{self._bootstrap}/{topic}" for name, topic in self._topics.items()}
        uris["readings"] += "?start=earliest"
        uris["heaters"] += "?delivery=exactly-once"
        return uris

    def send(self, stream: str, records: Sequence[Record]) -> None:
        for record in records:
            self._producer.produce(
                self._topics[stream], json.dumps(record).encode(), str(record["sensor_id"]).encode()
            )
        self._producer.flush()

    def sent(self, stream: str, start: Any, end: Any) -> list[Record]:
        messages = self._read.get(stream) or read_topic(self._bootstrap, self._topics[stream])
        self._read[stream] = messages
        start = start or {}
        return [
            json.loads(message.value or b"")
            for message in messages
            if message.offset >= start.get(message.partition, 0)
            and (end is None or message.offset < end.get(message.partition, 0))
        ]

    def received(self, at_least: int) -> list[Record]:
        messages = read_topic(self._bootstrap, self._topics["heaters"], at_least)
        records = [json.loads(message.value or b"") for message in messages]
        assert [message.key for message in messages] == [str(r["sensor_id"]).encode() for r in records]
        return records


class Folders:
    """Folders of JSON Lines; the end of a stream in a cut is a number of files."""

    def __init__(self, root: Path) -> None:
        self._folders = {name: root / name for name in (*STREAMS, "heaters")}
        for folder in self._folders.values():
            folder.mkdir()
        self._files: dict[str, list[Sequence[Record]]] = {name: [] for name in STREAMS}

    def bindings(self) -> dict[str, str]:
        return {name: f"jsonl:{folder}" for name, folder in self._folders.items()}

    def send(self, stream: str, records: Sequence[Record]) -> None:
        files = self._files[stream]
        write_file(self._folders[stream], f"{len(files):06}.jsonl", records)
        files.append(records)

    def sent(self, stream: str, start: Any, end: Any) -> list[Record]:
        return list(itertools.chain.from_iterable(self._files[stream][start or 0 : end]))

    def received(self, at_least: int) -> list[Record]:
        return read_folder(self._folders["heaters"])


class Feeder(threading.Thread):
    """Sends readings and settings until it is stopped, and notes the cuts; the checkpoint keeps only the newest."""

    def __init__(self, pipes: Pipes, rooms: Rooms, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self._pipes = pipes
        self._rooms = rooms
        self._checkpoint = checkpoint
        self._stop_asked = threading.Event()
        self._failed: BaseException | None = None
        self.cuts: dict[int, Cut] = {}

    def __enter__(self) -> Self:
        self._pipes.send("settings", self._rooms.first_settings())
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_asked.set()
        self.join()
        assert self._failed is None, self._failed

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(0.1):
                self._pipes.send("readings", self._rooms.readings())
                self._pipes.send("settings", self._rooms.settings())
                self.note_cuts()
        except BaseException as e:
            self._failed = e

    def note_cuts(self) -> None:
        """Read the cuts that are new. A micro-batch that was planned only is planned anew after a stop."""
        for batch_id in numbered(self._checkpoint / "commits") - self.cuts.keys():
            with contextlib.suppress(FileNotFoundError):
                self.cuts[batch_id] = read_cut(self._checkpoint, batch_id)


def numbered(folder: Path) -> set[int]:
    """The batches that a log of the checkpoint has."""
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}


class Run:
    """The job under fire: started again and again on one checkpoint."""

    def __init__(self, pipes: Pipes, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self.checkpoint = folder / "checkpoint"
        defined = [f"-D{name}={uri}" for name, uri in pipes.bindings().items()]
        self._arguments = [str(EXAMPLE), *defined, f"--checkpoint={self.checkpoint}", "-o", "json"]
        self.ended: list[JobProcess] = []
        self.killed: Counter[str] = Counter()

    def process(self, *more: str) -> JobProcess:
        """Start the job."""
        return JobProcess([*self._arguments, *more], self._folder)

    def kill(self, victim: Victim) -> None:
        """Start the job, and kill a part of it at a random moment."""
        with contextlib.ExitStack() as stack:
            job = stack.enter_context(self.process())
            self._await_moment(job, starting=victim in ("driver", "jvm") and self._random.random() < 0.25)
            if victim == "driver":
                job.signal(signal.SIGKILL)
                job.wait()
                # The next run starts now, while the JVM of this one may still be at work.
                self.ended.append(job)
                stack.pop_all()
            else:
                self._kill_part(job, victim)
                self._check_end(job, victim)
        self.killed[victim] += 1

    def _await_moment(self, job: JobProcess, *, starting: bool) -> None:
        if starting:
            await_true(lambda: job.jvms() or not job.running, lambda: f"no JVM: {job.err}")
            time.sleep(self._random.uniform(0, 8))
        else:
            before = max(numbered(self.checkpoint / "commits"), default=-1)
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

    def _check_end(self, job: JobProcess, victim: Victim) -> None:
        """The job ends with a sentence, or, when it can do without what was killed, goes on and is stopped."""
        before = max(numbered(self.checkpoint / "commits"), default=-1)
        await_true(
            lambda: not job.running or max(numbered(self.checkpoint / "commits")) > before + 3,
            lambda: f"neither ended nor went on: {job.out} {job.err}",
        )
        if job.running:
            assert victim != "jvm"
            job.signal(signal.SIGTERM)
            assert job.wait().code == 0
        else:
            result = job.wait()
            assert result.code in (1, 3), result
            assert result.err.strip(), "the job failed without a word"
            assert "Traceback" not in result.err, result.err
        job.await_end_of_family()

    def finish(self) -> dict[str, Any]:
        """Run to the end of the input; nothing that was started before may be left."""
        with self.process("--bounded") as job:
            result = job.wait()
            assert result.code == 0, result.err
            for process in (*self.ended, job):
                process.await_end_of_family()
        return result.summary


def survive(pipes: Pipes, folder: Path, seed: int, victims: Iterable[Victim]) -> None:
    """Kill the victims one after the other, let the job finish, and compare."""
    rooms = Rooms(seed)
    run = Run(pipes, folder, seed)
    with Feeder(pipes, rooms, run.checkpoint) as feeder:
        for victim in victims:
            run.kill(victim)
    summary = run.finish()
    feeder.note_cuts()
    check(pipes, feeder.cuts, summary)


def check(pipes: Pipes, cuts: dict[int, Cut], summary: dict[str, Any]) -> None:
    """Nothing is missing, doubled or out of order, for rooms of either sort."""
    assert sorted(cuts) == list(range(len(cuts))), "every cut was noted"
    by_cuts = fold(batches(pipes, [cuts[batch_id] for batch_id in sorted(cuts)]))
    all_at_once = fold([(pipes.sent("settings", None, None), pipes.sent("readings", None, None))])
    received = by_sensor(pipes.received(sum(map(len, by_cuts.values()))))
    for sensor in Rooms.STEADY:
        assert received[sensor] == all_at_once[sensor], f"steady room {sensor}"
    assert received == by_cuts
    assert any(by_cuts[sensor] != all_at_once.get(sensor) for sensor in Rooms.LIVELY if sensor in by_cuts)
    assert summary["status"] == "finished"
    assert summary["dead_letters"] == 0
    heard_of = {record["sensor_id"] for record in pipes.sent("settings", None, None)}
    assert summary["state"] == {"thermostat": len(heard_of)}


def batches(pipes: Pipes, cuts: Sequence[Cut]) -> Iterable[tuple[list[Record], list[Record]]]:
    """The settings and readings of each micro-batch."""
    ends: dict[str, Any] = dict.fromkeys(STREAMS)
    for cut in cuts:
        # A stream that has had nothing yet has no end.
        parts = {name: pipes.sent(name, ends[name], end) for name, end in cut.ends.items() if name in STREAMS}
        ends.update(cut.ends)
        yield parts.get("settings", []), parts.get("readings", [])
    for name in STREAMS:
        assert pipes.sent(name, ends[name], None) == [], f"all {name} were read"


def test_kills_on_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    """The driver and a worker are killed: a read_committed consumer finds each command once, in order."""
    survive(Topics(kafka), tmp_path, seed=1, victims=["driver", "worker"])


def test_kills_on_folders(tmp_path: Path) -> None:
    """The JVM is killed: the folder has each command once, in order."""
    survive(Folders(tmp_path), tmp_path, seed=2, victims=["jvm"])


def many(seed: int, count: int = 32) -> list[Victim]:
    """Many victims in a random order, of each kind the same number."""
    victims = [VICTIMS[i % len(VICTIMS)] for i in range(count)]
    random.Random(seed).shuffle(victims)
    return victims


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_many_kills_on_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    """As above, with more than 30 kills."""
    survive(Topics(kafka), tmp_path, seed=3, victims=many(3))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_many_kills_on_folders(tmp_path: Path) -> None:
    """As above, with more than 30 kills."""
    survive(Folders(tmp_path), tmp_path, seed=4, victims=many(4))
