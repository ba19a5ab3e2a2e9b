"""A Kafka topic is continued at the right position when Spark starts anew: after a rescale, and from a
savepoint.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from integration_support import read_lines
from kept_numbers import keep_job, write_numbers
from pyspark.sql import SparkSession

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.machine.kafka_broker import KafkaBroker
from penstock.savepoints.rescaling import rescale
from penstock.savepoints.snapshot_capture import Capture, capture


def test_a_topic_is_read_on_after_a_rescale_and_from_a_savepoint(
    run_job: Any, spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Spark notes where a topic starts for its first micro-batch; an earlier note must not be used."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    bindings = {
        "numbers": f"kafka://{kafka.bootstrap}/{topic}?start=earliest",
        "kept": f"jsonl:{tmp_path}/kept",
    }
    write_numbers(kafka, topic, range(10))
    run_job(keep_job(), bindings)
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    capture(spark, checkpoint, Capture("savepoint", str(tmp_path / "savepoint"), "arrow", "one"))
    write_numbers(kafka, topic, range(10, 13))
    rescale(spark, checkpoint, 1)
    assert run_job(keep_job(), bindings).records_in == {"numbers": 3}
    assert len(read_lines(tmp_path / "kept")) == 13
    other = {**bindings, "kept": f"jsonl:{tmp_path}/other"}
    begins = {"checkpoint": str(tmp_path / "from"), "from_savepoint": str(tmp_path / "savepoint")}
    assert run_job(keep_job(), other, **begins).records_in == {"numbers": 3}
