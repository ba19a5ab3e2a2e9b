"""Jobs whose topics use Avro with a schema registry."""

from __future__ import annotations

import dataclasses
import io
import json
import struct
import time
from pathlib import Path

import fastavro
from confluent_kafka import Consumer, Producer
from integration_support import RunJob, read_lines

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker


@dataclasses.dataclass
class Reading:
    sensor: int
    celsius: float
    room: str = "hall"


READINGS = (
    {
        "type": "record",
        "name": "Reading",
        "fields": [{"name": "sensor", "type": "int"}, {"name": "celsius", "type": "float"}],
    },
    {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "sensor", "type": "long"},
            {"name": "celsius", "type": "double"},
            {"name": "room", "type": "string", "default": "hall"},
        ],
    },
)


def avro_job() -> ps.Job:
    job = ps.Job("avro")
    job.data_stream("readings", schema=Reading).where("celsius > 20").sink_to("alerts")
    return job


def test_a_job_reads_and_writes_avro_of_a_registry(
    kafka: KafkaBroker, run_job: RunJob, tmp_path: Path
) -> None:
    """Messages of two schema versions become records; broken ones are dead letters; the sink registers its
    schema.
    """
    # Workers import this module as the job's, but do not have the folder of the server.
    from registry_server import running_registry

    topics = {name: f"{name}-avro-{time.time_ns()}" for name in ("readings", "alerts")}
    for topic in topics.values():
        kafka.create_topic(topic, 1)
    with running_registry(("me", "secret")) as registry:
        (tmp_path / "password").write_text("secret\n")
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(20):
            schema = READINGS[number % 2]
            schema_id = registry.register(f"{topics['readings']}-value", schema)
            record = {"sensor": number, "celsius": number + 10.5, "room": "attic"}
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
            producer.produce(topics["readings"], struct.pack(">bI", 0, schema_id) + out.getvalue())
        producer.produce(topics["readings"], b'{"sensor":1}')
        assert producer.flush(30) == 0
        login = f"registry={registry.url}&registry_user=me&registry_password=file:{tmp_path / 'password'}"
        uris = {
            name: f"kafka://{kafka.bootstrap}/{topic}?format=avro&{login}" for name, topic in topics.items()
        }
        uris["readings"] += "&start=earliest"
        uris["alerts"] += "&delivery=exactly-once"
        summary = run_job(avro_job(), uris)
        [alerts_id] = registry.subjects[f"{topics['alerts']}-value"]
        written = fastavro.parse_schema(json.loads(registry.schemas[alerts_id]["schema"]))
    assert summary.records_out == {"alerts": 10}
    assert summary.dead_letters == 1
    [letter] = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert "does not begin with a zero" in letter["reason"]
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "avro", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topics["alerts"]])
    found = []
    while len(found) < 10:
        message = consumer.poll(20)
        assert message is not None, f"only {found}"
        assert message.error() is None
        assert message.value()[:5] == struct.pack(">bI", 0, alerts_id)
        found.append(fastavro.schemaless_reader(io.BytesIO(message.value()[5:]), written, None))
    consumer.close()
    assert found == [
        {"sensor": number, "celsius": number + 10.5, "room": "attic" if number % 2 else "hall"}
        for number in range(10, 20)
    ]
