"""The local Kafka broker: a real one that starts, keeps its data through a kill, and ends with its parent.

What needs neither its start nor its end is asked of the session's broker, which differs by its logins alone. The
effects of a broker kill on a sink are tested here too, since this broker is killed anyway.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from secured_broker import SecuredBroker
from sink_workers import PARTITIONS, Plain, Worker, bind, values

from penstock.machine.kafka_broker import BrokerStartError, KafkaBroker
from penstock.sinks.kafka_sink import KafkaSink

WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start a separate broker, since these tests kill it."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


def client(broker: KafkaBroker, **more: Any) -> dict[str, Any]:
    """Return settings that keep librdkafka's lines about lost connections out of the output."""
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0, "error_cb": lambda _: None, **more}


def produce(broker: KafkaBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer(client(broker, acks="all"))
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def consume(broker: KafkaBroker, topic: str, count: int) -> list[bytes]:
    """Return the committed values, once `count` have arrived or the timeout has passed."""
    settings = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(client(broker, **settings, **{"isolation.level": "read_committed"}))
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.chaos  # two brokers; those of test_broker_restarts.py are killed under load
def test_records_survive_a_kill_and_a_restart(broker: KafkaBroker) -> None:
    """After kill -9 the same address serves acknowledged records, takes more, and has in-flight records once."""
    broker.create_topic("survivors", partitions=1)
    broker.create_topic("heaters", PARTITIONS)
    address = broker.bootstrap
    produce(broker, "survivors", [b"1", b"2"])
    exactly = Worker(KafkaSink(bind(broker, "heaters", "?delivery=exactly-once"), Plain()), "restart")
    plain = Worker(KafkaSink(bind(broker, "heaters"), Plain()), "restart")
    exactly.run(0, [b"0"])
    task, plain_task = exactly.start(1, [b"1"]), plain.start(0, [b"plain"])
    killed = broker.pid
    broker.kill()
    assert not alive(killed)
    broker.start()
    assert broker.bootstrap == address
    produce(broker, "survivors", [b"3"])
    assert consume(broker, "survivors", 3) == [b"1", b"2", b"3"]
    exactly.finish(task)
    exactly.run(1, [b"1"])
    plain.finish(plain_task)
    assert values(broker, "heaters") == [b"0", b"1", b"plain"]


@pytest.mark.chaos  # a kill is harder
def test_records_survive_an_orderly_stop(broker: KafkaBroker) -> None:
    """Stop ends the process; start serves the same data."""
    broker.create_topic("stopped", partitions=1)
    produce(broker, "stopped", [b"1"])
    stopped = broker.pid
    broker.stop()
    assert not alive(stopped)
    broker.start()
    assert consume(broker, "stopped", 1) == [b"1"]


def test_a_committed_reader_sees_committed_transactions_only(kafka: SecuredBroker) -> None:
    """One node is enough for transactions: aborted records are hidden, committed ones are not."""
    kafka.create_topic("transactions", partitions=1)
    producer = Producer(client(kafka, **{"transactional.id": "writer"}))
    producer.init_transactions(WAIT_S)
    for value, commit in ((b"lost", False), (b"kept", True)):
        producer.begin_transaction()
        producer.produce("transactions", value, partition=0)
        producer.flush(WAIT_S)
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    assert consume(kafka, "transactions", 1) == [b"kept"]


def test_a_topic_has_the_partitions_that_were_asked_for(kafka: SecuredBroker) -> None:
    """When create_topic returns, clients see every partition; creating the topic again is an error."""
    kafka.create_topic("wide", partitions=3)
    topics = AdminClient(client(kafka)).list_topics("wide", timeout=WAIT_S).topics
    assert len(topics["wide"].partitions) == 3
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        kafka.create_topic("wide", partitions=3)


def test_topics_are_not_created_by_reading(kafka: SecuredBroker) -> None:
    """A mistyped topic is an error, not a new topic."""
    topics = AdminClient(client(kafka)).list_topics("mistyped", timeout=WAIT_S).topics
    assert topics["mistyped"].error is not None


@pytest.mark.skipif(sys.platform != "linux", reason="needs a signal on the parent's death")
def test_the_broker_ends_with_its_parent(tmp_path: Path) -> None:
    """A killed parent leaves no broker behind."""
    code = (
        "import sys, time; from pathlib import Path; from penstock.machine.kafka_broker import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + WAIT_S
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_temporary_folder_is_removed() -> None:
    """A broker without a folder of its own leaves no files."""
    with contextlib.closing(KafkaBroker()) as broker:
        folder = broker._folder
        (folder / "data").mkdir()
    assert not folder.exists()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """If its folder is a file, it gives a clear error, and no process stays."""
    (tmp_path / "data").write_text("in the way")
    broker = KafkaBroker(tmp_path)
    with pytest.raises(BrokerStartError, match="could not be formatted"):
        broker.start()
