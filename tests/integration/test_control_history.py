"""A control history larger than one micro-batch is read first, over several, while data waits."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from integration_support import kept_cuts, read_lines, write_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.jobs.runner import JobRunner, Progress, RunHooks
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker

KEYS = 3


@dataclass
class Reading:
    """A reading of a key."""

    key: int


@dataclass
class Label:
    """The label of a key."""

    key: int
    label: str


class Name(ps.ConnectedProcessFunction):
    """Labels readings."""

    label = ps.ValueState(str)

    def process_control(self, label: Label, ctx: ps.Context) -> None:
        self.label.set(label.label)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Label]:
        yield Label(reading.key, self.label.get() or "none")


def name_job() -> ps.Job:
    job = ps.Job("name", key_groups=4)
    readings = job.data_stream("readings", schema=Reading)
    labels = job.control_stream("labels", schema=Label)
    readings.key_by("key").connect(labels.key_by("key")).process("name", Name()).sink_to("named")
    return job


def readings(folder: Path, name: str) -> None:
    write_lines(folder / "readings", name, [{"key": key} for key in range(KEYS)])


def labels(folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Write a label for each key, each in a file of its own."""
    found = [{"key": key, "label": f"{prefix}{key}"} for key in range(KEYS)]
    for label in found:
        write_lines(folder / "labels", f"{prefix}{label['key']}.jsonl", [label])
    return found


def run_until_named(
    spark: SparkSession, bindings: dict[str, str], checkpoint: Path, **more: Any
) -> list[str]:
    """Run until all readings are labelled; return the messages to the user."""
    stop = threading.Event()
    notes: list[str] = []

    def look(progress: Progress) -> None:
        if progress.records_out["named"] >= KEYS:
            stop.set()

    settings = RunSettings(bindings=bindings, checkpoint=str(checkpoint), **more)
    runner = JobRunner(
        name_job(), settings, code={path.name: path for path in Path(__file__).parent.glob("*.py")}
    )
    runner.run(stop, RunHooks(on_progress=look, on_note=notes.append))
    return notes


@pytest.mark.parametrize("bounded", [True, pytest.param(False, marks=pytest.mark.chaos)])
def test_no_reading_overtakes_a_setting_of_a_long_history(
    spark: SparkSession, tmp_path: Path, bounded: bool
) -> None:
    """This holds at the first start, at a later one with much new input, and where each file is a micro-batch."""
    bindings = {name: f"jsonl:{tmp_path}/{name}" for name in ("readings", "labels", "named")}
    bindings["labels"] += "?max_bytes_per_batch=1"
    expected: list[dict[str, Any]] = []
    read = 0
    for number, prefix in enumerate("ab"):
        readings(tmp_path, f"{number}.jsonl")
        expected += labels(tmp_path, prefix)
        notes = run_until_named(spark, bindings, tmp_path / "checkpoint", bounded=bounded)
        assert [note for note in notes if "('labels'). Data waits" in note]
        named = read_lines(tmp_path / "named")
        assert sorted(named, key=lambda found: found["label"]) == expected
        for cut in kept_cuts(tmp_path / "checkpoint")[read:]:
            if cut.ends.get("readings", 0) != number:
                assert cut.ends["labels"] == KEYS * (number + 1), "data has waited"
        read = len(kept_cuts(tmp_path / "checkpoint"))
    assert read >= 2 * KEYS


def test_a_history_of_kafka_is_read_before_data_of_kafka(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both topics are read from their start; one whose binding sets a rate is read beside the data."""
    monkeypatch.setattr("penstock.jobs.job_sources.RECORDS_PER_BATCH", 2)
    bindings = {"named": f"jsonl:{tmp_path}/named"}
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for name in ("readings", "labels"):
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(topic, 2)
        for number in range(2 * KEYS):
            value = {"key": number % KEYS} | ({"label": str(number)} if name == "labels" else {})
            if name == "labels" or number < KEYS:
                producer.produce(topic, json.dumps(value).encode(), partition=number % 2)
        bindings[name] = f"kafka://{kafka.bootstrap}/{topic}?start=earliest"
    assert producer.flush(30) == 0
    notes = run_until_named(spark, bindings, tmp_path / "checkpoint", bounded=True)
    assert [note for note in notes if "Data waits" in note]
    expected = [{"key": key, "label": str(key + KEYS)} for key in range(KEYS)]
    assert sorted(read_lines(tmp_path / "named"), key=lambda found: found["key"]) == expected

    bindings["labels"] += "&max_records_per_batch=2"
    assert not [
        note for note in run_until_named(spark, bindings, tmp_path / "paced", bounded=True) if "waits" in note
    ]
