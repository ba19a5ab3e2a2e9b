"""Jobs whose topics are CloudEvents."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from integration_support import RunJob, read_lines

import penstock as ps
from penstock.machine.kafka_broker import KafkaBroker


@dataclasses.dataclass
class Reading:
    event: str
    sensor: int
    celsius: float


def event_job() -> ps.Job:
    job = ps.Job("events")
    job.data_stream("readings", schema=Reading).where("celsius > 20").sink_to("alerts")
    return job


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_a_job_reads_and_writes_cloud_events(
    kafka: KafkaBroker, run_job: RunJob, tmp_path: Path, mode: str
) -> None:
    """An event's id is that of its record; a header tells consumers the type of the body.

    Input events are in the other content mode than the output, except the first.
    """
    topics = {name: f"{name}-events-{time.time_ns()}" for name in ("readings", "alerts")}
    for topic in topics.values():
        kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, celsius in enumerate((19, 21.5, "warm", 22)):
        event = {"specversion": "1.0", "id": f"e{number}", "source": "/hall", "type": "reading"}
        data = {"sensor": number, "celsius": celsius}
        if mode == "structured" and number:
            headers = {f"ce_{name}": value.encode() for name, value in event.items()}
            producer.produce(topics["readings"], json.dumps(data).encode(), headers=headers)
        else:
            producer.produce(topics["readings"], json.dumps({**event, "data": data}).encode())
    assert producer.flush(30) == 0
    place = f"kafka://{kafka.bootstrap}"
    alerts = (
        "event_id=alert-{event}&event_source=/plant/{sensor}&event_type=plant.alert&attributes=event:cause"
    )
    summary = run_job(
        event_job(),
        {
            "readings": f"{place}/{topics['readings']}?format=cloudevents&attributes=event:id&start=earliest",
            "alerts": f"{place}/{topics['alerts']}?format=cloudevents&event_mode={mode}&{alerts}",
        },
    )
    assert summary.records_out == {"alerts": 2}
    [letter] = read_lines(tmp_path / "checkpoint" / "dead-letters")
    assert letter["reason"] == "Expected `float`, got `str` - at `$.data.celsius`"
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "events", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topics["alerts"]])
    found = []
    while len(found) < 2:
        message = consumer.poll(20)
        assert message is not None, f"only {found}"
        assert message.error() is None
        headers = {name: value.decode() for name, value in message.headers()}
        if mode == "structured":
            assert headers == {"content-type": "application/cloudevents+json; charset=UTF-8"}
            found.append(json.loads(message.value()))
            continue
        attributes = {name.removeprefix("ce_"): value for name, value in headers.items() if name[:3] == "ce_"}
        data = json.loads(message.value())
        found.append({**attributes, "datacontenttype": headers["content-type"], "data": data})
    consumer.close()
    assert [event["id"] for event in found] == ["alert-e1", "alert-e3"]
    assert found[0] == {
        "specversion": "1.0",
        "id": "alert-e1",
        "source": "/plant/1",
        "type": "plant.alert",
        "cause": "e1",
        "datacontenttype": "application/json",
        "data": {"sensor": 1, "celsius": 21.5},
    }
