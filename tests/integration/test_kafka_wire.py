"""Kafka and protobuf messages, good and bad, are exchanged with other programs."""

from __future__ import annotations

import base64
import math
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from integration_support import read_lines
from pyspark.sql import SparkSession

from penstock.jobs.job_loader import load_job
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.machine.kafka_broker import KafkaBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "temperature_control"


def test_messages_of_the_plain_library_in_and_out(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Messages from the plain libraries are read, and vice versa; broken ones are kept as dead letters
    unchanged.
    """
    example = load_job(str(EXAMPLE / "job.py"))
    # The module that the job's file has imported.
    import messages_pb2 as messages

    topics = {name: f"{name}-wire-{time.time_ns()}" for name in ("readings", "settings", "heaters")}
    for topic in topics.values():
        kafka.create_topic(topic, 2)
    setting = messages.TemperatureControl(sensorID=7, desired=20, upDelta=1, downDelta=1).SerializeToString()
    warm = messages.SensorData(sensorID=7, temperature=25).SerializeToString()
    cold = messages.SensorData(sensorID=7, temperature=15).SerializeToString()
    no_number = messages.SensorData(sensorID=7, temperature=math.nan).SerializeToString()
    unknown = messages.SensorData(sensorID=8, temperature=99).SerializeToString()
    readings = [warm, warm[:-1], None, unknown, no_number, b"", cold, b"\xff\xff\xff", warm]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topics["settings"], setting)
    for value in readings:
        producer.produce(topics["readings"], value, b"7", partition=1)
    assert producer.flush(30) == 0

    uris = {name: f"kafka://{kafka.bootstrap}/{topic}?format=protobuf" for name, topic in topics.items()}
    uris["readings"] += "&start=earliest"
    uris["heaters"] += "&delivery=exactly-once"
    run = RunSettings(bindings=uris, bounded=True, checkpoint=str(tmp_path / "checkpoint"))
    summary = JobRunner(example.job, run, example.code).run()

    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "wire", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topics["heaters"]])
    found = []
    while len(found) < 3:
        message = consumer.poll(20)
        assert message is not None, f"only {found}"
        assert message.error() is None
        command = messages.HeaterControl.FromString(message.value())
        found.append((message.key(), command.sensorID, messages.HeaterCommand.Name(command.command)))
    consumer.close()
    assert found == [(b"7", 7, "Off"), (b"7", 7, "On"), (b"7", 7, "Off")]
    letters = read_lines(tmp_path / "checkpoint" / "dead-letters")
    places = sorted(
        (letter["partition"], letter["offset"], base64.b64decode(letter["raw"])) for letter in letters
    )
    # In an empty message all fields have their defaults: sensor 0, which has no setting.
    bad = [(number, value or b"") for number, value in enumerate(readings) if number in (1, 2, 4, 7)]
    assert places == [("00001", number, value) for number, value in bad]
    assert summary.dead_letters == 4
    assert summary.records_in == {"readings": len(readings), "settings": 1}
    assert summary.records_out == {"heaters": 3}
