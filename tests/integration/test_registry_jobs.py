"""Jobs whose topics use JSON Schema and protobuf with a schema registry."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from integration_support import RunJob, read_lines

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker


def reading_class() -> Any:
    """Return a message class as protoc generates it."""
    file = FileDescriptorProto(name="reading.proto", package="plant", syntax="proto3")
    file.message_type.add(name="Head")
    message = file.message_type.add(name="Reading")
    for number, (name, kind) in enumerate(
        [("sensor", FieldDescriptorProto.TYPE_INT64), ("celsius", FieldDescriptorProto.TYPE_DOUBLE)], 1
    ):
        message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Reading"))


READING = {
    "type": "object",
    "properties": {"sensor": {"type": "integer"}, "celsius": {"type": "number", "maximum": 1000}},
    "required": ["sensor", "celsius"],
}


def test_a_job_reads_json_schema_and_writes_protobuf(
    kafka: KafkaBroker, run_job: RunJob, tmp_path: Path
) -> None:
    """A value that the schema forbids is a dead letter with its path; the messages' proto file is registered."""
    # Workers import this module as the job's, but do not have the folder of the server.
    from registry_server import running_registry

    job = ps.Job("registered")
    job.data_stream("readings", schema=reading_class()).where("celsius > 20").sink_to("alerts")
    topics = {name: f"{name}-registered-{time.time_ns()}" for name in ("readings", "alerts")}
    for topic in topics.values():
        kafka.create_topic(topic, 1)
    with running_registry() as registry:
        number = registry.register(f"{topics['readings']}-value", READING, schemaType="JSON")
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for celsius in (19, 21.5, 2000, 22):
            body = json.dumps({"sensor": 7, "celsius": celsius}).encode()
            producer.produce(topics["readings"], struct.pack(">bI", 0, number) + body)
        assert producer.flush(30) == 0
        place = f"kafka://{kafka.bootstrap}"
        summary = run_job(
            job,
            {
                "readings": f"{place}/{topics['readings']}?format=json&registry={registry.url}&start=earliest",
                "alerts": f"{place}/{topics['alerts']}?format=protobuf&registry={registry.url}",
            },
        )
        [written] = registry.subjects[f"{topics['alerts']}-value"]
    assert summary.records_out == {"alerts": 2}
    [letter] = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert letter["reason"] == f"schema {number}: $.celsius: 2000 is greater than the maximum of 1000"
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "proto", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topics["alerts"]])
    found = []
    while len(found) < 2:
        message = consumer.poll(20)
        assert message is not None, f"only {found}"
        assert message.error() is None
        head, body = message.value()[:7], message.value()[7:]
        assert head == struct.pack(">bI", 0, written) + b"\2\2"
        found.append(reading_class().FromString(body).celsius)
    consumer.close()
    assert found == [21.5, 22.0]
