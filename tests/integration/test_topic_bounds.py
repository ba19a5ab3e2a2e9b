"""Topics have a bound in bytes: the number of records per micro-batch follows from their size."""

from __future__ import annotations

import itertools
import json
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from integration_support import RunJob, kept_cuts, read_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker

RECORDS, RECORD_BYTES = 120, 2000
MAX_BYTES = 40 * RECORD_BYTES


def text_job() -> ps.Job:
    job = ps.Job("texts")
    job.data_stream("texts", schema="number INT, text STRING").sink_to("out")
    return job


def produce(kafka: KafkaBroker, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in numbers:
        value: dict[str, Any] = {"number": number, "text": ""}
        value["text"] = "x" * (RECORD_BYTES - len(json.dumps(value)))
        producer.produce(topic, json.dumps(value).encode(), partition=number % 2)
    assert producer.flush(30) == 0


def test_micro_batches_of_a_topic_have_a_bound_in_bytes(
    run_job: RunJob, spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """The first micro-batch is small; no record is lost where the bound changes; the next run knows the
    record size.
    """
    topic = f"texts-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    uri = f"kafka://{kafka.bootstrap}/{topic}?start=earliest&max_bytes_per_batch={MAX_BYTES}"
    bindings = {"texts": uri, "out": f"jsonl:{tmp_path}/out"}
    taken: list[list[int]] = []
    for run in range(2):
        produce(kafka, topic, range(run * RECORDS, (run + 1) * RECORDS))
        before = len(kept_cuts(tmp_path / "checkpoint")) if run else 0
        run_job(text_job(), bindings)
        ends = [cut.ends["texts"] for cut in kept_cuts(tmp_path / "checkpoint")]
        read = [sum(end.values()) if isinstance(end, dict) else end for end in ends]
        taken.append([to - since for since, to in itertools.pairwise([0, *read])][before:])
    numbers = sorted(record["number"] for record in read_lines(tmp_path / "out"))
    assert numbers == list(range(2 * RECORDS))
    assert taken[0][0] <= 2, "each partition gives at least one"
    assert 30 < max(map(max, taken)) <= 40
    assert taken[1][0] > 30
