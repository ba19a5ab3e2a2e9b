"""Latency in real time: each output of a job is measured from the time of its record to its arrival at the
sink.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_runner import LiveRunner
from memory_log import MemoryLog
from test_intervals import sums_job

import penstock as ps
from penstock.jobs.phases import IntervalEnd, interval_phases
from penstock.jobs.task_measurements import TaskMeasurements
from penstock.metrics.source_times import SourceTimes
from penstock.metrics.task_reports import SlotTime
from penstock.realtime.interval_meter import IntervalMeter
from penstock.records.types import RecordType
from penstock.runtime.writer import Writer
from penstock.sources.base import SourceChunk, Split
from penstock.sources.topic_lag import TopicLag
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.memory_sinks import MemorySink

ECHO = dt.timedelta(seconds=1)


class OldRecords(MemoryLog):
    """A log whose records carry a write time of five seconds ago."""

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        for chunk in super()._read_split(split, record_type):
            times = SourceTimes.at(time.time_ns() // 1_000_000 - 5_000, len(chunk.offsets))
            yield SourceChunk(chunk.partition, chunk.offsets, raw=chunk.raw, times=times)


def measured(reports: Any) -> TaskMeasurements:
    """Return the driver's metrics from the reports of tasks."""
    found = TaskMeasurements()
    for kind, name, partition, total, body in reports:
        found.add(SimpleNamespace(kind=kind, name=name, partition=partition, total=total, body=body))
    return found


def outputs_of(outcome: BatchOutcome) -> dict[str, int]:
    return {name: len(records) for name, records in outcome.outputs.items()}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_each_output_has_a_latency(tmp_path: Path, parallelism: int) -> None:
    """A sink that publishes at once is measured at once, also after a second step; the other one at the commit."""
    with LiveRunner(sums_job(), tmp_path, parallelism) as live:
        live.sinks["counts"][0].exactly_once = False

        def during() -> None:
            for number in range(40):
                live.send("readings", {"room": number % 7, "value": 1 + number % 3})
                time.sleep(0.001)
            live.await_written("counts", 40)

        outcomes = [live.run(during), live.run(during)]
    for outcome in outcomes:
        found = measured(outcome.reports)
        assert outputs_of(outcome) == {"alerts": 40, "counts": 40}
        assert set(found.at_once) == {"counts"}
        assert set(found.emitted) == {"alerts"}
        committed_ms = time.time() * 1000 + 60_000
        latencies = found.latencies(outputs_of(outcome), {}, committed_ms)
        assert {sink: one.outputs for sink, one in latencies.items()} == outputs_of(outcome)
        assert latencies["counts"].longest_s < 30
        assert latencies["alerts"].quantile_s(0.01) >= 60
        assert len(found.slot_times) == parallelism
        assert all(one.busy_s > 0 for one in found.slot_times)


def test_latency_counts_from_the_time_of_the_record(tmp_path: Path) -> None:
    """The source's time counts where it has one, however soon the record was read. After a crash the record
    counts again.
    """
    live = LiveRunner(sums_job(), tmp_path, 2)
    live.logs["readings"] = OldRecords()
    live.sinks["alerts"][0].exactly_once = False
    with live:
        live.send("readings", *({"room": room, "value": 5} for room in range(20)))
        first = live.run(commits=False)
        live.forget()
        again = live.run()
    assert again.data == first.data
    for outcome in (first, again):
        latency = measured(outcome.reports).at_once["alerts"]
        assert latency.outputs == 20
        assert 5 <= latency.sum_s / 20 <= latency.longest_s < 35


@dataclass
class Word:
    text: str
    at: dt.datetime


class Echo(ps.ProcessFunction):
    """Emits a word again at its time."""

    def process_record(self, word: Word, ctx: ps.Context) -> None:
        ctx.timers.register(word.at, word.text)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> Iterator[Word]:
        yield Word(timer.name, timer.at)


def test_what_only_a_timer_causes_counts_from_its_time(tmp_path: Path) -> None:
    """Latency counts from the timer's time, not from the record that set it; also after a second step and in
    repeats.
    """
    job = ps.Job("echoes", key_groups=4)
    echoes = job.data_stream("words", schema=Word).key_by("text").process("echo", Echo(), output=Word)
    echoes.key_by("text").count("counted").sink_to("counts")
    live = LiveRunner(job, tmp_path, 2)
    live.sinks["counts"][0].exactly_once = False

    late_s: list[float] = []

    def speak() -> None:
        due = []
        for text in ("one", "two"):
            due.append(dt.datetime.now(dt.UTC) + ECHO)
            live.send("words", {"text": text, "at": due[-1].isoformat()})
            time.sleep(ECHO.total_seconds() / 2)
        live.await_written("counts", 2)
        done = dt.datetime.now(dt.UTC)
        late_s.extend((done - at).total_seconds() for at in due)

    with live:
        first = live.run(speak, commits=False)
        live.forget()
        again = live.run()
    assert again.data == first.data
    latency = measured(first.reports).at_once["counts"]
    assert latency.outputs == 2
    # Counted from the record, each would take the time of its timer longer.
    assert latency.sum_s < sum(late_s) + ECHO.total_seconds() / 2
    assert measured(again.reports).at_once["counts"].outputs == 2


def test_what_has_no_cause_has_no_latency() -> None:
    """Dead letters have no latency either; the time that sinks took is counted for all output."""
    sinks: Any = {
        "out": (MemorySink(exactly_once=False), None, None),
        "dead-letters": (MemorySink(), None, None),
    }
    plan: Any = None
    meter = IntervalMeter(Writer(plan, sinks, "lineage"), 3)
    meter.add_output("out", 5, 0.25)
    meter.causes = SourceTimes.at(0, 1)
    meter.add_output("dead-letters", 5, 0.25)
    meter.add_output("out", 0, 0.25)
    meter.storing_s = 0.5
    meter.end(2.0, {"visits": TopicLag(7, 1500), "clicks": TopicLag(3, None)})
    found = measured(meter.reports())
    assert (found.at_once, found.emitted) == ({}, {})
    assert found.topic_lags["visits"].seconds == 1.5
    assert (found.topic_lags["clicks"].records, found.topic_lags["clicks"].seconds) == (3, None)
    (slot,) = found.slot_times
    assert (slot.reading_s, slot.rounds_s, slot.sinks_s, slot.storing_s) == (2.0, 0.0, 0.75, 0.5)


def test_much_output_that_is_not_visible_yet_takes_little_room() -> None:
    """This holds for any number of rounds."""
    sinks: Any = {"out": (MemorySink(), None, None)}
    plan: Any = None
    meter = IntervalMeter(Writer(plan, sinks, "lineage"), 0)
    for number in range(10_000):
        meter.causes = SourceTimes.at(number, 1)
        meter.add_output("out", 2, 0.0)
    assert len(meter._emitted["out"]) < 10_000
    (times,) = measured(meter.reports()).emitted["out"]
    assert sum(times.counts) == 20_000
    ((middle, _),) = times.spread(1)
    assert middle == pytest.approx(5_000, rel=0.2)


def test_phases_are_those_of_the_busiest_slot() -> None:
    """The rest of the interval is waiting time; the driver measures the end and the commit."""
    slots = [SlotTime(0.5, 1.0, 0.25, 0.0), SlotTime(0.1, 0.2, 0.1, 0.1)]
    found = interval_phases(5.0, 105.0, slots, IntervalEnd(104.5, 104.75))
    assert found == {
        "reading": 0.5,
        "rounds": 1.0,
        "sinks": 0.25,
        "ending": 0.25,
        "commit": 0.25,
        "waiting": 2.75,
    }
    assert interval_phases(1.0, 105.0, [], None)["waiting"] == 1.0
