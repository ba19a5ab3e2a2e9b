"""Each sink of penstock passes the conformance kit, on a real system."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sinks import opening
from deltalake import DeltaTable
from hook_server import Asked, HookServer, Reply
from mosquitto_broker import PASSWORD as MQTT_PASSWORD
from mosquitto_broker import MosquittoBroker
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from postgres_server import PASSWORD, PostgresServer
from pyspark.sql import SparkSession
from secured_broker import SecuredBroker
from silent_server import in_haste
from sink_workers import PARTITIONS, written

from penstock.brokers import kafka_topics
from penstock.databases import postgres_connections
from penstock.mqtt import mqtt_connection
from penstock.sinks.message_parts import ORIGIN_HEADER
from penstock.testing.connectors import SinkUnderTest, StoredRecord, check_sink

NO_SERVER = "it writes files, without a server"


def test_files(tmp_path: Path) -> None:
    """The output is parts of micro-batches in a folder."""

    def stored() -> list[StoredRecord]:
        lines = [line for path in sorted(tmp_path.glob("part-*")) for line in path.read_text().splitlines()]
        return [StoredRecord(**json.loads(line)) for line in lines]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "files",
                "exactly once",
                opening(f"jsonl:{tmp_path}"),
                stored,
                ordered=True,
                without={
                    "bad record": "the destination takes every record",
                    "credentials": NO_SERVER,
                    "slow server": NO_SERVER,
                },
            )
        )
    )


@pytest.mark.parametrize("keyed", [False, pytest.param(True, marks=WHEN_RECORDING)])
def test_delta(tmp_path: Path, keyed: bool) -> None:
    """The output is rows of a Delta Lake table, appended or replaced by id, one commit per micro-batch."""
    table = tmp_path / "table"

    def stored() -> list[StoredRecord]:
        if not (table / "_delta_log").exists():
            return []
        return [StoredRecord(**row) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "Delta Lake, upserts" if keyed else "Delta Lake",
                "exactly once",
                opening(f"delta:{table}?upsert_by=id" if keyed else f"delta:{table}"),
                stored,
                keyed=keyed,
                without={
                    "bad record": "the destination takes every record",
                    "credentials": NO_SERVER,
                    "slow server": NO_SERVER,
                },
            )
        )
    )


@WHEN_RECORDING
def test_a_format_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Spark appends micro-batches to a folder."""
    folder = tmp_path / "json"

    def stored() -> list[StoredRecord]:
        lines = [line for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]
        return [StoredRecord(**json.loads(line)) for line in lines]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "formats of Spark (json)",
                "at least once",
                opening(f"spark:json?path={folder}"),
                stored,
                without={
                    "bad record": "a micro-batch is refused as a whole, and the run ends",
                    "credentials": NO_SERVER,
                    "slow server": NO_SERVER,
                },
            )
        )
    )


@WHEN_RECORDING  # test_kafka_sink.py tests the guarantees, test_files and test_webhooks the kit
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_kafka(kafka: SecuredBroker, tmp_path: Path, delivery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions are tested, and messages with origins."""
    topic = f"conforming-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS, {"max.message.bytes": "20000"})
    query = "delivery=exactly-once" if delivery == "exactly-once" else "origin=true"

    def stored() -> list[StoredRecord]:
        return [StoredRecord(**json.loads(value), mark=mark) for value, mark in messages(kafka, topic)]

    secret = tmp_path / "secret"
    secret.write_text("not-the-password")
    login = f"security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN&sasl.username=ann&sasl.password=file:{secret}"
    note_conformance(
        check_sink(
            SinkUnderTest(
                f"Kafka, {delivery}",
                "exactly once" if delivery == "exactly-once" else "at least once with ids",
                opening(f"kafka://{kafka.bootstrap}/{topic}?{query}"),
                stored,
                bad="x" * 30_000,
                with_wrong_login=opening(f"kafka://{kafka.secured}/{topic}?{query}&{login}"),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda port: opening(f"kafka://127.0.0.1:{port}/{topic}?{query}")(),
                    (kafka_topics.check_topic, "__defaults__", (2.0,)),
                ),
            )
        )
    )


def messages(kafka: SecuredBroker, topic: str) -> list[tuple[bytes, str | None]]:
    """Return all values that readers of committed messages see, with their origins, up to the end of all
    written data.
    """
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    found = []
    with closing(Consumer(settings)) as consumer:
        for partition, end in enumerate(written(kafka, topic)):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None, "the consumer waits for a transaction that nobody ends"
                if message.error() is None:
                    origin = dict(message.headers() or []).get(ORIGIN_HEADER)
                    found.append((message.value(), None if origin is None else origin.decode()))
                elif message.offset() >= end:
                    break
    return found


@pytest.mark.parametrize("keyed", [False, pytest.param(True, marks=WHEN_RECORDING)])
def test_postgresql(postgres: PostgresServer, keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are appended, or upserted by key."""
    url = postgres.new_schema()
    schema = url.rpartition("%3D")[2]
    query = "create_table=true" + ("&upsert_by=id" if keyed else "")

    def uri(port: int, password: str) -> str:
        return f"postgresql://tester:{password}@127.0.0.1:{port}/postgres/{schema}.alerts?{query}"

    def stored() -> list[StoredRecord]:
        with psycopg.connect(url) as connection:
            return [StoredRecord(*row) for row in connection.execute("SELECT id, value FROM alerts")]

    note_conformance(
        check_sink(
            SinkUnderTest(
                "PostgreSQL, upserts" if keyed else "PostgreSQL",
                "exactly once",
                opening(uri(postgres.port, PASSWORD)),
                stored,
                keyed=keyed,
                bad="a\0b",
                with_wrong_login=opening(uri(postgres.port, "not-the-password")),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda port: opening(uri(port, PASSWORD))(),
                    (postgres_connections, "_CONNECT_S", 2),
                ),
            )
        )
    )


def test_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests have idempotency keys."""
    monkeypatch.setenv("RIGHT", "Bearer right")
    monkeypatch.setenv("WRONG", "Bearer not-the-token")

    def reply(asked: Asked) -> Reply:
        if asked.headers["Authorization"] != "Bearer right":
            return Reply(401)
        return Reply(422 if asked.content["value"] == "refused" else 200)

    with HookServer(reply) as server:

        def uri(port: int, login: str) -> str:
            return f"http://127.0.0.1:{port}/hook?header.Authorization=env:{login}&origin=true&timeout_s=1&retry_s=1"

        note_conformance(
            check_sink(
                SinkUnderTest(
                    "webhooks",
                    "at least once with ids",
                    opening(uri(server.port, "RIGHT")),
                    lambda: [StoredRecord(**asked.content, mark=asked.id) for asked in server.taken],
                    ordered=True,
                    bad="refused",
                    with_wrong_login=opening(uri(server.port, "WRONG")),
                    secret="not-the-token",
                    at_port=lambda port: opening(uri(port, "RIGHT"))(),
                )
            )
        )


class Subscriber:
    """A client that keeps all messages below a topic, with their origins."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._found: list[StoredRecord] = []
        self._marks: dict[str, threading.Event] = {"subscribed": threading.Event()}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.username_pw_set("tester", MQTT_PASSWORD)
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: self._marks["subscribed"].set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(f"{topic}/#", 1)
        assert self._marks["subscribed"].wait(20)

    def _take(self, client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
        if message.topic.endswith("/end"):
            self._marks[message.payload.decode()].set()
            return
        properties = message.properties
        assert isinstance(properties, Properties)
        origin = dict(properties.UserProperty)["penstock-origin"]  # type: ignore[attr-defined]
        self._found.append(StoredRecord(**json.loads(message.payload), mark=origin))

    def found(self) -> list[StoredRecord]:
        """Return all messages that the broker has confirmed: it forwards them before any later message."""
        name = uuid.uuid4().hex
        self._marks[name] = threading.Event()
        self._client.publish(f"{self._topic}/end", name, 1)
        assert self._marks[name].wait(20)
        return list(self._found)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    with MosquittoBroker(tmp_path) as started:
        yield started


def test_mqtt(broker: MosquittoBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have origins."""
    subscriber = Subscriber(broker.port, "kit")
    query = "?origin=true"
    try:
        note_conformance(
            check_sink(
                SinkUnderTest(
                    "MQTT",
                    "at least once with ids",
                    opening(broker.uri("kit/{value}", query)),
                    subscriber.found,
                    ordered=True,
                    bad="a/b",
                    with_wrong_login=opening(broker.uri("kit/{value}", query, password="not-the-password")),
                    secret="not-the-password",
                    at_port=in_haste(
                        monkeypatch,
                        lambda port: opening(f"mqtt://127.0.0.1:{port}/kit/{{value}}{query}")(),
                        (mqtt_connection, "_ANSWER_S", 1.0),
                    ),
                )
            )
        )
    finally:
        subscriber.close()
