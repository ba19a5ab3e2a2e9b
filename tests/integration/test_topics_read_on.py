"""A Kafka topic is read on where it was left when Spark begins anew: after a rescale, and from a savepoint."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from integration_support import read_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.jobs.capturing import Capture, capture
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.rescaling import rescale
from penstock.local.kafka import KafkaBroker


@dataclass
class Number:
    n: int


class Keep(ps.ProcessFunction):
    seen = ps.ValueState(int)

    def process_record(self, number: Number, ctx: ps.Context) -> Iterator[Number]:
        self.seen.set((self.seen.get() or 0) + 1)
        yield number


def keep_job() -> ps.Job:
    job = ps.Job("keep-on", key_groups=2)
    job.data_stream("numbers", schema=Number).key_by("n").process("keep", Keep()).sink_to("kept")
    return job


def test_a_topic_is_read_on_after_a_rescale_and_from_a_savepoint(
    run_job: Any, spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Spark notes where a topic begins for its first micro-batch; the note of the one before does not count then."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)

    def write(values: Iterable[int]) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for value in values:
            producer.produce(topic, json.dumps({"n": value}).encode(), partition=0)
        assert producer.flush(30) == 0

    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/{topic}?start=earliest",
        "kept": f"jsonl:{tmp_path}/kept",
    }
    write(range(10))
    run_job(keep_job(), bindings)
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    capture(spark, checkpoint, Capture("savepoint", str(tmp_path / "savepoint"), "arrow", "one"))
    write(range(10, 13))
    rescale(spark, checkpoint, 1)
    assert run_job(keep_job(), bindings).records_in == {"numbers": 3}
    assert len(read_lines(tmp_path / "kept")) == 13
    other = {**bindings, "kept": f"jsonl:{tmp_path}/other"}
    begins = {"checkpoint": str(tmp_path / "from"), "from_savepoint": str(tmp_path / "savepoint")}
    assert run_job(keep_job(), other, **begins).records_in == {"numbers": 3}
