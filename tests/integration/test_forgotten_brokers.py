"""A broker that has just started again may name no brokers. The producer of a sink asks until one is named."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import BinaryIO, Final, Self

import pyarrow as pa
from test_topic_messages import read
from test_topic_messages import topic as topic
from waiting import await_true

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.machine.kafka_broker import KafkaBroker
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages

API_VERSIONS: Final = 18
METADATA: Final = 3
UNSUPPORTED: Final = 35
# The requests of an idempotent producer, with their newest versions that the gateway names. Without that of consumers
# (1) librdkafka takes the broker for an old one, and sends messages in an old format.
VERSIONS: Final = {0: 7, 1: 4, METADATA: 1, 22: 1, API_VERSIONS: 0}


class Gateway:
    """Stands before a broker and says which brokers there are: itself, or none. A context manager.

    It passes on everything else, and ends the connections that want this while it names none.
    """

    def __init__(self, server: str, topic: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._topic = topic
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._serving = threading.Thread(target=self._serve)
        self._clients: list[socket.socket] = []
        self._has_forgotten = False
        self.answers_without_brokers = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    def forget(self) -> None:
        """Start again, and name no brokers."""
        self._has_forgotten = True
        self._disconnect()

    def remember(self) -> None:
        """Name itself again."""
        self._has_forgotten = False

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()
        self._disconnect()

    def _disconnect(self) -> None:
        for client in self._clients:
            with suppress(OSError):  # it has gone
                client.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        with suppress(OSError, struct.error), client, socket.create_connection(self._server) as server:
            requests, answers = client.makefile("rb"), server.makefile("rb")
            while True:
                request = _read(requests)
                api, version, number = struct.unpack("!hhi", request[:8])
                if api in (API_VERSIONS, METADATA):
                    answer = struct.pack("!i", number) + self._answer(api, version)
                elif self._has_forgotten:
                    return
                else:
                    server.sendall(struct.pack("!i", len(request)) + request)
                    answer = _read(answers)
                client.sendall(struct.pack("!i", len(answer)) + answer)

    def _answer(self, api: int, version: int) -> bytes:
        if api == API_VERSIONS:
            versions = b"".join(struct.pack("!hhh", key, 0, newest) for key, newest in VERSIONS.items())
            return struct.pack("!hi", UNSUPPORTED if version else 0, len(VERSIONS)) + versions
        if self._has_forgotten:
            self.answers_without_brokers += 1
            # No brokers, no controller, no topics.
            return struct.pack("!iii", 0, -1, 0)
        itself = struct.pack("!i", 1) + _text("127.0.0.1") + struct.pack("!ih", self._port, -1)
        partition = struct.pack("!hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        topic = struct.pack("!h", 0) + _text(self._topic) + struct.pack("!?i", False, 1) + partition
        return struct.pack("!i", 1) + itself + struct.pack("!ii", 1, 1) + topic


def _read(file: BinaryIO) -> bytes:
    (size,) = struct.unpack("!i", file.read(4))
    return file.read(size)


def _text(text: str) -> bytes:
    return struct.pack("!h", len(text)) + text.encode()


def test_a_producer_that_hears_of_no_brokers_asks_again(kafka: KafkaBroker, topic: str) -> None:
    with Gateway(kafka.bootstrap, topic) as gateway:
        binding = parse_binding("seen", f"kafka://{gateway.bootstrap}/{topic}", "sink")
        assert isinstance(binding, KafkaBinding)
        producer = PlainProducer(binding)
        first = producer.send(Messages(pa.array([b"before"]), None))
        await_true(lambda: producer.has_arrived(first), "the first message does not arrive")
        gateway.forget()
        second = producer.send(Messages(pa.array([b"after"]), None))
        await_true(lambda: gateway.answers_without_brokers > 0, "the producer does not ask")
        assert not producer.has_arrived(second)
        gateway.remember()
        await_true(lambda: producer.has_arrived(second), "the producer knows no brokers for good")
    assert [message.value() for message in read(kafka, topic, 2)] == [b"before", b"after"]
