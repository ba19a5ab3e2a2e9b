"""Kafka, RabbitMQ, MQTT and webhooks beside their plain clients doing the same work, in turns on one server.

Brokers are started here. Sinks wait until the server has each message. Sources put what arrives on disk before they
acknowledge it: penstock into its journal, the plain client into a file that it syncs as often.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import paho.mqtt.client as paho
import pika
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.client_turns import (
    GROUP,
    READING,
    Cost,
    SyncedFile,
    bodies_of,
    check,
    measure,
    receive,
    timed,
    write,
)
from benchmarks.report import print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding, MqttBinding, QueueBinding
from penstock.machine.kafka_broker import KafkaBroker
from penstock.machine.local_server import free_port, listens
from penstock.machine.mosquitto import LocalMosquitto
from penstock.machine.rabbitmq_server import LocalRabbitMQ
from penstock.mqtt.mqtt_receiver import MqttReceiver, session_of
from penstock.rabbitmq.rabbitmq_queue import QueueReceiver
from penstock.sources.kafka_log import KafkaLog
from penstock.sources.partition_names import PartitionNames
from penstock.sources.topic_identity import KnownTopics

_LOGIN: Final = "bench"


class Rabbit:
    """A queue that is written and read."""

    client = "pika"

    def __init__(self, broker: LocalRabbitMQ) -> None:
        self._broker: Final = broker

    def _uri(self, queue: str) -> str:
        return f"amqp://{_LOGIN}:{_LOGIN}@127.0.0.1:{self._broker.port}/%2F/{queue}?create=true"

    def _new_queue(self) -> str:
        return f"bench-{uuid.uuid4().hex[:8]}"

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The sink, into a quorum queue."""
        return write(self._uri(self._new_queue()), blocks)

    def put(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, which waits for the confirmation of each message, as its documentation shows."""
        with self._broker.connect() as connection:
            channel = connection.channel()
            queue = self._new_queue()
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            channel.confirm_delivery()
            return timed(lambda: self._put(channel, queue, blocks))

    def _put(self, channel: Any, queue: str, blocks: Sequence[pa.RecordBatch]) -> None:
        properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
        for body in bodies_of(blocks):
            channel.basic_publish("", queue, body, properties, mandatory=True)

    @contextmanager
    def _filled(self, blocks: Sequence[pa.RecordBatch]) -> Iterator[str]:
        queue = self._new_queue()
        write(self._uri(queue), blocks)
        yield queue
        with self._broker.connect() as connection:
            connection.channel().queue_delete(queue)

    def source(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The receiver."""
        with self._filled(blocks) as queue:
            binding = parse_binding("records", self._uri(queue), "data")
            assert isinstance(binding, QueueBinding)
            return receive(
                lambda journal: QueueReceiver(binding, journal, bounded=True),
                sum(map(len, blocks)),
            )

    def get(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, which acknowledges a group of messages once it is on disk."""
        records, file = sum(map(len, blocks)), SyncedFile()
        with self._filled(blocks) as queue:
            cost = timed(lambda: self._get(queue, records, file))
        file.close()
        return cost

    def _get(self, queue: str, records: int, file: SyncedFile) -> None:
        with self._broker.connect() as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=GROUP)
            for method, _, body in channel.consume(queue):
                if file.add(body):
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if file.count == records:
                    break
            file.sync()
            channel.basic_ack(0, multiple=True)


class Mqtt:
    """A topic that is written and read."""

    client = "paho"

    def __init__(self, broker: LocalMosquitto) -> None:
        self._broker: Final = broker

    def _uri(self, topic: str) -> str:
        return f"mqtt://127.0.0.1:{self._broker.port}/{topic}"

    def _connected(self, name: str = "") -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, name or uuid.uuid4().hex, protocol=paho.MQTTv5, manual_ack=True
        )
        client.max_queued_messages_set(0)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho does not annotate it
        properties.SessionExpiryInterval = 3600 if name else 0
        properties.ReceiveMaximum = GROUP
        client.connect("127.0.0.1", self._broker.port, clean_start=not name, properties=properties)
        return client

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The sink."""
        return write(self._uri("bench"), blocks)

    def put(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, with its thread, which waits at the end until the broker has all messages."""
        client = self._connected()
        client.loop_start()

        def work() -> None:
            for sent in [client.publish("bench", body, 1) for body in bodies_of(blocks)]:
                sent.wait_for_publish()

        cost = timed(work)
        client.disconnect()
        client.loop_stop()
        return cost

    def source(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The receiver, whose session has the messages."""
        topic = uuid.uuid4().hex
        binding = parse_binding("records", f"{self._uri(topic)}?prefetch={GROUP}", "data")
        assert isinstance(binding, MqttBinding)
        session = session_of(binding, topic)
        self._subscribe(session, topic)
        write(self._uri(topic), blocks)
        return receive(
            lambda journal: MqttReceiver(binding, session, journal, bounded=True),
            sum(map(len, blocks)),
        )

    def _subscribe(self, session: str, topic: str) -> None:
        """Make a session that the broker keeps."""
        client = self._connected(session)
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.loop_start()
        client.subscribe(topic, 1)
        if not subscribed.wait(60):
            raise SystemExit("The broker does not answer.")
        client.disconnect()
        client.loop_stop()

    def get(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, which acknowledges a group of messages once it is on disk."""
        topic, records, file = uuid.uuid4().hex, sum(map(len, blocks)), SyncedFile()
        self._subscribe(topic, topic)
        write(self._uri(topic), blocks)
        arrived: list[int] = []

        def take(client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
            arrived.append(message.mid)
            if file.add(bytes(message.payload)) or file.count == records:
                file.sync()
                for number in arrived:
                    client.ack(number, 1)
                arrived.clear()

        def work() -> None:
            client = self._connected(topic)
            client.on_message = take
            client.subscribe(topic, 1)
            while file.count < records:
                client.loop(1)
            client.disconnect()

        cost = timed(work)
        file.close()
        return cost


class Topic:
    """A topic that is written and read."""

    client = "confluent-kafka"

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker

    def _new_topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._broker.create_topic(name, 1)
        return name

    def _uri(self, topic: str) -> str:
        return f"kafka://{self._broker.bootstrap}/{topic}?delivery=at-least-once"

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The sink, at least once."""
        return write(self._uri(self._new_topic()), blocks)

    def put(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, which waits at the end until the broker has all messages."""
        topic = self._new_topic()
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "enable.idempotence": True})

        def work() -> None:
            for body in bodies_of(blocks):
                while True:
                    try:
                        producer.produce(topic, body)
                        break
                    except BufferError:
                        producer.poll(0.1)
            check(producer.flush(), 0)

        return timed(work)

    def source(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The reader of a task, from which a decoder takes whole chunks of values."""
        topic = self._new_topic()
        write(self._uri(topic), blocks)
        binding = parse_binding("records", f"kafka://{self._broker.bootstrap}/{topic}?start=earliest", "data")
        assert isinstance(binding, KafkaBinding)
        names = PartitionNames(topic)
        log = KafkaLog(binding, {}, KnownTopics(Path(), names, {names.of(topic, 0): 0}))

        def work() -> None:
            log.freeze()
            begin = log.beginning()
            splits = log.splits(begin, log.latest(begin, limited=False), 1)
            check(sum(len(chunk.offsets) for chunk in log.read(splits, READING)), sum(map(len, blocks)))

        cost = timed(work)
        log.reader().close()
        return cost

    def get(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, which takes up to 1000 messages at a time and their values."""
        topic, records = self._new_topic(), sum(map(len, blocks))
        write(self._uri(topic), blocks)

        def work() -> None:
            consumer = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": topic})
            consumer.assign([TopicPartition(topic, 0, 0)])
            values: list[bytes | None] = []
            while len(values) < records:
                values += [message.value() for message in consumer.consume(GROUP, 1)]
            consumer.close()

        return timed(work)


class _Hook(BaseHTTPRequestHandler):
    """Takes what is posted, by connections that stay open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve_hook(port: int) -> None:
    """Serve until the process is ended."""
    ThreadingHTTPServer(("127.0.0.1", port), _Hook).serve_forever()


class Hook:
    """A server that takes requests, in another process."""

    client = "httpx"

    def __init__(self, port: int) -> None:
        self._url: Final = f"http://127.0.0.1:{port}/hook"

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The sink, a request after the other."""
        return write(self._url, blocks)

    def put(self, blocks: Sequence[pa.RecordBatch]) -> Cost:
        """The client, by a connection that stays open."""
        with httpx.Client(headers={"Content-Type": "application/json"}) as client:

            def work() -> None:
                for body in bodies_of(blocks):
                    client.post(self._url, content=body).raise_for_status()

            return timed(work)


@contextmanager
def hook_server() -> Iterator[int]:
    """Run the server of webhooks in a process of its own."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve_hook, args=(port,), daemon=True)
    process.start()
    while not listens(port):
        time.sleep(0.05)
    yield port
    process.kill()
    process.join()


def main() -> None:
    """Measure the sinks and sources that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="*", default=["kafka", "rabbitmq", "mqtt", "webhooks"])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results = []
    with ExitStack() as stack:
        found: dict[str, Topic | Rabbit | Mqtt | Hook] = {}
        for name in options.systems:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if name == "kafka":
                found[name] = Topic(stack.enter_context(KafkaBroker()))
            elif name == "rabbitmq":
                found[name] = Rabbit(stack.enter_context(LocalRabbitMQ(folder, _LOGIN, _LOGIN)))
            elif name == "mqtt":
                found[name] = Mqtt(stack.enter_context(LocalMosquitto(folder)))
            else:
                found[name] = Hook(stack.enter_context(hook_server()))
        for name, system in found.items():
            turns = {"penstock": system.sink, "client": system.put}
            results.append(measure(f"{name}, sink", system.client, turns, options))
            if not isinstance(system, Hook):
                turns = {"penstock": system.source, "client": system.get}
                results.append(measure(f"{name}, source", system.client, turns, options))
    table = [
        [
            one["what"],
            one["client"],
            *(f"{one['records_per_s'][who]:,.0f}" for who in ("penstock", "client")),
            f"{one['ratio']:.2f}",
            f"{one['cpu_ratio']:.2f}",
        ]
        for one in results
    ]
    columns = ["", "client", "penstock/s", "client/s", "ratio", "by processor time"]
    print_table("Messages beside the plain clients", columns, table, left=("", "client"))
    print_json({"message_clients": results})


if __name__ == "__main__":
    main()
