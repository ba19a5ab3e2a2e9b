"""Timers on Spark: they fire while no input arrives, once each, also over a restart."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from integration_support import read_lines, write_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings


@dataclass
class Visit:
    """A visit; the session ends this many seconds after it."""

    visitor: int
    seconds: float


@dataclass
class Ended:
    """The end of a visitor's session."""

    visitor: int
    number: int


class Sessions(ps.ProcessFunction):
    """Emits when a visitor has been idle for a while."""

    ended = ps.ValueState(int)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Ended]:
        ctx.timers.register(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=visit.seconds), f"{visit.seconds}")
        return iter(())

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Ended]:
        self.ended.set((self.ended.get() or 0) + 1)
        yield Ended(ctx.key, self.ended.get() or 0)


def job() -> ps.Job:
    found = ps.Job("sessions", key_groups=8)
    visits = found.data_stream("visits", schema=Visit)
    visits.key_by("visitor").process("sessions", Sessions(), output=Ended).sink_to("ended")
    return found


def run_until(tmp_path: Path, count: int) -> int:
    """Run the job until this many sessions have ended; return the number of micro-batches."""
    settings = RunSettings(
        bindings={"visits": f"jsonl:{tmp_path}/visits", "ended": f"jsonl:{tmp_path}/ended"},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    stop = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(read_lines(tmp_path / "ended")) < count:
            time.sleep(0.2)
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    runner = JobRunner(
        job(), settings, code={path.name: path for path in sorted(Path(__file__).parent.glob("*.py"))}
    )
    runner.run(stop)
    watcher.join()
    return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))


def test_timers_are_called_while_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    """Timers that become due while the job is down fire when it is back."""
    write_lines(tmp_path / "visits", "1.jsonl", [{"visitor": n, "seconds": 1.0} for n in range(20)])
    write_lines(tmp_path / "visits", "2.jsonl", [{"visitor": n, "seconds": 5.0} for n in range(20)])
    began = time.monotonic()
    batches = run_until(tmp_path, 20)
    assert batches < 5 + 4 * (time.monotonic() - began)
    run_until(tmp_path, 40)
    ended = [(one["visitor"], one["number"]) for one in read_lines(tmp_path / "ended")]
    assert sorted(ended) == [(visitor, number) for visitor in range(20) for number in (1, 2)]
