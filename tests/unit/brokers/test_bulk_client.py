"""Bulk client: columns of messages, sent by one librdkafka call, arrive as if sent one by one."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from mock_broker import MOCK, TOPIC, bootstrap_of, read
from waiting import await_true

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers.bulk_client import BulkClient
from penstock.brokers.kafka_topics import LastError, kafka_log
from penstock.errors import BindingError, ExternalSystemError
from penstock.sinks import kafka_producers
from penstock.sinks.kafka_producers import PlainProducer
from penstock.sinks.message_parts import Messages


class Client(BulkClient):
    """A bulk client with its delivery reports."""

    def __init__(self, **settings: str) -> None:
        self.failures: list[KafkaError] = []
        failures = self.failures
        own = {
            "error_cb": LastError(),
            "logger": kafka_log,
            "on_delivery": lambda error, _: failures.append(error),
        }
        super().__init__({**own, "partitioner": "murmur2_random", **settings}, TOPIC)


@pytest.fixture(scope="module")
def mock_client() -> Client:
    """Return a client whose broker all tests of a module share."""
    return Client(**MOCK)


@pytest.mark.parametrize("count", [3, 40, 1500])
def test_messages_arrive_as_those_of_the_client_s_own_calls(count: int) -> None:
    """Partitions and order are the same, for few and many messages; parts may be missing or empty, columns
    may be slices.
    """
    values = [None, b"", *(b"value %d" % number for number in range(count))]
    keys = [b"no value", b"empty value", *(b"%d" % (number % 7) for number in range(count))]
    whole = pa.array([b"before", *values, b"after"], pa.binary()), pa.array([b"x", *keys, b"y"], pa.binary())
    ours, theirs = Client(**MOCK), Client(**MOCK)
    queued = ours.produce(*(column.slice(1, len(values)) for column in whole))
    assert (queued, ours.flush(30)) == (len(values), 0)
    # The other client's messages are on a separate broker.
    single = Producer({"bootstrap.servers": bootstrap_of(theirs), "partitioner": "murmur2_random"})
    for value, key in zip(values, keys, strict=True):
        single.produce(TOPIC, value, key)
    single.flush(30)
    expected = read(bootstrap_of(theirs), len(values))
    assert sum(map(len, expected)) == len(values)
    assert read(bootstrap_of(ours), len(values)) == expected


@pytest.mark.parametrize("count", [5, 50])
def test_keys_may_be_missing_or_empty(count: int) -> None:
    """This holds for some messages or for all; text is sent as bytes."""
    client = Client(**MOCK)
    some = [[None, b"", b"key"][number % 3] for number in range(count)]
    texts = pa.array(["on"] * count)
    assert client.produce(texts.cast(pa.binary()), pa.array(some, pa.binary())) == count
    assert client.produce(pa.array([b""] * count, pa.binary()), None) == count
    assert client.flush(30) == 0
    found = [pair for partition in read(bootstrap_of(client), 2 * count) for pair in partition]
    expected = [(key, b"on") for key in some] + [(None, b"")] * count
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize("count", [12, 30])
def test_a_full_queue_takes_the_first_messages(count: int) -> None:
    """The others are sent, in order, once there is room."""
    client = Client(**MOCK, **{"queue.buffering.max.messages": "5", "test.mock.broker.rtt": "5"})
    values, keys = pa.array([b"%d" % number for number in range(count)]), pa.array([b"key"] * count)
    queued = client.produce(values, keys)
    assert queued == 5
    while queued < count:
        queued += client.produce(values.slice(queued), keys.slice(queued))
    assert client.flush(30) == 0
    (found,) = filter(None, read(bootstrap_of(client), count))
    assert [value for _, value in found] == values.to_pylist()
    assert client.failures == []


def test_the_first_messages_of_an_idempotent_client_do_not_wait_for_a_timer(mock_client: Client) -> None:
    """A client that is made a while before them has its id by then; librdkafka's timer for it has 500 ms."""
    took_s = []
    for _ in range(5):
        client = Client(
            **{"bootstrap.servers": bootstrap_of(mock_client), "enable.idempotence": "true", "linger.ms": "0"}
        )
        time.sleep(0.1)
        begun_s = time.monotonic()
        assert client.produce(pa.array([b"on"] * 30), None) == 30
        assert client.flush(30) == 0
        took_s.append(time.monotonic() - begun_s)
    # A busy machine may make any of them late, but the timer makes all of them late.
    assert min(took_s) < 0.3


def test_what_is_not_delivered_is_reported() -> None:
    """Each message is reported once, with the reason."""
    count = 30
    client = Client(**{"bootstrap.servers": "127.0.0.1:9", "message.timeout.ms": "50"})
    client.produce(pa.array([b"on"] * count), None)
    assert client.flush(10) == 0
    assert [error.code() for error in client.failures] == [KafkaError._MSG_TIMED_OUT] * count


@pytest.mark.parametrize("count", [2, 30])
def test_a_message_that_is_too_large_is_an_error(count: int, mock_client: Client) -> None:
    """The client's own calls raise the same error."""
    with pytest.raises(KafkaException) as caught:
        mock_client.produce(pa.array([b"on"] * (count - 1) + [bytes(2_000_000)]), None)
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert mock_client.flush(30) == 0


def heaters(parameters: str = "", **client: str) -> PlainProducer:
    binding = parse_binding(TOPIC, f"kafka://127.0.0.1:9/{TOPIC}?{parameters}", "sink")
    assert isinstance(binding, KafkaBinding)
    return PlainProducer(KafkaBinding(**{**vars(binding), "client": client}))


def test_the_sink_says_what_was_not_delivered() -> None:
    """It reports this when it waits for its messages."""
    producer = heaters(**{"message.timeout.ms": "50", "linger.ms": "0"})
    producer.send(Messages(pa.array([b"on"] * 30)))
    with pytest.raises(ExternalSystemError, match="a record could not be written to the topic 'heaters'"):
        producer.flush()


@pytest.mark.parametrize("is_bulk", [True, False])
def test_a_sink_sees_messages_arrive(monkeypatch: pytest.MonkeyPatch, is_bulk: bool) -> None:
    """Messages of one write are seen once a later write finds the queue empty, whatever that one sends."""
    monkeypatch.setattr(kafka_producers, "has_bulk_calls", lambda: is_bulk)
    producer = heaters(**{**MOCK, "linger.ms": "60000"})
    first = producer.send(Messages(pa.array([b"on"] * 30)))
    assert not producer.has_arrived(first)
    producer.flush()
    second = producer.send(Messages(pa.array([b"off"] * 30)))
    assert producer.has_arrived(first)
    assert not producer.has_arrived(second)
    producer.flush()
    assert producer.has_arrived(second)


def await_arrival(producer: PlainProducer, sent: int) -> None:
    while not producer.has_arrived(sent):
        pass


def test_what_was_not_delivered_has_not_arrived() -> None:
    """This holds also when the queue is empty, and nobody waits for its messages."""
    producer = heaters(**{"message.timeout.ms": "50", "linger.ms": "0"})
    sent = producer.send(Messages(pa.array([b"on"] * 30)))
    with pytest.raises(ExternalSystemError, match="a record could not be written to the topic 'heaters'"):
        await_arrival(producer, sent)


@pytest.mark.parametrize("parameters", ["", "partition_by=n"])
def test_a_wrong_setting_is_named(parameters: str) -> None:
    """The error is the same for messages in bulk and one by one."""
    with pytest.raises(
        BindingError, match=r'rejects a setting of .* No such configuration property: "lingr.ms"'
    ):
        heaters(parameters, **{"lingr.ms": "1"})
    with pytest.raises(BindingError, match=r"rejects a setting of .*: Invalid value for"):
        heaters(parameters, **{"linger.ms": "soon"})
    with pytest.raises(BindingError, match=r"rejects a setting of .*acks"):
        heaters(parameters, acks="1")


def test_a_producer_that_is_dropped_ends_its_threads() -> None:
    """It need not be closed."""
    before = threads()
    producer = heaters()
    assert threads() > before
    del producer
    # The kernel lists a thread for a moment after it was joined.
    await_true(lambda: threads() <= before, "its threads do not end")


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
