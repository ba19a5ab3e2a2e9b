"""Partitions added to a Kafka topic are read while the job runs, on a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from integration_support import read_lines
from job_in_session import JobInSession
from pyspark.sql import SparkSession

from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker


def write(kafka: KafkaBroker, topic: str, partition: int, values: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, json.dumps({"n": value}).encode(), partition=partition)
    assert producer.flush(30) == 0


@pytest.mark.parametrize(
    "mode",
    [pytest.param({"batch_interval_ms": 100}, marks=pytest.mark.chaos), {"checkpoint_interval_ms": 500}],
)
def test_a_partition_that_is_added_is_read(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, mode: dict[str, int]
) -> None:
    """It is read from its start, without a restart, while the other partitions are idle."""
    topic = f"growing-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    # The job files of one session must have different names.
    code = tmp_path / f"growing_{next(iter(mode))}.py"
    code.write_text(
        "import penstock as ps\n"
        'job = ps.Job("growing", key_groups=2)\n'
        'numbers = job.data_stream("numbers", schema="n INT")\n'
        'numbers.key_by("n").count("counted").sink_to("counts")\n'
    )
    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/{topic}?start=latest",
        "counts": f"jsonl:{tmp_path}/counts",
    }
    settings = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"), **mode)
    with JobInSession(spark, code, settings) as job:
        job.await_true(lambda: (tmp_path / "checkpoint" / "sources" / "numbers.topic").exists())
        write(kafka, topic, 0, range(3))
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 3)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        # The broker tells its clients a moment later.
        job.await_true(lambda: len(admin.list_topics(topic, 30).topics[topic].partitions) == 2)
        write(kafka, topic, 1, range(3, 7))
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 7)
        job.stop()
