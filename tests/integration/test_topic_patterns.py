"""All topics that match a pattern are read, also those created while the job runs, on a real broker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from integration_support import RunJob, read_lines
from job_in_session import JobInSession
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import CheckpointError, PlaceMissingError
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker

MODES = [{"batch_interval_ms": 100}, {"checkpoint_interval_ms": 500}]


def placed_job() -> ps.Job:
    job = ps.Job("placed", key_groups=2)
    schema = "n INT, topic STRING, part INT"
    metadata = {"topic": ps.kafka_topic(), "part": ps.kafka_partition()}
    job.data_stream("numbers", schema=schema, metadata=metadata).sink_to("found")
    return job


def write(kafka: KafkaBroker, topic: str, partition: int, values: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, json.dumps({"n": value}).encode(), partition=partition)
    assert producer.flush(30) == 0


def delete(kafka: KafkaBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "allow.auto.create.topics": False})
    admin.delete_topics([topic])[topic].result(30)
    deadline_s = time.monotonic() + 30
    while admin.list_topics(topic, timeout=10).topics[topic].error is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def prefix(kafka: KafkaBroker) -> str:
    found = f"pattern-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(f"{found}-a", 2)
    return found


def found_places(folder: Path) -> list[tuple[int, str, int]]:
    return sorted((row["n"], row["topic"], row["part"]) for row in read_lines(folder))


@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.chaos)])
def test_a_topic_that_appears_is_read(
    spark: SparkSession, kafka: KafkaBroker, prefix: str, tmp_path: Path, mode: dict[str, int]
) -> None:
    """It is read from its start, without a restart; after a restart the job continues in all topics."""
    # The job files of one session must have different names.
    code = tmp_path / f"patterns_{next(iter(mode))}.py"
    code.write_text(
        "import penstock as ps\n"
        'job = ps.Job("patterns", key_groups=2)\n'
        'numbers = job.data_stream("numbers", schema="n INT")\n'
        'numbers.key_by("n").count("counted").sink_to("counts")\n'
    )
    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/~{prefix}-.?start=earliest",
        "counts": f"jsonl:{tmp_path}/counts",
    }
    settings = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"), **mode)
    write(kafka, f"{prefix}-a", 0, range(3))
    with JobInSession(spark, code, settings) as job:
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 3)
        kafka.create_topic(f"{prefix}-b", 1)
        write(kafka, f"{prefix}-b", 0, range(3, 7))
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 7)
        write(kafka, f"{prefix}-a", 1, range(7, 9))
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 9)
        job.stop()
    kafka.create_topic(f"{prefix}-c", 1)
    for number, name in enumerate("abc"):
        write(kafka, f"{prefix}-{name}", 0, [10 + number])
    with JobInSession(spark, code, settings) as job:
        job.await_true(lambda: len(read_lines(tmp_path / "counts")) == 12)
        job.stop()
    assert sorted(row["n"] for row in read_lines(tmp_path / "counts")) == [*range(9), 10, 11, 12]


@pytest.mark.parametrize("mode", [{}, pytest.param(MODES[1], marks=pytest.mark.chaos)])
def test_a_stream_of_one_topic_goes_on_under_a_pattern(
    run_job: RunJob, kafka: KafkaBroker, prefix: str, tmp_path: Path, mode: dict[str, int]
) -> None:
    """Nothing is read twice; each record has its topic and partition."""
    place = f"kafka://{kafka.bootstrap}"
    bindings = {"numbers": f"{place}/{prefix}-a?start=earliest", "found": f"jsonl:{tmp_path}/found"}
    write(kafka, f"{prefix}-a", 1, range(2))
    run_job(placed_job(), bindings, **mode)
    kafka.create_topic(f"{prefix}-b", 1)
    write(kafka, f"{prefix}-a", 0, [2])
    write(kafka, f"{prefix}-b", 0, [3])
    bindings["numbers"] = f"{place}/~{prefix}-.?start=earliest"
    run_job(placed_job(), bindings, **mode)
    a, b = f"{prefix}-a", f"{prefix}-b"
    assert found_places(tmp_path / "found") == [(0, a, 1), (1, a, 1), (2, a, 0), (3, b, 0)]
    bindings["numbers"] = f"{place}/{prefix}-a?start=earliest"
    with pytest.raises(CheckpointError, match=rf"has read the topic '{b}', but its binding names"):
        run_job(placed_job(), bindings, **mode)


@pytest.mark.parametrize("mode", [pytest.param({}, marks=pytest.mark.chaos), MODES[1]])
def test_a_stream_goes_on_without_a_deleted_topic_if_told_to(
    run_job: RunJob, kafka: KafkaBroker, prefix: str, tmp_path: Path, mode: dict[str, int]
) -> None:
    """By default the stream ends with the remedy. Each partition gives one dead letter, once; a new topic of
    that name is refused.
    """
    kafka.create_topic(f"{prefix}-b", 1)
    uri = f"kafka://{kafka.bootstrap}/~{prefix}-.?start=earliest"
    bindings = {"numbers": uri, "found": f"jsonl:{tmp_path}/found"}
    write(kafka, f"{prefix}-a", 0, [0])
    write(kafka, f"{prefix}-b", 0, [1])
    run_job(placed_job(), bindings, **mode)
    delete(kafka, f"{prefix}-b")
    with pytest.raises(PlaceMissingError, match=rf"'{prefix}-b', which no longer exists .* missing=skip"):
        run_job(placed_job(), bindings, **mode)
    bindings["numbers"] = f"{uri}&missing=skip"
    for number in (2, 3):
        write(kafka, f"{prefix}-a", 0, [number])
        run_job(placed_job(), bindings, **mode)
    assert [n for n, _, _ in found_places(tmp_path / "found")] == [0, 1, 2, 3]
    (letter,) = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert (letter["partition"], letter["offset"]) == (f"{prefix}-b-00000", 1)
    assert "was deleted" in letter["reason"]
    kafka.create_topic(f"{prefix}-b", 1)
    with pytest.raises(Exception, match="was deleted and recreated"):
        run_job(placed_job(), bindings, **mode)
