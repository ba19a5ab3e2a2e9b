"""Recording metrics: the reports of tasks and Spark's progress become the metrics of a micro-batch."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.control.encoded_receipts import BatchReceipts, EncodedReceipts
from penstock.control.receipts import RecordPosition, StepTime
from penstock.jobs.compile import CompiledJob, compile_job
from penstock.jobs.metrics_recorder import MetricsRecorder, SlotCounts, count_reports
from penstock.jobs.phases import INTERVAL_PHASES, PHASES, IntervalEnd, phases_of
from penstock.jobs.settings import RunSettings
from penstock.machine.memory import MemoryUse
from penstock.metrics.batch_metrics import (
    BatchMetrics,
    BatchMetricsWriter,
    Lag,
    newest_batch_metrics,
    read_batch_metrics,
)
from penstock.metrics.latency import Latency
from penstock.metrics.task_reports import LATENCY, SLOT_TIME, SlotTime, encode_report
from penstock.runtime.packed_rows import TIME
from penstock.spark.progress import BatchProgress

BEGUN = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
NOTHING = SlotCounts({}, {}, {})


def report(kind: str, name: str, total: int, partition: int = 0) -> Any:
    return SimpleNamespace(kind=kind, name=name, partition=partition, total=total, body=b"")


def told_time(step: str, watermark_ms: int | None, slot: int) -> Any:
    body = msgspec.msgpack.encode(StepTime(watermark_ms))
    return SimpleNamespace(kind=TIME, name=step, partition=slot, total=0, body=body)


def batch_receipts(*outcomes: str) -> BatchReceipts:
    found = [
        EncodedReceipts(
            RecordPosition("commands", "0", offset),
            f"c{offset}",
            outcome,
            b'{"details":"\\"status\\":\\"APPLIED\\""}\n',
        )
        for offset, outcome in enumerate(outcomes)
    ]
    return BatchReceipts.of([], found)


def progress(spark_batch: int, at_s: float = 0.0, **duration_ms: float) -> BatchProgress:
    duration_ms.setdefault("triggerExecution", 1000)
    return BatchProgress(spark_batch, BEGUN + dt.timedelta(seconds=at_s), duration_ms)


@pytest.fixture
def bound(tmp_path: Path) -> CompiledJob:
    """Return a bound job of two streams, a step with windows and one without, and two slots."""
    job = ps.Job("visits", key_groups=4)
    visits = job.data_stream(
        "visits", schema="page INT, at BIGINT", event_time="at", watermarks=ps.Watermarks.monotonous()
    )
    visits.key_by("page").window(ps.TumblingWindows("1s")).count("windows").sink_to("out")
    (tmp_path / "visits").mkdir()
    bindings = {"visits": f"jsonl:{tmp_path}/visits", "out": f"jsonl:{tmp_path}/out"}
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    return compile_job(job, RunSettings(bindings=bindings, parallelism=2), checkpoint)


@pytest.fixture
def recorder(bound: CompiledJob, tmp_path: Path) -> MetricsRecorder:
    found = MetricsRecorder(BatchMetricsWriter(tmp_path), bound, "visits-1")
    found.watch_spark(lambda: 3, lambda: MemoryUse(driver_bytes=7))
    return found


def record(
    recorder: MetricsRecorder, batch: int, reports: Sequence[Any], at_s: float = 0.0, **more: float
) -> BatchMetrics:
    recorder.take(batch, reports, BatchReceipts(), NOTHING, time.monotonic())
    recorder.commit(batch, progress(batch, at_s, **more), {})
    return recorder.latest


def test_reports_are_added_up() -> None:
    """Sums go over tasks and slots, by kind; skew includes slots without records."""
    reports = [
        report("in", "visits", 4),
        report("in", "visits", 2),
        report("records", "count", 4, 0),
        report("records", "count", 2, 2),
        report("late", "count", 1, 0),
        report("late", "count", 2, 2),
        report("without_window", "count", 3),
        told_time("count", 1000, 2),
        report("out", "out", 5, 1),
        report("out", "dead-letters", 2, 1),
        report("keys", "count", 99, 1),
    ]
    held = SlotCounts({"count": {"0": 6, "2": 2}}, {"count": {"0": 100, "2": 50}}, {"count": {"2": 9}})
    found = count_reports(reports, BatchReceipts(), held, ["count", "idle"], 4)
    assert (found.records_in, found.records_out, found.dead_letters) == ({"visits": 6}, {"out": 5}, 2)
    assert (found.late, found.without_window) == ({"count": 3}, {"count": 3})
    assert found.watermarks == {"count": {2: 1000}}
    step = found.steps["count"]
    # The mean is 1.5 records and 2 keys in each of 4 slots.
    assert (step.records, step.skew, step.keys, step.key_skew) == (6, 2.667, 8, 3.0)
    assert (step.state_bytes, step.held_bytes, step.late, step.without_window) == (150, 9, 3, 3)
    assert (found.steps["idle"].records, found.steps["idle"].skew) == (0, None)
    assert not found.is_empty


def test_commands_count_by_what_became_of_them() -> None:
    """Only the outcome counts, not other fields of the receipt, such as the receipt of another command."""
    found = count_reports([], batch_receipts("APPLIED", "APPLIED", "DEGRADED", "REJECTED"), NOTHING, [], 1)
    assert found.commands == {"applied": 2, "degraded": 1, "rejected": 1}
    assert found.is_empty


def test_phases_are_parts_of_the_micro_batch() -> None:
    """The commit to sinks and idle time are subtracted from what Spark reports as time for the batch."""
    told = progress(
        0, latestOffset=10, getBatch=5, queryPlanning=100, walCommit=20, commitOffsets=30, addBatch=900
    )
    found = phases_of(told, 0.2, 0.5)
    assert tuple(found) == PHASES
    assert found == {"offsets": 0.01, "planning": 0.105, "log": 0.05, "processing": 0.2, "sinks": 0.2}
    assert phases_of(progress(0), 0.2, 0.0)["processing"] == 0.0


def test_metrics_of_an_interval(bound: CompiledJob, tmp_path: Path) -> None:
    """Busy time is that of the busiest slot, not the interval's length; phases and latencies are the
    interval's own.
    """
    recorder = MetricsRecorder(BatchMetricsWriter(tmp_path), bound, "visits-1", checkpoint_interval_ms=5000)
    assert tuple(recorder.latest.totals.phases) == INTERVAL_PHASES
    reports = [report("in", "visits", 3), report("out", "out", 3)]
    for slot, rounds_s in enumerate((1.0, 0.5)):
        body = encode_report(SlotTime(0.25, rounds_s, 0.125, 0.125))
        reports.append(SimpleNamespace(kind=SLOT_TIME, name="", partition=slot, total=0, body=body))
        body = encode_report(Latency((0, 2), 0.002, 0.0012))
        reports.append(SimpleNamespace(kind=LATENCY, name="out", partition=slot, total=0, body=body))
    for batch in range(2):
        found = recorder.take(batch, reports, BatchReceipts(), NOTHING, time.monotonic())
        end_s = BEGUN.timestamp() + 4.5
        found.interval_end = IntervalEnd(end_s, end_s + 0.25)
        recorder.commit(batch, progress(batch, triggerExecution=5000, addBatch=4900), {})
    metrics = recorder.latest
    assert (metrics.mode, metrics.checkpoint_interval_ms, metrics.busy_s) == ("real time", 5000, 1.5)
    phases = {
        "reading": 0.25,
        "rounds": 1.0,
        "sinks": 0.125,
        "ending": 0.25,
        "commit": 0.25,
        "waiting": 3.125,
    }
    assert metrics.phases == phases
    assert metrics.latency == {"out": Latency((0, 4), 0.004, 0.0012)}
    assert metrics.totals.latency == {"out": Latency((0, 8), 0.008, 0.0012)}
    assert read_batch_metrics(tmp_path)[-1] == metrics


def test_an_interval_runs_from_its_first_work_on(recorder: MetricsRecorder) -> None:
    """An idle job may wait in an interval for hours, which must not raise an alert."""
    recorder.begin_batch(0)
    recorder.watch_intervals(lambda: 0.0)
    time.sleep(0.01)
    assert recorder.batch_running_s == 0


def test_metrics_of_a_committed_micro_batch(recorder: MetricsRecorder, tmp_path: Path) -> None:
    """They are written, and totals continue from one micro-batch to the next."""
    assert recorder.latest.totals.records_in == {"visits": 0}
    assert recorder.latest.totals.late == {"windows": 0}
    reports = [report("in", "visits", 3), report("records", "windows", 3), report("out", "out", 2)]
    first = record(recorder, 0, reports)
    second = record(recorder, 1, reports, at_s=3.0)
    assert first.idle_s is None
    assert second.idle_s == 2.0
    assert (second.job, second.job_id, second.batch, second.parallelism) == ("visits", "visits-1", 1, 2)
    assert (second.started, second.duration_s) == (BEGUN + dt.timedelta(seconds=3), 1.0)
    assert second.ended == BEGUN + dt.timedelta(seconds=4)
    assert second.records_in == {"visits": 3}
    assert (second.cores, second.memory) == (3, MemoryUse(driver_bytes=7))
    totals = second.totals
    assert (totals.batches, totals.busy_seconds, totals.records_in) == (2, 2.0, {"visits": 6})
    assert (totals.records_out, totals.step_records) == ({"out": 4}, {"windows": 6})
    assert read_batch_metrics(tmp_path) == [first, second]


def test_what_is_not_committed_leaves_no_metrics(recorder: MetricsRecorder, tmp_path: Path) -> None:
    """A repeated micro-batch counts once; one from before the run is not counted."""
    recorder.commit(4, progress(4), {})
    recorder.take(5, [report("in", "visits", 3)], BatchReceipts(), NOTHING, time.monotonic())
    recorder.take(5, [report("in", "visits", 3)], BatchReceipts(), NOTHING, time.monotonic())
    recorder.commit(5, progress(5), {})
    recorder.commit(5, progress(5), {})
    assert [found.batch for found in read_batch_metrics(tmp_path)] == [5]
    assert recorder.latest.totals.records_in == {"visits": 3}


def test_how_long_a_micro_batch_has_been_running(recorder: MetricsRecorder, bound: CompiledJob) -> None:
    """The duration is known while it runs, and 0 between two micro-batches, also after rescaling."""
    assert recorder.batch_running_s == 0
    recorder.begin_batch(0)
    time.sleep(0.01)
    assert 0.01 <= recorder.batch_running_s < 10
    record(recorder, 0, [report("in", "visits", 1)])
    assert recorder.batch_running_s == 0
    recorder.begin_batch(1)
    assert recorder.batch_running_s > 0
    recorder.bind(bound)
    assert recorder.batch_running_s == 0


def test_a_rest_is_no_work(recorder: MetricsRecorder) -> None:
    """An empty micro-batch lasts half a second, but the job was not busy."""
    recorder.take(0, [], BatchReceipts(), NOTHING, time.monotonic())
    recorder.record_rest(0, 0.5)
    recorder.commit(0, progress(0, triggerExecution=600, addBatch=550), {})
    assert recorder.latest.busy_s == pytest.approx(0.1)
    assert recorder.latest.totals.busy_seconds == pytest.approx(0.1)
    assert recorder.latest.phases["processing"] == pytest.approx(0.05, abs=0.01)


def test_empty_micro_batches_are_counted_and_seldom_written(
    recorder: MetricsRecorder, tmp_path: Path
) -> None:
    """Otherwise an idle job with timers would push out the metrics of its busy hours; batches with records
    are written.
    """
    for batch in range(12):
        record(recorder, batch, [], at_s=batch)
    assert [found.batch for found in read_batch_metrics(tmp_path)] == [0, 5, 10]
    record(recorder, 12, [report("in", "visits", 1)], at_s=12)
    newest = newest_batch_metrics(tmp_path)
    assert newest is not None
    assert (newest.batch, newest.totals.batches) == (12, 13)


def test_the_watermark_of_a_step_is_the_smallest_of_its_slots(
    recorder: MetricsRecorder, bound: CompiledJob
) -> None:
    """It stays until slots report an advance, is unknown before, and unknown after rescaling until the new
    slots report.
    """
    told = [report("in", "visits", 1), told_time("windows", None, 0)]
    assert record(recorder, 0, told).steps["windows"].watermark is None
    told = [told_time("windows", 5_000, 0), told_time("windows", 4_000, 2)]
    assert record(recorder, 1, told).steps["windows"].watermark == dt.datetime(
        1970, 1, 1, 0, 0, 4, tzinfo=dt.UTC
    )
    again = record(recorder, 2, [told_time("windows", 6_000, 2)])
    assert again.steps["windows"].watermark == dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)
    end = [told_time("windows", 2**63 - 1, slot) for slot in (0, 2)]
    assert record(recorder, 3, end).steps["windows"].watermark is None
    recorder.bind(bound)
    assert record(recorder, 4, [report("in", "visits", 1)]).steps["windows"].watermark is None
    assert recorder.latest.totals.batches == 5


def test_a_job_goes_on_when_metrics_cannot_be_written(
    recorder: MetricsRecorder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is logged once until writing works again; metrics in memory continue."""
    append = BatchMetricsWriter.append

    def fail(self: BatchMetricsWriter, metrics: BatchMetrics) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BatchMetricsWriter, "append", fail)
    with caplog.at_level(logging.WARNING):
        for batch in range(3):
            record(recorder, batch, [report("in", "visits", 1)])
    assert [message.getMessage() for message in caplog.records] == [
        "The metrics of the job cannot be written ([Errno 28] No space left on device); the job continues without them."
    ]
    assert recorder.latest.totals.batches == 3
    monkeypatch.setattr(BatchMetricsWriter, "append", append)
    record(recorder, 3, [report("in", "visits", 1)])
    assert [(found.batch, found.totals.batches) for found in read_batch_metrics(tmp_path)] == [(3, 4)]


def test_lag_is_brought_up_to_date_between_micro_batches(recorder: MetricsRecorder) -> None:
    """The other fields do not change."""
    before = record(recorder, 0, [report("in", "visits", 1)])
    recorder.see_lag({"visits": Lag(files=3, seconds=2.5)})
    assert recorder.latest.lag == {"visits": Lag(files=3, seconds=2.5)}
    assert before.lag == {}
    assert recorder.latest.batch == 0


def test_recording_costs_a_micro_batch_little(recorder: MetricsRecorder) -> None:
    """At best under 2 ms (the machine may be busy) for 10 steps of 16 slots and a thousand commands."""
    kinds = ("records", "keys", "state_bytes")
    steps = [f"step-{number}" for number in range(10)]
    slots = {str(slot): 1_000 for slot in range(16)}
    held = SlotCounts(*(dict.fromkeys(steps, slots) for _ in range(3)))
    reports = [report(kind, step, 1_000, slot) for kind in kinds for step in steps for slot in range(16)]
    reports += [told_time(step, 1_000, slot) for step in steps for slot in range(16)]
    told = batch_receipts(*["APPLIED"] * 1_000)
    recorder._steps = steps
    times = []
    for batch in range(50):
        begun_s = time.thread_time()
        recorder.take(batch, reports, told, held, time.monotonic())
        recorder.commit(batch, progress(batch), {})
        times.append(time.thread_time() - begun_s)
    assert min(times) < 0.002
    assert recorder.latest.totals.commands["applied"] == 50_000
