"""Rounds of kills and stops around one micro-batch: a run is killed within it, the next is stopped before it
completes.

The sinks' final content is compared with a model, record by record.
"""

from __future__ import annotations

import collections
import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import standing_job
from job_in_session import JobInSession
from job_process import JobProcess, await_true, kill
from pyspark.sql import SparkSession
from reliability import Injected

from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from penstock.runtime.cuts import batch_numbers, read_cut
from topics import producer, read_topic

__all__ = [
    "FolderPipes",
    "HalfDone",
    "Pipes",
    "RoundsResult",
    "TopicPipes",
    "expected",
    "faults",
    "run_rounds",
]

JOB = Path(standing_job.__file__)
PAGES = 7
SINKS = ("first", "second")
_PLACES = {"first": "the first sink", "second": "the second sink", "counts": "the counts"}
Hit = dict[str, Any]


class Pipes(Protocol):
    """The places of the hits and of the tallies."""

    moments: Sequence[str]

    def bindings(self) -> dict[str, str]:
        """Return the URIs of the stream and of both sinks."""

    def send(self, hits: Sequence[Hit]) -> None:
        """Send hits to the job."""

    def read(self, end: Any) -> bool:
        """Return whether a cut's end includes all hits."""

    def received(self, sink: str) -> list[Hit]:
        """Return the tallies in a sink."""


class FolderPipes:
    """Folders of JSON Lines."""

    moments = ("first", "second", "counts")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = 0
        (root / "hits").mkdir()

    def bindings(self) -> dict[str, str]:
        return {name: f"jsonl:{self._root / name}" for name in ("hits", *SINKS)}

    def send(self, hits: Sequence[Hit]) -> None:
        hidden = self._root / "hits" / ".hidden"
        hidden.write_text("".join(f"{json.dumps(hit)}\n" for hit in hits))
        hidden.rename(self._root / "hits" / f"{self._files:06}.jsonl")
        self._files += 1

    def read(self, end: Any) -> bool:
        return bool(end == self._files)

    def received(self, sink: str) -> list[Hit]:
        files = sorted((self._root / sink).glob("part-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


class TopicPipes:
    """Topics, with exactly-once sinks."""

    moments = ("first", "first-0", "first-1", "second", "second-0", "counts")

    def __init__(self, kafka: KafkaBroker) -> None:
        self._bootstrap = kafka.bootstrap
        self._names = {name: f"{name}-{time.time_ns()}" for name in ("hits", *SINKS)}
        for name in self._names.values():
            kafka.create_topic(name, 3)
        self._producer = producer(self._bootstrap)
        self._sent = 0

    def bindings(self) -> dict[str, str]:
        uris = {name: f"kafka://{self._bootstrap}/{topic}" for name, topic in self._names.items()}
        exactly = {name: f"{uris[name]}?delivery=exactly-once" for name in SINKS}
        return {"hits": f"{uris['hits']}?start=earliest", **exactly}

    def send(self, hits: Sequence[Hit]) -> None:
        for hit in hits:
            self._producer.produce(self._names["hits"], json.dumps(hit).encode(), str(hit["page"]).encode())
        assert self._producer.flush(30) == 0
        self._sent += len(hits)

    def read(self, end: Any) -> bool:
        return sum((end or {}).values()) == self._sent

    def received(self, sink: str) -> list[Hit]:
        found = read_topic(self._bootstrap, self._names[sink])
        return [json.loads(message.value or b"") for message in found]


def expected(hits: Sequence[Hit]) -> list[Hit]:
    """Return the tallies that the model expects."""
    counts: collections.Counter[str] = collections.Counter()
    found = []
    for hit in hits:
        counts[hit["page"]] += 1
        found.append({**hit, "hits": counts[hit["page"]]})
    return found


def faults(hits: Sequence[Hit], received: Sequence[Hit]) -> dict[str, int]:
    """Return how many hits of a sink are missing, doubled, or miscounted."""

    def place(hit: Hit) -> tuple[str, int]:
        return hit["page"], hit["number"]

    found = collections.Counter(map(place, received))
    right = {place(tally): tally["hits"] for tally in expected(hits)}
    return {
        "lost": sum(1 for one in right if one not in found),
        "doubled": sum(count - 1 for count in found.values()),
        "wrong": sum(1 for tally in received if right.get(place(tally)) != tally["hits"]),
    }


@dataclass
class RoundsResult:
    """The result of several rounds."""

    rounds: int = 0
    hits: int = 0
    pending: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    moments: dict[str, int] = field(default_factory=dict)
    stopped_after_s: list[float] = field(default_factory=list)
    kept_plans: int = 0
    injected: Injected = field(default_factory=Injected)


class HalfDone:
    """A job that is repeatedly killed and stopped around one micro-batch, on one checkpoint."""

    def __init__(self, pipes: Pipes, folder: Path, seed: int) -> None:
        self._pipes = pipes
        self._folder = folder
        self._random = random.Random(seed)
        self._hits: list[Hit] = []
        self._stand = folder / "stand"
        self._stand.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.result = RoundsResult()

    def round(self, job: JobProcess, moment: str) -> None:
        """Kill a running job within a micro-batch, start it and stop it at once, and send it more input."""
        (self._stand / moment).touch()
        self.send(40)
        await_true(
            lambda: (self._stand / standing_job.STOOD).exists() or not job.running,
            lambda: f"it does not come to {moment}: {job.out} {job.err}",
        )
        assert job.running, f"it ended by itself: {job.out} {job.err}"
        self.result.injected.add(f"kill within a micro-batch, behind {_PLACES[moment.partition('-')[0]]}")
        job.signal(signal.SIGKILL)
        for pid in job.family():
            kill(pid, signal.SIGKILL)
        job.await_end_of_family()
        for path in list(self._stand.iterdir()):
            path.unlink()
        planned = self.pending()
        assert planned is not None, "it was killed within a micro-batch"
        self.result.pending += 1
        self.result.moments[moment] = self.result.moments.get(moment, 0) + 1
        self._stop_at_once()
        self.result.kept_plans += self.pending() == planned
        self.send(40)

    def pending(self) -> int | None:
        """Return the micro-batch that was planned but not committed, if any."""
        planned, committed = (
            max(batch_numbers(self.checkpoint / name), default=-1) for name in ("offsets", "commits")
        )
        return planned if planned > committed else None

    def send(self, count: int) -> None:
        """Send hits of all pages."""
        start = len(self._hits)
        new = [{"page": f"page {n % PAGES}", "number": n} for n in range(start, start + count)]
        self._hits += new
        self._pipes.send(new)

    @contextmanager
    def job(self) -> Iterator[JobProcess]:
        """Start the job."""
        bindings = [f"-D{name}={uri}" for name, uri in self._pipes.bindings().items()]
        arguments = [str(JOB), *bindings, "--checkpoint", str(self.checkpoint), "--parallelism", "2"]
        with JobProcess(arguments, self._folder, {standing_job.FOLDER: str(self._stand)}) as job:
            yield job

    def job_in(self, session: SparkSession) -> JobInSession:
        """Run the job in a session of this process, without stalls."""
        settings = RunSettings(
            bindings=self._pipes.bindings(), checkpoint=str(self.checkpoint), parallelism=2
        )
        return JobInSession(session, JOB, settings)

    def await_rest(self, job: JobProcess | JobInSession) -> None:
        """Wait until all hits are processed, and compare the sinks."""
        await_true(
            lambda: not job.running or self._is_done(),
            lambda: f"not all was processed: {job.err}",
        )
        assert job.running, f"it ended by itself: {job.err}"
        found = [faults(self._hits, self._pipes.received(sink)) for sink in SINKS]
        self.result.hits = len(self._hits)
        for name in ("lost", "doubled", "wrong"):
            setattr(self.result, name, max(one[name] for one in found))

    def _is_done(self) -> bool:
        committed = batch_numbers(self.checkpoint / "commits")
        if not committed or self.pending() is not None:
            return False
        try:
            cut = read_cut(self.checkpoint, committed[-1])
        except FileNotFoundError:
            return False
        return self._pipes.read(cut.ends.get("hits"))

    def _stop_at_once(self) -> None:
        epoch = self.checkpoint / "epoch.json"
        before = epoch.read_bytes()
        with self.job() as job:
            await_true(lambda: epoch.read_bytes() != before, lambda: f"it does not start: {job.err}")
            delay_s = self._random.uniform(0.5, 7)
            self.result.stopped_after_s.append(round(delay_s, 2))
            time.sleep(delay_s)
            self.result.injected.add("stop of the next run while it starts")
            job.signal(signal.SIGTERM)
            result = job.wait()
            assert result.code == 0, result
            job.await_end_of_family()


def run_rounds(
    pipes: Pipes,
    folder: Path,
    session: SparkSession,
    seed: int,
    rounds: int,
    injected: Injected | None = None,
) -> RoundsResult:
    """Run several rounds; the comparison at the end covers all of them."""
    half_done = HalfDone(pipes, folder, seed)
    half_done.result.injected = injected or Injected()
    half_done.send(20)
    for number in range(rounds):
        with half_done.job() as job:
            half_done.await_rest(job)
            half_done.round(job, pipes.moments[number % len(pipes.moments)])
        half_done.result.rounds += 1
    with half_done.job_in(session) as last:
        half_done.await_rest(last)
        assert last.stop().status == "stopped"
    return half_done.result
