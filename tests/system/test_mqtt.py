"""MQTT: messages of a real broker reach the journal, despite broker restarts and receiver kills."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from file_feed import COUNTING_JOB, SENSORS
from job_in_session import JobInSession
from journaled_records import journaled
from mosquitto_broker import MosquittoBroker
from pyspark.sql import SparkSession
from receiving_process import receiver

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import MqttBinding, Role
from penstock.commands.command_sender import send_command
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError, ExternalSystemError
from penstock.jobs.settings import RunSettings
from penstock.mqtt.mqtt_connection import MqttConnection, check_topic_filter
from penstock.mqtt.mqtt_sink import MqttSink
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import RecordOrigin, RejectingTask, TaskContext

WAIT_S = 60.0
RECEIVING = Path(__file__).with_name("receiving_process.py")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    with MosquittoBroker(tmp_path_factory.mktemp("mosquitto")) as started:
        yield started


def bind(uri: str, role: Role = "data") -> MqttBinding:
    found = parse_binding("readings", uri, role)
    assert isinstance(found, MqttBinding)
    return found


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d\0\n" % number for number in range(*bounds)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def receive(folder: Path, uri: str) -> None:
    """Receive the waiting messages."""
    with receiver(folder, uri, bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())


@pytest.mark.parametrize("protocol", [pytest.param("5", marks=pytest.mark.chaos), "3.1.1"])
def test_messages_come_in_order_also_those_sent_meanwhile(
    broker: MosquittoBroker, protocol: str, tmp_path: Path
) -> None:
    """The broker keeps them for the session from its first connection on."""
    topic = f"order-{protocol}"
    uri = broker.uri(topic, f"?protocol={protocol}")
    receive(tmp_path, uri)
    broker.publish(topic, numbers(3_000))
    receive(tmp_path, uri)
    assert journaled(tmp_path) == numbers(3_000)
    with receiver(tmp_path, uri):
        broker.publish(topic, numbers(3_000, 3_100))
        wait_until(lambda: len(journaled(tmp_path)) == 3_100)
    receive(tmp_path, uri)
    assert journaled(tmp_path) == numbers(3_100)


def test_a_receiver_that_is_there_has_subscribed(
    broker: MosquittoBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the subscription takes, what is published as soon as a run has begun is received."""
    subscribe = MqttConnection.subscribe

    def subscribe_late(connection: MqttConnection) -> None:
        time.sleep(0.3)
        subscribe(connection)

    monkeypatch.setattr(MqttConnection, "subscribe", subscribe_late)
    with receiver(tmp_path / "journal", broker.uri("early")):
        broker.publish("early", numbers(0, 5))
        wait_until(lambda: len(journaled(tmp_path / "journal")) == 5)


def test_a_filter_takes_the_topics_that_match_and_retained_messages_once(
    broker: MosquittoBroker, tmp_path: Path
) -> None:
    """Retained messages are not delivered again to a new connection of the session."""
    broker.publish("hall/1/celsius", [b"kept"], retain=True)
    uri = broker.uri("hall/+/celsius")
    receive(tmp_path, uri)
    broker.publish("hall/2/celsius", [b"a"])
    broker.publish("hall/2/volts", [b"b"])
    receive(tmp_path, uri)
    assert journaled(tmp_path) == [b"kept", b"a"]


def test_a_killed_receiver_loses_nothing(broker: MosquittoBroker, tmp_path: Path) -> None:
    """Kill -9 between the journal write and the acknowledgement: only unacknowledged messages are redelivered."""
    uri = broker.uri("killed", "?prefetch=100")
    receive(tmp_path, uri)
    broker.publish("killed", numbers(1_000))
    with receiving_process(tmp_path, uri) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        count = int(process.stdout.readline())
    assert journaled(tmp_path) == numbers(count)
    receive(tmp_path, uri)
    assert journaled(tmp_path) == [*numbers(count), *numbers(1_000)]


@contextmanager
def receiving_process(folder: Path, uri: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a receiver that hangs between a journal write and the acknowledgement, until the block kills it."""
    command = [sys.executable, str(RECEIVING), str(folder), uri, "waits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_broker_that_restarts_is_found_again(broker: MosquittoBroker, tmp_path: Path) -> None:
    """No message is lost; those in flight may be delivered twice."""
    uri = broker.uri("restarted")
    with receiver(tmp_path, uri) as receiving:
        for low in range(0, 2_000, 500):
            broker.publish("restarted", numbers(low, low + 500))
            broker.stop()
            broker.start()
        wait_until(lambda: set(journaled(tmp_path)) == set(numbers(2_000)))
        assert receiving.error is None


def test_a_connection_over_tls_verifies_the_broker(broker: MosquittoBroker, tmp_path: Path) -> None:
    """It uses the certificates of the URI, since the system does not know this authority."""
    uri = broker.uri("secret", f"?cafile={broker.authority.certificate}", scheme="mqtts")
    receive(tmp_path, uri)
    broker.publish("secret", [b"x"])
    receive(tmp_path, uri)
    assert journaled(tmp_path) == [b"x"]
    with pytest.raises(ExternalSystemError, match=r"no MQTT broker answers .*certificate"):
        check_topic_filter(bind(broker.uri("secret", scheme="mqtts")))


def test_what_is_wrong_is_told(broker: MosquittoBroker, tmp_path: Path) -> None:
    """The error comes at the start of a job, and from doctor, without the password."""
    with pytest.raises(ExternalSystemError, match=r"refuses the connection \(Not authorized\)") as error:
        check_topic_filter(bind(broker.uri("a", password="wr0ng")))
    assert "wr0ng" not in str(error.value)
    with pytest.raises(ExternalSystemError, match=r"no MQTT broker answers at 127\.0\.0\.1:1 "):
        check_topic_filter(bind("mqtt://127.0.0.1:1/a"))
    assert check_binding("readings", bind(broker.uri("a/#")), is_source=True).status == "ok"


def test_a_command_is_sent_to_a_topic(broker: MosquittoBroker, tmp_path: Path) -> None:
    """The broker has it when the sender returns."""
    uri = broker.uri("commands")
    receive(tmp_path, uri)
    command = Command(id="id", kind="pause")
    send_command(command, parse_binding("commands", uri, "control"))
    receive(tmp_path, uri)
    (record,) = journaled(tmp_path)
    assert decode_command(record, max_bytes=1_000).id == "id"


def test_a_sink_publishes_each_record_to_its_topic(broker: MosquittoBroker, tmp_path: Path) -> None:
    """Messages are in order; invalid topic names are rejected, and origins tell messages apart."""
    kind = record_type("room STRING, n BIGINT")
    receive(tmp_path, broker.uri("out/+/alerts"))
    sink = MqttSink(
        bind(broker.uri("out/{room}/alerts", "?origin=true"), "sink"), format_of("json", kind), kind
    )
    sink.prepare("line", "")
    rows = [{"room": "a" if n % 2 else "b", "n": n} for n in range(500)]
    rows[7]["room"], rows[8]["room"] = "a/b", None
    task = sink.task(TaskContext(0, 0, 0, "line"), kind)
    assert isinstance(task, RejectingTask)
    task.come_from(RecordOrigin("", "step", "0", pa.array(range(500), pa.int64()), is_source=False))
    task.write(pa.RecordBatch.from_pylist(rows, kind.schema), None)
    assert [one.row for one in task.rejections()] == [7, 8]
    task.finish()
    receive(tmp_path, broker.uri("out/+/alerts"))
    assert [json.loads(record) for record in journaled(tmp_path)] == [
        row for row in rows if row["n"] not in (7, 8)
    ]
    with pytest.raises(BindingError, match=r"has \{hall\}, which must be a field"):
        MqttSink(bind(broker.uri("out/{hall}"), "sink"), format_of("json", kind), kind)


def test_a_sink_waits_for_a_broker_that_restarts(broker: MosquittoBroker, tmp_path: Path) -> None:
    """Unconfirmed messages are published again."""
    kind = record_type("n BIGINT")
    receive(tmp_path, broker.uri("patient"))
    sink = MqttSink(bind(broker.uri("patient"), "sink"), format_of("json", kind), kind)
    for block in range(4):
        task = sink.task(TaskContext(block, 0, 0, "line"), kind)
        rows = [{"n": n} for n in range(block * 100, block * 100 + 100)]
        back: threading.Timer | None = None
        if block % 2:
            broker.stop()
            back = threading.Timer(0.5, broker.start)
            back.start()
        task.write(pa.RecordBatch.from_pylist(rows, kind.schema), None)
        task.finish()
        if back is not None:
            back.join()
    receive(tmp_path, broker.uri("patient"))
    assert {json.loads(record)["n"] for record in journaled(tmp_path)} == set(range(400))


def test_a_job_reads_readings_of_sensors(
    broker: MosquittoBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """It gets messages from the checkpoint's first start on, also those sent while it was stopped, and
    publishes counts.
    """
    receive(tmp_path / "counts", broker.uri("counts/+"))
    bindings = {"readings": broker.uri("plant/+/readings"), "seen": broker.uri("counts/{sensor}")}
    run = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"), parallelism=2, bounded=True)
    for number in range(2):
        with JobInSession(spark, COUNTING_JOB, run) as job:
            job.wait()
        for sensor in range(SENSORS):
            body = json.dumps({"sensor": sensor, "number": number}).encode()
            broker.publish(f"plant/{sensor % 3}/readings", [body])
    with JobInSession(spark, COUNTING_JOB, run) as job:
        job.wait()
    receive(tmp_path / "counts", broker.uri("counts/+"))
    rows = map(json.loads, journaled(tmp_path / "counts"))
    counts = Counter((row["sensor"], row["count"]) for row in rows)
    assert counts == Counter((sensor, count) for sensor in range(SENSORS) for count in (1, 2))
