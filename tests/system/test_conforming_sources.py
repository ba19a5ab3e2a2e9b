"""Sources of penstock pass the conformance kit, on real systems; `test_rabbitmq.py` tests those of RabbitMQ."""

from __future__ import annotations

import itertools
import json
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sources import journaling, table_at
from deltalake import write_deltalake
from lake_tables import iceberg_binding, lake_sink, lake_uri
from mosquitto_broker import MosquittoBroker
from secured_broker import SecuredBroker
from silent_server import in_haste

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FilesBinding, KafkaBinding, SocketBinding
from penstock.brokers import kafka_topics
from penstock.lakes import lake_log
from penstock.lakes.iceberg_catalog import open_existing_table
from penstock.machine.local_server import free_port
from penstock.mqtt import mqtt_connection
from penstock.records.schemas import record_type
from penstock.sources.base import ReplayableLog
from penstock.sources.file_source import FileLog
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.socket import SocketReceiver
from penstock.sources.topic_identity import TopicIdentity
from penstock.testing.connectors import SourceUnderTest, check_source
from topics import produce


def test_files(tmp_path: Path) -> None:
    """Files are added to a folder."""
    folder, numbers = tmp_path / "in", itertools.count()
    folder.mkdir()
    binding = parse_binding("readings", f"jsonl:{folder}", "data")
    assert isinstance(binding, FilesBinding)

    @contextmanager
    def opened() -> Iterator[ReplayableLog[Any]]:
        log = FileLog(binding, tmp_path / "readings.files")
        log.check()
        yield log

    def put(records: Sequence[bytes]) -> None:
        name = f"{next(numbers):05}.jsonl"
        (folder / f".{name}").write_bytes(b"".join(record + b"\n" for record in records))
        (folder / f".{name}").rename(folder / name)

    no_server = "it reads files, without a server"
    note_conformance(
        check_source(
            SourceUnderTest(
                "files",
                "each record once",
                opened,
                put,
                without={"credentials": no_server, "slow server": no_server},
            )
        )
    )


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=WHEN_RECORDING)])
def test_tables_of_lakes(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer appends rows to a table, one commit for all records of a check."""
    monkeypatch.setitem(lake_log._LOOK_S, lake, 0)
    kind = record_type("id BIGINT")
    lake_sink(lake, tmp_path, kind).prepare("feed", "")

    def put(records: Sequence[bytes]) -> None:
        rows = pa.Table.from_pylist([json.loads(record) for record in records], kind.schema)
        if lake == "delta":
            write_deltalake(tmp_path / "table", rows, mode="append")
        else:
            open_existing_table(iceberg_binding(tmp_path)).append(rows)

    no_server = "it reads files, without a server"
    note_conformance(
        check_source(
            SourceUnderTest(
                "Delta Lake" if lake == "delta" else "Iceberg",
                "each record once",
                table_at(lake_uri(lake, tmp_path), tmp_path / "readings.files"),
                put,
                without={
                    "bad record": "the columns of a table have types",
                    "credentials": no_server,
                    "slow server": no_server,
                },
            )
        )
    )


@WHEN_RECORDING
def test_kafka(kafka: SecuredBroker, tmp_path: Path) -> None:
    """The topic has two partitions."""
    topic = f"conforming-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    # A topic exists a moment before its partitions have leaders. The source begins after these records.
    for partition in range(2):
        produce(kafka.bootstrap, topic, [(None, b"before")], partition)
    login = "security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN&sasl.username=ann"

    def opening(servers: str, query: str = "") -> Callable[[], AbstractContextManager[ReplayableLog[Any]]]:
        binding = parse_binding("readings", f"kafka://{servers}/{topic}?start=latest{query}", "data")
        assert isinstance(binding, KafkaBinding)

        @contextmanager
        def opened() -> Iterator[ReplayableLog[Any]]:
            kafka_topics.check_topic(binding, binding.client)
            topics = TopicIdentity(tmp_path)
            topics.begin(binding, binding.client, None)
            yield KafkaLog(binding, binding.client, topics.known["readings"])

        return opened

    note_conformance(
        check_source(
            SourceUnderTest(
                "Kafka",
                "each record once",
                opening(kafka.bootstrap),
                lambda records: produce(kafka.bootstrap, topic, [(None, record) for record in records]),
                with_wrong_login=opening(kafka.secured, f"&{login}&sasl.password=not-the-password"),
                secret="not-the-password",
                at_port=lambda port: opening(f"127.0.0.1:{port}")(),
            )
        )
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    with MosquittoBroker(folder) as started:
        yield started


def test_mqtt(broker: MosquittoBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is a topic, with a session that the broker keeps."""
    folder = tmp_path / "journal"
    wrong = broker.uri("kit", password="not-the-password")
    note_conformance(
        check_source(
            SourceUnderTest(
                "MQTT",
                "at least once",
                journaling(folder, broker.uri("kit")),
                lambda records: broker.publish("kit", list(records)),
                with_wrong_login=journaling(tmp_path / "wrong", wrong),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda port: journaling(tmp_path / "slow", f"mqtt://127.0.0.1:{port}/kit")(),
                    (mqtt_connection, "_ANSWER_S", 1.0),
                ),
            )
        )
    )


def test_sockets(tmp_path: Path) -> None:
    """The server sends lines."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", free_port())) as server:
        binding = parse_binding("readings", f"socket://127.0.0.1:{server.getsockname()[1]}", "data")
        assert isinstance(binding, SocketBinding)

        @contextmanager
        def opened() -> Iterator[ReplayableLog[Any]]:
            with SocketReceiver(binding, JournalWriter(tmp_path)), server.accept()[0] as connection:
                connections.append(connection)
                yield JournalLog(tmp_path)

        def put(records: Sequence[bytes]) -> None:
            connections[-1].sendall(b"".join(record + b"\n" for record in records))

        note_conformance(
            check_source(
                SourceUnderTest(
                    "sockets",
                    "at least once",
                    opened,
                    put,
                    without={
                        "while closed": "the server keeps or loses what it has for a client that is not there",
                        "credentials": "lines come without a login",
                        "slow server": "a server that sends nothing may have nothing to send",
                    },
                )
            )
        )
