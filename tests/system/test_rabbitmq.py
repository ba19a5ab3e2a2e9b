"""RabbitMQ: queues and streams of a real broker reach the journal, despite kills of the broker and the
receiver.

Records of sinks reach a queue, or become dead letters. All tests share one broker.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from conformance_page import WHEN_RECORDING, note_conformance
from conforming_sources import journaling
from file_feed import COUNTING_JOB, FileFeed
from job_in_session import JobInSession
from journaled_records import journaled
from pyspark.sql import SparkSession
from rabbitmq_messages import publish, take
from rabbitmq_node import ESCAPED_PASSWORD, LARGEST_BYTES, PASSWORD, RabbitNode
from receiving_process import receiver
from reliability import Injected, noting
from silent_server import in_haste

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import Binding, ExchangeBinding
from penstock.commands.command_sender import send_command
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command
from penstock.doctor.bindings import check_binding
from penstock.errors import (
    BindingError,
    ExternalSystemError,
    PenstockError,
    PlaceMissingError,
    RecordsLostError,
)
from penstock.jobs.settings import RunSettings
from penstock.rabbitmq import rabbitmq_connections, rabbitmq_queue, rabbitmq_stream
from penstock.rabbitmq.rabbitmq_queue import check_queue
from penstock.rabbitmq.rabbitmq_sink import RabbitSink
from penstock.rabbitmq.rabbitmq_stream import StreamReceiver, check_stream
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import RecordOrigin, RejectingTask, Rejection, TaskContext
from penstock.testing.connectors import (
    SinkUnderTest,
    SourceUnderTest,
    StoredRecord,
    check_sink,
    check_source,
)

WAIT_S = 60.0
RECEIVING = Path(__file__).with_name("receiving_process.py")
KINDS = ["queue", "stream"]
KIND = record_type("room STRING, n BIGINT")


@pytest.fixture(scope="module")
def node(rabbitmq: RabbitNode) -> RabbitNode:
    """Start the broker, with a queue and a stream for each test that kills something."""
    for test in ("order", "receiver", "few-kills", "many-kills"):
        check_queue(binding(rabbitmq.queue_uri(f"{test}-queue", "?create=true")))  # type: ignore[arg-type]
        check_stream(binding(rabbitmq.stream_uri(f"{test}-stream", "?create=true")))  # type: ignore[arg-type]
    declare(rabbitmq, "patient")
    rabbitmq.settle()
    return rabbitmq


def binding(uri: str) -> Binding:
    return parse_binding("settings", uri, "control")


def uri_of(node: RabbitNode, name: str, more: str = "") -> str:
    return node.queue_uri(name, more) if name.endswith("queue") else node.stream_uri(name, more)


def numbers(*bounds: int) -> list[bytes]:
    """Return binary messages: each has a zero byte and a newline."""
    return [b"%d\0\n" % number for number in range(*bounds)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_all_messages_come_in_order_and_a_bounded_run_ends(
    node: RabbitNode, kind: str, tmp_path: Path
) -> None:
    """Each run reads the available messages after those of the last run; one without messages ends as well."""
    name = f"order-{kind}"
    for low, high in ((0, 3_000), (3_000, 3_010), (3_010, 3_010)):
        if low < high:
            publish(node, name, numbers(low, high))
        with receiver(tmp_path, uri_of(node, name, "?format=bytes"), bounded=True) as receiving:
            receiving.wait_for_end(threading.Event())
        assert journaled(tmp_path) == numbers(high)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_receiver_costs_nothing(node: RabbitNode, kind: str, tmp_path: Path) -> None:
    """Kill -9 between the journal write and the acknowledgement, twice: each message is there once."""
    name = f"receiver-{kind}"
    for low in (0, 1_000):
        publish(node, name, numbers(low, low + 1_000))
        before = len(journaled(tmp_path))
        with receiving_process(tmp_path, uri_of(node, name), "waits") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"connected\n"
            count = int(process.stdout.readline())
            process.kill()
        assert len(journaled(tmp_path)) == before + count
    publish(node, name, numbers(2_000, 2_010))
    check_each_comes_once(node, name, tmp_path, 2_010)


@contextmanager
def receiving_process(folder: Path, uri: str, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a receiver in its own process, which ends with the block."""
    command = [sys.executable, str(RECEIVING), str(folder), uri, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def check_each_comes_once(node: RabbitNode, name: str, folder: Path, count: int) -> None:
    """Check that an undisturbed receiver completes the journal; a stream's messages are in order, too."""
    with receiver(folder, uri_of(node, name)) as receiving:
        wait_until(lambda: len(journaled(folder)) >= count)
        # Duplicates would arrive now.
        time.sleep(1)
        assert receiving.error is None
    found = journaled(folder)
    assert sorted(found) == sorted(numbers(count))
    if name.endswith("stream"):
        assert found == numbers(count)


class Receiving:
    """A queue or stream under attack, and its receiver process, which is restarted when it was killed."""

    def __init__(self, node: RabbitNode, name: str, root: Path) -> None:
        self.name = name
        self.folder = root / name
        self.sent = 0
        self._node = node
        self._running: ExitStack | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start the process, unless it runs."""
        if self._running is None:
            self._running = ExitStack()
            uri = uri_of(self._node, self.name)
            self._process = self._running.enter_context(receiving_process(self.folder, uri, "goes"))
            # Before its first connection, a receiver gives up when the broker is down.
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"connected\n", "the receiver ended by itself"

    def send(self, count: int) -> None:
        publish(self._node, self.name, numbers(self.sent, self.sent + count))
        self.sent += count

    def await_more(self, than: int) -> None:
        """Wait until the journal has more messages."""
        wait_until(lambda: len(journaled(self.folder)) > than)
        assert self._process is not None
        assert self._process.poll() is None, "the receiver ended by itself"

    def kill(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


def kill_and_start(node: RabbitNode) -> None:
    node.kill()
    node.start()


def survive(
    node: RabbitNode,
    root: Path,
    test: str,
    victims: Iterable[str],
    injected: Injected | None = None,
    kill_broker: Callable[[RabbitNode], None] = kill_and_start,
) -> None:
    """Kill the broker or the receivers at random moments while messages arrive from a queue and a stream, and
    compare.
    """
    moments = random.Random(test)
    both = [Receiving(node, f"{test}-{kind}", root) for kind in KINDS]
    try:
        for victim in victims:
            for receiving in both:
                receiving.ensure()
                before = receiving.sent
                receiving.send(500)
                receiving.await_more(before)
                receiving.send(500)
            time.sleep(moments.uniform(0, 0.3))
            if injected is not None:
                injected.add(f"kill -9 of a {victim}")
            if victim == "broker":
                kill_broker(node)
            else:
                for receiving in both:
                    receiving.kill()
    finally:
        for receiving in both:
            receiving.kill()
    for receiving in both:
        check_each_comes_once(node, receiving.name, receiving.folder, receiving.sent)


def test_kills_at_random_moments_cost_nothing(node: RabbitNode, tmp_path: Path) -> None:
    """Kill -9 of the broker while messages arrive: the same receivers continue.

    A sink waits for it, too: confirmed messages are on its disk, unconfirmed ones are published again.
    """
    to = sink(node.queue_uri("patient", "?origin=true"))
    write(to, [{"room": "a", "n": n} for n in range(100)])

    def kill_below_the_sink(node: RabbitNode) -> None:
        node.kill()
        back = threading.Timer(0.5, node.start)
        back.start()
        write(to, [{"room": "a", "n": n} for n in range(100, 200)], 1)
        back.join()

    survive(node, tmp_path, "few-kills", ["broker"], kill_broker=kill_below_the_sink)
    assert {row["n"] for row in found(node, "patient")} == set(range(200))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_many_kills_at_random_moments_cost_nothing(node: RabbitNode, tmp_path: Path) -> None:
    """The same with 32 kills, half of them of the broker."""
    victims = ["broker", "receiver"] * 16
    random.Random(0).shuffle(victims)
    with noting("RabbitMQ", "-k many_kills_at_random_moments", "0") as injected:
        survive(node, tmp_path, "many-kills", victims, injected)


def test_a_stream_may_begin_at_its_end(node: RabbitNode, tmp_path: Path) -> None:
    """Messages after the end at the first start are read, even if the first run journaled none."""
    check_stream(binding(node.stream_uri("late-stream", "?create=true")))  # type: ignore[arg-type]
    publish(node, "late-stream", numbers(5))
    uri = node.stream_uri("late-stream", "?start=latest")
    with receiver(tmp_path, uri, bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    publish(node, "late-stream", numbers(5, 8))
    with receiver(tmp_path, uri, bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    assert journaled(tmp_path) == numbers(5, 8)


def test_a_start_at_the_end_misses_nothing_that_comes_after_it(
    node: RabbitNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the broker is, messages that are published as soon as a run has begun are read."""
    check_stream(binding(node.stream_uri("end-stream", "?create=true")))  # type: ignore[arg-type]
    publish(node, "end-stream", numbers(5))
    begin = StreamReceiver._begin

    def begin_late(receiving: StreamReceiver, connection: Any) -> None:
        time.sleep(0.3)
        begin(receiving, connection)

    monkeypatch.setattr(StreamReceiver, "_begin", begin_late)
    with receiver(tmp_path, node.stream_uri("end-stream", "?start=latest")):
        publish(node, "end-stream", numbers(5, 8))
        wait_until(lambda: journaled(tmp_path) == numbers(5, 8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        (("order-", "no-"), BindingError, ("'no-{kind}' does not exist", "create=true")),
        (("%2F/order", "nowhere/order"), BindingError, ("no virtual host 'nowhere'",)),
        (("s3cr3t", "other"), ExternalSystemError, ("refuses the login of 'tester'",)),
        (("127.0.0.1:", "127.0.0.2:"), ExternalSystemError, ("no RabbitMQ answers", "Connection refused")),
        (("127.0.0.1:", "no.such.host.invalid:"), ExternalSystemError, ("no RabbitMQ answers",)),
    ],
)
def test_what_is_wrong_is_said_before_the_start(
    node: RabbitNode, kind: str, change: tuple[str, str], error: type[PenstockError], parts: tuple[str, ...]
) -> None:
    """The error has the stream's name and the remedy, but not the password."""
    uri = uri_of(node, f"order-{kind}").replace(*change)
    check = check_queue if kind == "queue" else check_stream
    with pytest.raises(error) as raised:
        check(binding(uri))  # type: ignore[arg-type]
    for part in ("Stream 'settings'", *parts):
        assert part.format(kind=kind) in str(raised.value)
    assert "pass" not in str(raised.value).replace("password", "")


def test_a_stream_is_no_queue(node: RabbitNode) -> None:
    """Acknowledging does not remove a stream's messages, so reading it as a queue is refused."""
    with pytest.raises(BindingError, match=r"is a stream\. Bind it with rabbitmq-stream://"):
        check_queue(binding(node.queue_uri("order-stream")))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_comes_from_a_file(node: RabbitNode, kind: str, tmp_path: Path) -> None:
    """Nothing displayed or stored has it."""
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    name = f"password-{kind}"
    uri = uri_of(node, name, f"?create=true&password=file:{secret}").replace(f":{ESCAPED_PASSWORD}@", "@")
    found = binding(uri)
    (check_queue if kind == "queue" else check_stream)(found)  # type: ignore[operator]
    assert PASSWORD not in repr(found)
    secret.unlink()
    with pytest.raises(BindingError, match="that file cannot be read"):
        (check_queue if kind == "queue" else check_stream)(found)  # type: ignore[operator]


def test_a_channel_that_the_broker_closes_is_opened_again(
    node: RabbitNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is still there, and nothing would come by it; nor does from a queue that is made anew."""
    uri = node.queue_uri("closed-queue", "?create=true&format=bytes")
    opened: list[Any] = []
    consume = rabbitmq_queue._QueueConnection.consume
    monkeypatch.setattr(
        rabbitmq_queue._QueueConnection,
        "consume",
        lambda connection, take: (consume(connection, take), opened.append(connection)),
    )
    with receiver(tmp_path, uri) as receiving:
        wait_until(lambda: len(opened) == 1)
        one = opened[0]
        # The broker closes the channel of who acknowledges what was never delivered.
        one._connection.add_callback_threadsafe(lambda: one._channel.basic_ack(99))
        wait_until(lambda: len(opened) == 2)
        publish(node, "closed-queue", numbers(10))
        wait_until(lambda: journaled(tmp_path) == numbers(10))
        with node.connect() as connection:
            connection.channel().queue_delete("closed-queue")
        wait_until(lambda: len(opened) == 3)
        publish(node, "closed-queue", numbers(10, 20))
        wait_until(lambda: journaled(tmp_path) == numbers(20))
        assert receiving.error is None


def read_to_end(folder: Path, uri: str) -> list[bytes]:
    """Receive to the end, and return the start of each body in the journal."""
    with receiver(folder, uri, bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    return [body[:2] for body in journaled(folder)]


def test_messages_that_a_stream_has_deleted_are_no_gap(node: RabbitNode, tmp_path: Path) -> None:
    """They end the run, or are skipped if the URI says so; a new reader begins at the first existing message."""
    limits = {"x-max-length-bytes": 400_000, "x-stream-max-segment-size-bytes": 100_000}
    declare(node, "short-stream", **{"x-queue-type": "stream", **limits})
    uri = uri_of(node, "short-stream", "?format=bytes")
    publish(node, "short-stream", [b"00"])
    assert read_to_end(tmp_path / "one", uri) == [b"00"]
    for number in range(1, 50):
        publish(node, "short-stream", [b"%02d" % number + bytes(30_000)])
    with pytest.raises(RecordsLostError, match=r"has deleted the messages at the offsets 1 to \d+ before"):
        read_to_end(tmp_path / "one", uri)
    left = read_to_end(tmp_path / "one", uri + "&missing=skip")[1:]
    assert left == [b"%02d" % number for number in range(50 - len(left), 50)]
    assert 0 < len(left) < 49
    assert read_to_end(tmp_path / "two", uri) == left


def test_a_stream_that_is_created_again_is_another_one(node: RabbitNode, tmp_path: Path) -> None:
    """This holds even if it is as long as what was read of the old one."""
    uri = uri_of(node, "again-stream", "?format=bytes")
    declare(node, "again-stream", **{"x-queue-type": "stream"})
    with receiver(tmp_path, uri) as receiving:
        publish(node, "again-stream", [b"old"])
        wait_until(lambda: journaled(tmp_path) == [b"old"])
        with node.connect() as connection:
            connection.channel().queue_delete("again-stream")
        declare(node, "again-stream", **{"x-queue-type": "stream"})
        publish(node, "again-stream", [b"new", b"newer"])
        wait_until(lambda: receiving.error is not None)
    assert "was read up to offset 1, and was deleted and created again" in str(receiving.error)
    assert journaled(tmp_path) == [b"old"]


def test_properties_that_the_client_cannot_decode_are_passed_over(node: RabbitNode, tmp_path: Path) -> None:
    """An id that is not UTF-8 is an example; unit tests cover the times of headers."""
    declare(node, "odd-queue")
    with node.connect() as connection:
        properties = pika.BasicProperties(message_id=b"\xff", content_type=b"\xfe")
        connection.channel().basic_publish("", "odd-queue", b"body", properties)
    with receiver(tmp_path, uri_of(node, "odd-queue", "?format=bytes"), bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    assert journaled(tmp_path) == [b"body"]


@pytest.mark.parametrize("kind", KINDS)
def test_commands_can_be_sent(node: RabbitNode, kind: str, tmp_path: Path) -> None:
    """The broker has confirmed them when the call returns, and a job reads them unchanged."""
    uri = uri_of(node, f"commands-{kind}", "?create=true")
    sent = [Command(id=f"c{number}", kind="pause") for number in range(3)]
    for command in sent:
        send_command(command, binding(uri))
    with receiver(tmp_path, uri, bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
    assert [decode_command(record) for record in journaled(tmp_path)] == sent
    with pytest.raises(BindingError, match="does not exist"):
        send_command(sent[0], binding(uri_of(node, f"nowhere-{kind}")))


def bind(uri: str) -> ExchangeBinding:
    found = parse_binding("alerts", uri, "sink")
    assert isinstance(found, ExchangeBinding)
    return found


def sink(uri: str) -> RabbitSink:
    made = RabbitSink(bind(uri), format_of("json", KIND), KIND)
    made.prepare("line", "")
    return made


def write(to: RabbitSink, rows: Sequence[dict[str, Any]], batch: int = 0) -> list[Rejection]:
    """Write a block, and return the rejected records."""
    task = to.task(TaskContext(batch, 0, 0, "line"), KIND)
    assert isinstance(task, RejectingTask)
    task.come_from(RecordOrigin("", "step", "0", pa.array(range(len(rows)), pa.int64()), is_source=False))
    task.write(pa.RecordBatch.from_pylist(list(rows), KIND.schema), None)
    task.finish()
    return task.rejections()


def declare(node: RabbitNode, *queues: str, **arguments: Any) -> None:
    with node.connect() as connection:
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments=arguments)


def found(node: RabbitNode, queue: str) -> list[dict[str, Any]]:
    return [json.loads(message.body) for message in take(node, queue)]


def test_each_record_goes_to_its_queue(node: RabbitNode) -> None:
    """Messages are in order, persistent and have an origin; unroutable ones are rejected, and equal ones are
    told apart.
    """
    declare(node, "room-a", "room-b")
    rows = [{"room": "ab"[n % 2], "n": n} for n in range(500)]
    for place, room in ((7, "c"), (8, None), (9, "c"), (10, "x" * 255)):
        rows[place] = {"room": room, "n": 0}
    rejected = write(sink(node.queue_uri("room-{room}", "?origin=true")), rows)
    assert [one.row for one in rejected] == [7, 8, 9, 10]
    assert rejected[0].reason == rejected[2].reason == "There is no queue 'room-c'."
    assert "would have an empty field" in rejected[1].reason
    taken = [take(node, f"room-{room}") for room in "ab"]
    assert [[json.loads(message.body) for message in messages] for messages in taken] == [
        [row for row in rows if row["room"] == room] for room in "ab"
    ]
    everything = [message for messages in taken for message in messages]
    assert len({message.origin for message in everything}) == len(everything)
    assert {message.delivery_mode for message in everything} == {2}
    assert all(message.id == message.origin is not None for message in everything)


def test_an_exchange_routes_by_a_key(node: RabbitNode) -> None:
    """A record whose key is bound to no queue is rejected."""
    declare(node, "hall")
    with node.connect() as connection:
        connection.channel().exchange_declare("readings", "topic", durable=True)
        connection.channel().queue_bind("hall", "readings", "hall.*.celsius")
    uri = node.queue_uri("readings", "?routing_key=hall.{room}.celsius")
    assert write(sink(uri), [{"room": "1", "n": 1}, {"room": "1.2", "n": 2}, {"room": "2", "n": 3}]) == [
        Rejection(
            1,
            "The exchange 'readings' has no queue for the routing key 'hall.1.2.celsius'.",
            b'{"room":"1.2","n":2}',
            128 << 20,
        )
    ]
    assert [row["n"] for row in found(node, "hall")] == [1, 3]


def test_what_the_broker_does_not_take_at_all_is_rejected(node: RabbitNode) -> None:
    """Only the message that is too large is rejected, not others of its block."""
    declare(node, "large")
    rows = [{"room": "x" * (LARGEST_BYTES if n == 1 else 1), "n": n} for n in range(3)]
    (rejected,) = write(sink(node.queue_uri("large")), rows)
    assert rejected.row == 1
    assert "larger than" in rejected.reason
    # The broker closes the channel, and messages that it had not confirmed are published again.
    assert {row["n"] for row in found(node, "large")} == {0, 2}


def test_a_full_queue_is_waited_for(node: RabbitNode) -> None:
    """It refuses messages until somebody takes some."""
    declare(node, "full", **{"x-max-length": 10, "x-overflow": "reject-publish"})
    taken: list[dict[str, Any]] = []
    writer = threading.Thread(
        target=write, args=(sink(node.queue_uri("full")), [{"room": "", "n": n} for n in range(25)])
    )
    writer.start()
    while writer.is_alive():
        taken += found(node, "full")
        time.sleep(0.05)
    taken += found(node, "full")
    assert sorted(row["n"] for row in taken) == list(range(25))


def test_a_sink_says_what_is_wrong_before_the_start(node: RabbitNode) -> None:
    """A job and doctor report it; create=true declares a queue."""
    with pytest.raises(PlaceMissingError, match=r"the queue 'new' does not exist .* add create=true"):
        sink(node.queue_uri("new"))
    with pytest.raises(PlaceMissingError, match=r"the exchange 'gone' does not exist .* bind queues to it"):
        sink(node.queue_uri("gone", "?routing_key=a"))
    with pytest.raises(BindingError, match=r"the routing key '\{hall\}' has \{hall\}, which must be a field"):
        sink(node.queue_uri("gone", "?routing_key={hall}"))
    creating = node.queue_uri("new", "?create=true")
    assert "does not exist yet" in check_binding("alerts", bind(creating), is_source=False).found
    assert write(sink(creating), [{"room": "a", "n": 1}]) == []
    assert found(node, "new") == [{"room": "a", "n": 1}]
    assert check_binding("alerts", bind(creating), is_source=False).status == "ok"


def test_a_job_sends_each_output(node: RabbitNode, tmp_path: Path, spark: SparkSession) -> None:
    """Each has an origin."""
    feed = FileFeed(tmp_path)
    feed.write()
    bindings = {"readings": feed.binding, "seen": node.queue_uri("counts", "?create=true")}
    run = RunSettings(bindings=bindings, checkpoint=str(tmp_path / "checkpoint"), parallelism=2, bounded=True)
    with JobInSession(spark, COUNTING_JOB, run) as job:
        job.wait()
    messages = take(node, "counts")
    rows = [json.loads(message.body) for message in messages]
    assert Counter((row["sensor"], row["count"]) for row in rows) == feed.expected
    assert len({message.origin for message in messages}) == len(rows)


@pytest.mark.parametrize("kind", ["queue", pytest.param("stream", marks=WHEN_RECORDING)])
def test_the_source_is_held_to_the_conformance_kit(
    rabbitmq: RabbitNode, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal messages count separately, although they have the same id."""
    name = f"kit-{kind}"
    uri = uri_of(rabbitmq, name, "?create=true")
    port = rabbitmq.port if kind == "queue" else rabbitmq.stream_port

    def put(records: Sequence[bytes]) -> None:
        publish(rabbitmq, name, records)

    note_conformance(
        check_source(
            SourceUnderTest(
                f"RabbitMQ, {kind}s",
                "at least once" if kind == "queue" else "each record once",
                journaling(tmp_path / "journal", uri),
                put,
                with_wrong_login=journaling(
                    tmp_path / "wrong", uri.replace(ESCAPED_PASSWORD, "not-the-password")
                ),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda silent: journaling(tmp_path / "slow", uri.replace(f":{port}/", f":{silent}/"))(),
                    (rabbitmq_connections, "ANSWER_S", 1.0),
                    (rabbitmq_stream, "_ANSWER_S", 1.0),
                ),
            )
        )
    )


def test_the_sink_is_held_to_the_conformance_kit(
    rabbitmq: RabbitNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink sends messages to a queue, with origins."""
    uri, found = rabbitmq.queue_uri("kit-sink", "?create=true&origin=true"), list[StoredRecord]()

    def opening(place: str) -> Callable[[], RabbitSink]:
        binding = parse_binding("alerts", place, "sink")
        assert isinstance(binding, ExchangeBinding)
        kind = SinkUnderTest.record_type
        return lambda: RabbitSink(binding, format_of("json", kind), kind)

    def stored() -> list[StoredRecord]:
        found.extend(
            StoredRecord(**json.loads(one.body), mark=one.origin) for one in take(rabbitmq, "kit-sink")
        )
        return found

    note_conformance(
        check_sink(
            SinkUnderTest(
                "RabbitMQ",
                "at least once with ids",
                opening(uri),
                stored,
                ordered=True,
                bad="x" * LARGEST_BYTES,
                with_wrong_login=opening(uri.replace(ESCAPED_PASSWORD, "not-the-password")),
                secret="not-the-password",
                at_port=in_haste(
                    monkeypatch,
                    lambda silent: opening(uri.replace(f":{rabbitmq.port}/", f":{silent}/"))(),
                    (rabbitmq_connections, "ANSWER_S", 1.0),
                ),
            )
        )
    )
