"""Metrics and events of whole jobs: metrics agree with the jobs' work, and each run has its events."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration_support import write_lines
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
from penstock.base.instants import instant_of
from penstock.errors import ExternalSystemError
from penstock.jobs import commit
from penstock.jobs.events import newest_events
from penstock.jobs.phases import PHASES
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.metrics.batch_metrics import newest_batch_metrics, read_batch_metrics
from penstock.spark.progress import ProgressReader


@dataclass
class Visit:
    """A visit of a page."""

    page: int
    at: int


@dataclass
class Total:
    """The number of visits of a page."""

    page: int
    total: int


class Count(ps.ProcessFunction):
    """Counts the visits of each page."""

    total = ps.ValueState(int)

    def process_record(self, visit: Visit, ctx: ps.Context) -> Iterator[Total]:
        if visit.page == 13:
            raise ValueError("an unlucky page")
        total = (self.total.get() or 0) + 1
        self.total.set(total)
        yield Total(visit.page, total)


def visits_job() -> ps.Job:
    job = ps.Job("visits", key_groups=8)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.monotonous())
    visits.key_by("page").process("count", Count(), output=Total).sink_to("totals")
    visits.key_by("page").window(ps.TumblingWindows("1s")).count("windows").sink_to("windows")
    return job


def write_visits(folder: Path, number: int) -> None:
    """Write a file of 200 visits of 20 pages, one second apart, from 200 times the file's number on."""
    visits = [{"page": n % 20, "at": 1000 * (200 * number + n)} for n in range(200)]
    write_lines(folder, f"{number:03}.jsonl", visits)


def test_metrics_and_events_tell_what_a_job_did(tmp_path: Path, run_job: Any) -> None:
    """They are compared micro-batch by micro-batch, over two runs, the second of which fails; neither has a
    password.
    """
    folder, checkpoint = tmp_path / "visits", tmp_path / "checkpoint"
    for number in range(3):
        write_visits(folder, number)
    bindings = {
        "visits": f"jsonl:{folder}?max_files_per_batch=1",
        "totals": f"jsonl:{tmp_path}/totals",
        "windows": f"jsonl:{tmp_path}/windows",
    }
    begun = dt.datetime.now(dt.UTC)
    summary = run_job(visits_job(), bindings, parallelism=2)
    ended = dt.datetime.now(dt.UTC)

    # Time ends in the last micro-batch.
    found = read_batch_metrics(checkpoint)
    assert [metrics.batch for metrics in found] == list(range(summary.batches)) == [0, 1, 2, 3]
    assert {metrics.job_id for metrics in found} == {summary.job_id}
    assert [metrics.records_in for metrics in found] == [{"visits": 200}] * 3 + [{}]
    assert [metrics.dead_letters for metrics in found] == [10, 10, 10, 0]
    last = found[-1]
    assert last.totals.records_in == summary.records_in == {"visits": 600}
    assert last.totals.records_out == summary.records_out
    assert last.totals.dead_letters == summary.dead_letters == 30
    assert last.totals.batches == last.totals.batches_within[-1] == 4
    for metrics in found:
        assert begun <= metrics.started < metrics.ended <= ended
        assert tuple(metrics.phases) == PHASES
        assert metrics.phases["processing"] > 0
        assert sum(metrics.phases.values()) == pytest.approx(metrics.duration_s, abs=0.25, rel=0.2)
        assert metrics.parallelism == 2
    first = found[0]
    count = first.steps["count"]
    assert (count.records, count.keys, count.late) == (200, 19, 0)
    assert count.skew is not None
    assert 1 <= count.skew < 2
    assert count.state_bytes > 0
    # One millisecond less than the time of the newest visit.
    assert count.watermark == instant_of(198_999)
    assert last.steps["count"].watermark == instant_of(598_999)
    assert last.steps["windows"].keys == 0
    assert [metrics.lag["visits"].files for metrics in found] == [2, 1, 0, 0]
    assert [metrics.lag["visits"].seconds == 0 for metrics in found[2:]] == [True, True]
    assert found[1].lag["visits"].seconds is not None
    assert found[1].lag["visits"].seconds > 0
    assert last.memory is not None
    assert min(last.memory.driver_bytes, last.memory.jvm_bytes, last.memory.heap_used_bytes) > 1 << 20

    # A second run continues the same files, and its failure is recorded.
    write_visits(folder, 3)
    broken = "kafka://127.0.0.1:1/totals?sasl.password=canary-1"
    with pytest.raises(ExternalSystemError):
        run_job(visits_job(), {**bindings, "totals": broken}, parallelism=2, started_by="ann")
    events = newest_events(checkpoint, 10)
    assert [(event.event, event.job) for event in events] == [
        ("started", "visits"),
        ("finished", "visits"),
        ("started", "visits"),
        ("failed", "visits"),
    ]
    first_run, end, second_run, failure = events
    assert first_run.details["settings"] == {"bounded": True, "parallelism": 2}
    assert first_run.details["bindings"] == bindings
    assert (first_run.job_id, end.job_id, end.batch) == (summary.job_id, summary.job_id, 3)
    assert second_run.by == "ann"
    assert second_run.details["epoch"] == first_run.details["epoch"] + 1
    assert second_run.details["bindings"]["totals"] == "kafka://127.0.0.1:1/totals?sasl.password=***"
    assert (failure.job_id, failure.details["error"]) == (second_run.job_id, "ExternalSystemError")
    assert "127.0.0.1:1" in failure.details["reason"]
    assert "canary" not in (checkpoint / "events.jsonl").read_text()
    assert newest_batch_metrics(checkpoint) == last


def test_what_comes_after_a_while_of_nothing_has_its_metrics(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reports idle triggers under the number of the next micro-batch."""
    job = ps.Job("rare-visits", key_groups=8)
    visits = job.data_stream("visits", schema=Visit)
    visits.key_by("page").process("count", Count(), output=Total).sink_to("totals")
    write_visits(tmp_path / "visits", 0)
    settings = RunSettings(
        bindings={"visits": f"jsonl:{tmp_path}/visits", "totals": f"jsonl:{tmp_path}/totals"},
        checkpoint=str(tmp_path / "checkpoint"),
        spark_settings={"spark.sql.streaming.noDataProgressEventInterval": "50ms"},
    )
    readers: list[ProgressReader] = []

    def reader(query: StreamingQuery) -> ProgressReader:
        readers.append(ProgressReader(query))
        return readers[-1]

    monkeypatch.setattr(commit, "ProgressReader", reader)
    stop = threading.Event()
    seen: list[int] = []

    def visit() -> None:
        deadline = time.monotonic() + 60
        while len(seen) < 3 and time.monotonic() < deadline:
            told = readers[0].newest if readers else None
            if told is not None and not told.is_batch and told.batch_id == len(seen) + 1:
                seen.append(told.batch_id)
                write_visits(tmp_path / "visits", told.batch_id)
            time.sleep(0.02)
        while len(read_batch_metrics(tmp_path / "checkpoint")) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        stop.set()

    visitor = threading.Thread(target=visit)
    visitor.start()
    JobRunner(
        job, settings, code={path.name: path for path in sorted(Path(__file__).parent.glob("*.py"))}
    ).run(stop)
    visitor.join()
    assert seen == [1, 2, 3]
    found = read_batch_metrics(tmp_path / "checkpoint")
    assert [metrics.batch for metrics in found] == [0, 1, 2, 3]
    assert [metrics.records_in for metrics in found] == [{"visits": 200}] * 4
    assert found[-1].totals.records_in == {"visits": 800}
    assert min(metrics.duration_s for metrics in found) > 0.01
