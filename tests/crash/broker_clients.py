"""Fakes of confluent_kafka's clients, without a broker: they talk to `RecordingBrokers`.

They behave as librdkafka's: retriable requests are retried until the timeout; messages leave the queue while
the client is polled; a fenced producer is unusable; a failed transaction must be aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest import mock

from broker_model import Change, Message, failed, partition_of
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka import Message as Received
from recording_broker import RecordingBrokers

from penstock.brokers import kafka_topics
from penstock.sinks import kafka_groups, kafka_producers, kafka_sink, message_sizes
from penstock.sources import kafka_log, kafka_source, topic_identity, topic_reader

__all__ = ["forget_producers", "patch_clients"]

# Small, so that queues are full now and then.
_QUEUE = 6
_MAX_BYTES = 1_048_588
_NO_OFFSET = -1001
_PARTITIONS = 2


def patch_clients(brokers: RecordingBrokers, patch: Callable[[Any], Any]) -> None:
    """Patch penstock to use the model's clients and the clock of its brokers."""

    def producer(settings: Mapping[str, Any]) -> ModelProducer:
        return ModelProducer(brokers, settings)

    def consumer(settings: Mapping[str, Any]) -> ModelConsumer:
        return ModelConsumer(brokers, settings)

    def admin(settings: Mapping[str, Any]) -> ModelAdmin:
        return ModelAdmin(brokers, settings)

    for module in (kafka_topics, kafka_groups, kafka_source, message_sizes, kafka_log, topic_identity):
        patch(mock.patch.object(module, "AdminClient", admin))
    for module in (kafka_producers, kafka_groups, topic_reader):
        patch(mock.patch.object(module, "Consumer", consumer))
    patch(mock.patch.object(kafka_producers, "Producer", producer))
    # The model has no librdkafka.
    patch(mock.patch.object(kafka_producers, "has_bulk_calls", return_value=False))
    for module in (kafka_topics, kafka_groups, kafka_producers, kafka_sink, kafka_log, topic_reader):
        patch(mock.patch.object(module, "time", brokers))


def forget_producers() -> None:
    """Drop producers and consumers, as when their process ends; the brokers keep what producers had open."""
    kafka_producers._producers.clear()
    topic_reader._readers.clear()


class _Client:
    def __init__(self, brokers: RecordingBrokers, settings: Mapping[str, Any]) -> None:
        self._brokers = brokers
        self._settings = settings

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._ask(timeout)
        found = self._brokers.state.topics
        names = list(found) if topic is None else [topic]
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        topics = {
            name: SimpleNamespace(
                error=None,
                partitions={
                    number: SimpleNamespace(leader=1) for number in range(len(found[name].partitions))
                },
            )
            if name in found
            else SimpleNamespace(error=error, partitions={})
            for name in names
        }
        return SimpleNamespace(topics=topics)

    def _ask(self, timeout_s: float, **more: Any) -> None:
        try:
            self._brokers.ask(timeout_s, **more)
        except KafkaException as e:
            self._settings["error_cb"](e.args[0])
            raise

    def poll(self, timeout: float = -1) -> int:
        return 0


class _Queued(NamedTuple):
    topic: str
    partition: int
    message: Message
    at_s: float


class ModelProducer(_Client):
    """A producer, transactional if it has a transactional id."""

    def __init__(self, brokers: RecordingBrokers, settings: Mapping[str, Any]) -> None:
        super().__init__(brokers, settings)
        self._id: str | None = settings.get("transactional.id")
        self._epoch = -1
        self._state: Literal["new", "ready", "open", "failed", "fatal"] = "new"
        self._queue: list[_Queued] = []
        self._is_begun = False
        timeout_ms = settings.get("message.timeout.ms", 300_000)
        if self._id is not None:
            timeout_ms = min(timeout_ms, settings["transaction.timeout.ms"])
        self._timeout_s = float(timeout_ms) / 1000

    # Transactions.

    def init_transactions(self, timeout: float) -> None:
        assert self._id is not None
        seconds = int(self._settings["transaction.timeout.ms"]) // 1000
        self._request(Change("init", name=self._id, count=seconds), timeout)
        self._epoch = self._brokers.state.owners[self._id].epoch
        self._state = "ready"

    def begin_transaction(self) -> None:
        self._must_be("ready")
        self._state = "open"
        self._is_begun = False

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group: str, timeout: float
    ) -> None:
        self._must_be("open")
        (place,) = positions
        name = f"{self._id} {group}"
        self._request(
            Change("offsets", name=name, epoch=self._epoch, offset=place.offset, note=place.metadata or ""),
            timeout,
        )
        self._is_begun = True

    def commit_transaction(self, timeout: float) -> None:
        self._must_be("open")
        deadline_s = self._brokers.monotonic() + timeout
        if self.flush(timeout):
            raise failed(KafkaError._TIMED_OUT, "messages are still in the queue")
        self._must_be("open")
        if self._is_begun:
            left_s = max(0.0, deadline_s - self._brokers.monotonic())
            self._request(Change("commit", name=self._id or "", epoch=self._epoch), left_s)
        self._state = "ready"

    def abort_transaction(self, timeout: float) -> None:
        if self._state not in ("open", "failed"):
            self._must_be("open")
        self._queue.clear()
        if self._is_begun:
            self._request(Change("abort", name=self._id or "", epoch=self._epoch), timeout)
        self._state = "ready"

    def _must_be(self, state: str) -> None:
        if self._state == "fatal":
            raise failed(KafkaError._FATAL, "the producer was fenced", fatal=True)
        if self._state == "failed" and state == "open":
            raise failed(KafkaError._STATE, "the transaction has failed", aborts=True)
        if self._state != state:
            raise failed(KafkaError._STATE, f"the producer is {self._state}")

    def _request(self, change: Change, timeout_s: float) -> None:
        try:
            self._brokers.change(change, timeout_s, coordinator="waits")
        except KafkaException as e:
            if e.args[0].fatal():
                self._state = "fatal"
            self._settings["error_cb"](e.args[0])
            raise

    # Messages.

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        if self._id is not None:
            self._must_be("open")
        if len(self._queue) >= _QUEUE:
            raise BufferError("the queue is full")
        count = len(self._brokers.state.topics[topic].partitions)
        message = _Queued(topic, partition_of(key, count), (key, value), self._brokers.monotonic())
        self._queue.append(message)

    def __len__(self) -> int:
        return len(self._queue)

    def poll(self, timeout: float = -1) -> int:
        self._brokers.sleep(max(0.0, timeout))
        # The client's thread has sent a random part.
        self._send(-(-len(self._queue) // 2), 0.0)
        return 0

    def flush(self, timeout: float) -> int:
        deadline_s = self._brokers.monotonic() + timeout
        while self._queue and self._brokers.monotonic() < deadline_s:
            oldest_s = self._queue[0].at_s + self._timeout_s
            before_s = self._brokers.monotonic()
            self._send(len(self._queue), max(0.0, min(deadline_s, oldest_s) - before_s))
            if self._brokers.monotonic() == before_s:
                self._brokers.sleep(0.1)
        return len(self._queue)

    def purge(self) -> None:
        self._queue.clear()

    def _send(self, count: int, timeout_s: float) -> None:
        """Send the first of the messages, one partition after the other."""
        for topic, partition in dict.fromkeys(
            (found.topic, found.partition) for found in self._queue[:count]
        ):
            batch = [q for q in self._queue[:count] if (q.topic, q.partition) == (topic, partition)]
            change = Change(
                "append",
                topic,
                partition,
                [found.message for found in batch],
                name=self._id or "",
                epoch=self._epoch,
            )
            try:
                self._brokers.change(change, timeout_s)
            except KafkaException as e:
                self._settings["error_cb"](e.args[0])
                if e.args[0].fatal():
                    self._state = "fatal"
                    self._fail(self._queue, e.args[0])
                    return
                late = [q for q in self._queue if self._brokers.monotonic() - q.at_s >= self._timeout_s]
                if late:
                    self._fail(late, KafkaError(KafkaError._MSG_TIMED_OUT))
                return
            self._is_begun = True
            sent = set(map(id, batch))
            count -= len(batch)
            self._queue = [q for q in self._queue if id(q) not in sent]

    def _fail(self, messages: Sequence[_Queued], error: KafkaError) -> None:
        lost = set(map(id, messages))
        self._queue = [q for q in self._queue if id(q) not in lost]
        if self._id is not None and self._state == "open":
            self._state = "failed"
        report = self._settings.get("on_delivery")
        for message in messages if report is not None else ():
            report(error, message)


def _received(
    topic: str, number: int, at: int, message: Message = (None, None), event: KafkaError | None = None
) -> Received:
    """A message of a partition, or its end-of-partition event. The model's brokers keep no times."""
    key, value = message
    no_time = (TIMESTAMP_NOT_AVAILABLE, -1)
    return Received(topic, number, at, key=key, value=value, error=event, timestamp=no_time)


class ModelConsumer(_Client):
    """A consumer that queries its group's committed offsets, or reads its assigned partitions."""

    def __init__(self, brokers: RecordingBrokers, settings: Mapping[str, Any]) -> None:
        super().__init__(brokers, settings)
        self._next: dict[tuple[str, int], int] = {}
        self._ends_told: dict[tuple[str, int], int] = {}
        self._fetched: list[Received] = []

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._next[place.topic, place.partition] = place.offset
            self._ends_told[place.topic, place.partition] = -1

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            del self._next[place.topic, place.partition]
        self._fetched = [
            record for record in self._fetched if (record.topic(), record.partition()) in self._next
        ]

    def consume(self, count: int, timeout: float) -> list[Received]:
        """Return some of the available messages, never all at once."""
        assert timeout == 0
        taken = min(count, max(1, len(self._fetched) // 2)) if self._fetched else 0
        found, self._fetched = self._fetched[:taken], self._fetched[taken:]
        return found

    def poll(self, timeout: float = -1) -> Received | None:  # type: ignore[override]
        if not self._fetched:
            try:
                self._ask(timeout)
            except KafkaException:
                return None
            for (topic, number), start in self._next.items():
                self._fetch(topic, number, start)
        return self._fetched.pop(0) if self._fetched else None

    def _fetch(self, topic: str, number: int, start: int) -> None:
        end = self._brokers.state.end_of(topic, number)
        for at, message in self._brokers.state.read(topic, number, start, end):
            self._fetched.append(_received(topic, number, at, message))
        self._next[topic, number] = max(start, end)
        if self._ends_told[topic, number] < end:
            self._ends_told[topic, number] = end
            event = KafkaError(KafkaError._PARTITION_EOF)
            self._fetched.append(_received(topic, number, end, event=event))

    def consumer_group_metadata(self) -> str:
        return str(self._settings["group.id"])

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._ask(timeout, coordinator="at once")
        group = self._settings["group.id"]
        if self._brokers.state.waits_for(group):
            self._brokers.sleep(timeout)
        if self._brokers.state.waits_for(group):
            raise failed(KafkaError._TIMED_OUT, "an offset is not stable")
        offset, note = self._brokers.state.groups.get(group, (_NO_OFFSET, ""))
        (place,) = places
        return [TopicPartition(place.topic, place.partition, offset, metadata=note)]

    def close(self) -> None:
        """Nothing is kept."""


class ModelAdmin(_Client):
    """An admin client."""

    def create_topics(
        self, topics: Sequence[Any], operation_timeout: float, request_timeout: float
    ) -> dict[str, Future[None]]:
        def make(name: str) -> None:
            self._brokers.change(Change("topic", name, count=_PARTITIONS), request_timeout)

        return {topic.topic: _future(lambda name=topic.topic: make(name)) for topic in topics}

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, Future[SimpleNamespace]]:
        def describe(name: str) -> SimpleNamespace:
            self._ask(request_timeout)
            topic = self._brokers.state.topics.get(name)
            if topic is None:
                raise failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
            parts = [SimpleNamespace(id=number) for number in range(len(topic.partitions))]
            return SimpleNamespace(topic_id=Uuid(1, topic.id), partitions=parts)

        return {name: _future(lambda name=name: describe(name)) for name in topics.topic_names}

    def list_offsets(
        self,
        asked: Mapping[TopicPartition, Any],
        request_timeout: float,
        isolation_level: Any = None,
    ) -> dict[TopicPartition, Future[SimpleNamespace]]:
        def end(place: TopicPartition, which: Any) -> SimpleNamespace:
            self._ask(request_timeout)
            at = self._brokers.state.end_of(
                place.topic, place.partition, committed=isolation_level is not None
            )
            return SimpleNamespace(offset=at if which._value == -1 else 0)

        return {place: _future(lambda p=place, w=which: end(p, w)) for place, which in asked.items()}

    def list_consumer_groups(self, request_timeout: float) -> Future[SimpleNamespace]:
        def groups() -> SimpleNamespace:
            try:
                self._ask(request_timeout, coordinator="at once")
            except KafkaException as e:
                if e.args[0].code() != KafkaError.NOT_COORDINATOR:
                    raise
                error = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
                return SimpleNamespace(valid=[], errors=[error])
            found = self._brokers.state.known_groups()
            return SimpleNamespace(valid=[SimpleNamespace(group_id=name) for name in found], errors=[])

        return _future(groups)

    def describe_configs(self, resources: Sequence[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        def settings() -> dict[str, SimpleNamespace]:
            self._ask(request_timeout)
            found = {"max.message.bytes": str(_MAX_BYTES), "cleanup.policy": "delete"}
            return {name: SimpleNamespace(value=value) for name, value in found.items()}

        return {resource: _future(settings) for resource in resources}


def _future(ask: Callable[[], Any]) -> Future[Any]:
    """The future of an admin client: it has the answer or the error."""
    found: Future[Any] = Future()
    try:
        found.set_result(ask())
    except KafkaException as e:
        found.set_exception(e)
    return found
