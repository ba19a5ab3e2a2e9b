"""Event time and windows on Spark: restarted and rescaled with open windows, with idle partitions, to the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from integration_support import read_lines, write_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.jobs.runner import JobRunner, RunSummary
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker
from penstock.runtime.cuts import batch_numbers, read_cut
from penstock.savepoints.rescaling import rescale

FILES = 6


@dataclass
class Click:
    user: str
    at: int
    number: int


@dataclass
class Session:
    user: str
    start: int
    end: int
    numbers: list[int]


class Show(ps.WindowFunction):
    def process(self, key: str, records: Sequence[Click], ctx: ps.WindowContext) -> Iterator[Session]:
        yield Session(key, ctx.window.start, ctx.window.end, sorted(one.number for one in records))


def described() -> ps.Job:
    """Return a job with sessions and counts of clicks."""
    job, _ = counted("clicks")
    return job


def counted(name: str) -> tuple[ps.Job, ps.DataStream]:
    """Return a job with sessions and counts of clicks, and the stream of the counts."""
    job = ps.Job(name, key_groups=8)
    strategy = ps.Watermarks.bounded("1s").with_idleness("2s")
    clicks = job.data_stream("clicks", schema=Click, event_time="at", watermarks=strategy).key_by("user")
    sessions = clicks.window(ps.SessionWindows("3s")).process("sessions", Show())
    sessions.sink_to("sessions")
    sessions.side_output("late").sink_to("late")
    counts = clicks.window(ps.TumblingWindows("4s")).count("counts")
    counts.sink_to("counts")
    return job, counts


class Checked(ps.ProcessFunction):
    def process_record(self, click: Click, ctx: ps.Context) -> Iterator[Click]:
        if click.number < 0:
            raise ValueError("negative")
        yield click


def united() -> ps.Job:
    """Return a job with sessions over two streams, one of which passes through a step."""
    job = ps.Job("united", key_groups=8)
    clicks, taps = (
        job.data_stream(name, schema=Click, event_time="at", watermarks=ps.Watermarks.bounded("1s"))
        for name in ("clicks", "taps")
    )
    everything = clicks.union(taps.key_by("user").process("checked", Checked())).key_by("user")
    sessions = everything.window(ps.SessionWindows("3s")).process("sessions", Show())
    sessions.sink_to("sessions")
    sessions.side_output("late").sink_to("late")
    sessions.union(sessions.filter(is_long, name="long"), name="told").sink_to("counts")
    return job


def is_long(session: Session) -> bool:
    return len(session.numbers) > 2


def clicks_of(number: int) -> list[dict[str, Any]]:
    """Return the clicks of one file: five seconds of some users, the last of them a second after the others."""
    start = 5000 * number
    return [
        {"user": f"user {n % 7}", "at": start + (n * 700) % 5000, "number": 100 * number + n}
        for n in range(20)
        if (n + number) % 5
    ]


class Runs:
    """Runs of a job over folders, with the files of each stream."""

    def __init__(self, folder: Path, clicks: str = "", job: ps.Job | None = None) -> None:
        self.folder = folder
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self._job = job or described()
        self._streams = {}
        for source in self._job.graph.sources():
            (folder / source.name).mkdir(parents=True)
            self._streams[source.name] = clicks or f"jsonl:{folder / source.name}?max_files_per_batch=1"

    def run(self, until: Callable[[], bool] | None = None, **settings: Any) -> RunSummary:
        """Run to the end, or until a condition holds."""
        bindings = {sink.name: f"jsonl:{self.folder / sink.name}" for sink in self._job.graph.sinks()}
        run = RunSettings(
            bindings=self._streams | bindings,
            bounded=until is None,
            checkpoint=str(self.checkpoint.folder),
            **settings,
        )
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(until, stop))
        watcher.start()
        runner = JobRunner(
            self._job, run, code={path.name: path for path in sorted(Path(__file__).parent.glob("*.py"))}
        )
        summary = runner.run(stop)
        watcher.join()
        return summary

    def _watch(self, until: Callable[[], bool] | None, stop: threading.Event) -> None:
        deadline = time.monotonic() + 120
        while until is not None and not until() and time.monotonic() < deadline:
            time.sleep(0.1)
        if until is not None:
            stop.set()

    def has_read(self, files: int) -> bool:
        """Return whether this many files of each stream are in committed micro-batches."""
        done = batch_numbers(self.checkpoint.folder / "commits")
        if not done:
            return False
        first = json.loads((self.checkpoint.folder / "streams.json").read_text())["first_batch"]
        ends = read_cut(self.checkpoint.folder, first + done[-1]).ends
        return all(ends.get(name, 0) == files for name in self._streams)

    def out(self, name: str) -> list[str]:
        return sorted(json.dumps(record) for record in read_lines(self.folder / name))


def sessions_of(clicks: list[dict[str, Any]]) -> list[Session]:
    """Return the sessions of clicks none of which is late."""
    found: list[Session] = []
    for click in sorted(clicks, key=lambda one: (one["user"], one["at"])):
        if not found or found[-1].user != click["user"] or found[-1].end <= click["at"]:
            found.append(Session(click["user"], click["at"], 0, []))
        found[-1].end = click["at"] + 3000
        found[-1].numbers.append(click["number"])
    return [replace(session, numbers=sorted(session.numbers)) for session in found]


def test_windows_over_a_union_are_those_of_all_its_streams(spark: SparkSession, tmp_path: Path) -> None:
    """The job is stopped and given three tasks while sessions are open; a dead letter names its stream."""
    runs = Runs(tmp_path, job=united())
    everything = []
    for number in range(4):
        taps = [{**tap, "at": tap["at"] + 100, "number": tap["number"] + 1000} for tap in clicks_of(number)]
        bad = {"user": "bad", "at": 5000 * number, "number": -1}
        write_lines(tmp_path / "clicks", f"{number}.jsonl", clicks_of(number))
        write_lines(tmp_path / "taps", f"{number}.jsonl", [bad, *taps])
        everything += [*clicks_of(number), *taps]
        if number == 1:
            runs.run(lambda: runs.has_read(2), parallelism=2)
            rescale(spark, runs.checkpoint, 3)
    runs.run()
    assert not runs.out("late")
    expected = [json.dumps(asdict(session)) for session in sessions_of(everything)]
    assert runs.out("sessions") == sorted(expected)
    long = [json.dumps(asdict(session)) for session in sessions_of(everything) if is_long(session)]
    assert runs.out("counts") == sorted(expected + long)
    letters = read_lines(runs.checkpoint.folder / "dead-letters")
    assert [(letter["stream"], letter["step"], letter["offset"]) for letter in letters] == [
        ("taps", "checked", 0)
    ] * 4


def busier(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda count: (count.value, count.user))


def with_windows_behind() -> ps.Job:
    """Add to the sessions: the user with the most clicks in each four seconds, and the number of users in
    each eight.
    """
    job, counts = counted("busiest")
    busiest = counts.window_all(ps.TumblingWindows("4s")).reduce("busiest", busier)
    busiest.sink_to("busiest")
    users = counts.window_all(ps.TumblingWindows("8s")).count("users")
    users.sink_to("users")
    for late in (busiest.side_output("late"), users.side_output("late")):
        late.sink_to(late.name)
    return job


@pytest.mark.parametrize(
    "rescales", [{3: 3}, pytest.param({1: 3, 3: 1}, marks=pytest.mark.chaos)], ids=["once", "twice"]
)
def test_windows_and_those_behind_them_restarted_and_rescaled(
    spark: SparkSession, tmp_path: Path, rescales: dict[int, int]
) -> None:
    """With all of them open the job is stopped, given other tasks, and run to the end. They equal those of
    all clicks.
    """
    made = [click for number in range(FILES) for click in clicks_of(number)]
    runs = Runs(tmp_path, job=with_windows_behind())
    for number in range(FILES):
        write_lines(runs.folder / "clicks", f"{number}.jsonl", clicks_of(number))
        if number in rescales:
            first = number == min(rescales)
            runs.run(lambda files=number + 1: runs.has_read(files), parallelism=2 if first else None)
            rescale(spark, runs.checkpoint, rescales[number])
    assert runs.run().dead_letters == 0
    for name in ("late", "busiest.late", "users.late"):
        assert not runs.out(name)
    assert runs.out("sessions") == sorted(json.dumps(asdict(session)) for session in sessions_of(made))
    counts: dict[tuple[int, str], int] = {}
    for click in made:
        window = click["at"] // 4000 * 4000, click["user"]
        counts[window] = counts.get(window, 0) + 1
    found = [((start_of(one), one["user"]), one["value"]) for one in read_lines(tmp_path / "counts")]
    assert sorted(found) == sorted(counts.items())
    starts = sorted({start for start, _ in counts})
    busiest = {start: max((n, user) for (at, user), n in counts.items() if at == start) for start in starts}
    assert {start_of(one): (one["value"], one["user"]) for one in read_lines(tmp_path / "busiest")} == busiest
    users = {start_of(one): one["value"] for one in read_lines(tmp_path / "users")}
    assert users == {start: sum(at // 8000 * 8000 == start for at, _ in counts) for start in users}
    assert sum(users.values()) == len(counts)


def start_of(result: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(result["window_start"]).timestamp() * 1000)


def test_an_idle_partition_holds_nothing_back(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Windows fire without input once the partition without records is idle; open windows fire at the end."""
    topic = f"clicks-{time.time_ns()}"
    kafka.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for click in (Click("a", 1000, 1), Click("a", 20_000, 2)):
        value = json.dumps({"user": click.user, "at": click.at, "number": click.number})
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(30) == 0
    runs = Runs(tmp_path, f"kafka://{kafka.bootstrap}/{topic}?start=earliest")
    runs.run(lambda: bool(runs.out("sessions")))
    assert [session["numbers"] for session in read_lines(tmp_path / "sessions")] == [[1]]
    runs.run()
    assert [session["numbers"] for session in read_lines(tmp_path / "sessions")] == [[1], [2]]
    assert [count["value"] for count in read_lines(tmp_path / "counts")] == [1.0, 1.0]
