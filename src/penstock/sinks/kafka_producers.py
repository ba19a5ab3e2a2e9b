"""Kafka producers: kept alive in each worker process, because a new one has to connect first."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from penstock.bindings.secrets import resolve_setting
from penstock.bindings.types import KafkaBinding
from penstock.brokers.bulk_client import BulkClient
from penstock.brokers.bulk_transactions import BulkTransactions
from penstock.brokers.kafka_topics import LastError, build_client
from penstock.brokers.librdkafka import has_bulk_calls
from penstock.errors import ExternalSystemError
from penstock.sinks.message_partitions import BY_KEY, PartitionCount, partitions_of
from penstock.sinks.message_parts import Messages

__all__ = [
    "FLUSH_TIMEOUT_S",
    "PlainProducer",
    "TransactionLostError",
    "TransactionalProducer",
    "committed_offset",
    "connection_settings",
    "forget",
    "transaction_timeout_s",
]

FLUSH_TIMEOUT_S: Final = 120.0
_ANSWER_TIMEOUT_S: Final = 30.0
_ABORT_TIMEOUT_S: Final = 5.0
_COORDINATOR_MOVES: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
_MOVING_POLL_S: Final = 0.1
_SLICE_RECORDS: Final = 20_000
_FULL_QUEUE_POLL_S: Final = 0.05
# Delivered messages are not reported, and so do not end the wait.
_FULL_BULK_POLL_S: Final = 0.002
_MAX_PRODUCERS: Final = 64

_SETTINGS: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    # A flush at the task's end sends at once, so waiting longer for full batches costs no latency.
    "linger.ms": 50,
    # A message that waits takes some 200 bytes besides its own. A longer queue sends no faster.
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 64 << 10,
    "delivery.report.only.error": True,
}
_PLAIN_SETTINGS: Final = {"message.timeout.ms": int(FLUSH_TIMEOUT_S * 1000)}
# A transaction of a dead worker blocks read_committed consumers until the next worker aborts it, or this long.
_TRANSACTION_SETTINGS: Final = {
    "transaction.timeout.ms": 120_000,
    # With the default (rebootstrap) a transactional producer of librdkafka 2.16 never recovers once all brokers were
    # away. With this one a producer that hears of no brokers, as from one that has just started, knows none for good:
    # its transaction is lost, and another producer does the work.
    "metadata.recovery.strategy": "none",
    # Partitions move between workers, and each move makes a producer. One that connects to all brokers at once is
    # ready after 5 ms; by default it waits for timers, for 55 ms or 510 ms.
    "enable.sparse.connections": False,
    # A transaction right after another is refused until the broker has finished with that one.
    "retry.backoff.ms": 20,
}
_FOR_ALL_CLIENTS: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "broker.",
    "client.",
    "reconnect.",
    "api.",
)


class TransactionLostError(Exception):
    """The transaction cannot be committed by this producer; a new producer finds out its outcome."""


def producer_settings(binding: KafkaBinding, transactional_id: str | None) -> dict[str, Any]:
    """Return the settings of a binding's producers; those in the URI override penstock's own."""
    own: dict[str, Any] = {"client.id": f"penstock-{binding.stream}", **_SETTINGS}
    # The default is Java's, so that penstock and Java producers put a key into the same partition.
    own["partitioner"] = binding.partitioner
    if transactional_id is None:
        own |= _PLAIN_SETTINGS
    else:
        own |= _TRANSACTION_SETTINGS | {"transactional.id": transactional_id}
    return own | dict(binding.client)


def transaction_timeout_s(binding: KafkaBinding) -> float:
    """Return how long a transaction of the binding may be open before the broker ends it."""
    settings = producer_settings(binding, "")
    return float(resolve_setting(binding.stream, settings, "transaction.timeout.ms")) / 1000


def connection_settings(binding: KafkaBinding) -> dict[str, Any]:
    """Return the settings of a binding that concern the connection, for clients other than producers."""
    return {name: value for name, value in binding.client.items() if name.startswith(_FOR_ALL_CLIENTS)}


class PlainProducer:
    """An idempotent producer: no duplicates while it lives, at least once across restarts."""

    def __init__(self, binding: KafkaBinding) -> None:
        self._binding = binding
        self._errors = LastError()
        self._failures: list[KafkaError] = []
        # How many times messages were sent, and how many of those had arrived at the last check.
        self._sent = self._arrived = 0
        # Without a reference to this producer, so that its client ends with it.
        on_delivery = functools.partial(_record_failure, self._failures)
        settings = producer_settings(binding, None) | {"on_delivery": on_delivery}
        self._producer, self._send = _build_sender(BulkClient, binding, settings, self._errors)

    @classmethod
    def of(cls, binding: KafkaBinding) -> PlainProducer:
        """Return the producer of this process for the binding."""
        return _keep_client(
            ("plain", binding.servers, binding.topic, *_sorted_settings(binding)), lambda: cls(binding)
        )

    def send(self, messages: Messages) -> int:
        """Queue messages, and return their number for `has_arrived`.

        Raises ExternalSystemError when earlier ones could not be delivered.
        """
        self._look()
        self._sent += 1
        try:
            self._send(messages, self._raise_failures)
        except KafkaException as e:
            raise self._error(e.args[0]) from e
        return self._sent

    def has_arrived(self, sent: int) -> bool:
        """Return whether messages up to a number are safe on the broker, without waiting. Raises as `send` does."""
        self._producer.poll(0)
        self._raise_failures()
        self._look()
        return self._arrived >= sent

    def _look(self) -> None:
        # The queue has reports of failures, too, until `poll` takes them.
        if not len(self._producer):
            self._arrived = self._sent

    def flush(self) -> None:
        """Wait until all messages are safe on the broker. Raises ExternalSystemError when they are not."""
        waiting = self._producer.flush(FLUSH_TIMEOUT_S + 5)
        self._raise_failures()
        if waiting:
            reason = self._errors.text or "the broker does not answer"
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: {waiting} records could not be written to the topic "
                f"{self._binding.topic!r} on {self._binding.servers} in time ({reason})."
            )

    def close(self) -> None:
        """Drop what is queued. Never raises."""
        with suppress(Exception):
            self._producer.purge()

    def _raise_failures(self) -> None:
        if self._failures:
            raise self._error(self._failures[0])

    def _error(self, error: KafkaError) -> ExternalSystemError:
        return ExternalSystemError(
            f"Sink {self._binding.stream!r}: a record could not be written to the topic {self._binding.topic!r} "
            f"on {self._binding.servers} ({self._errors.after(error)}). The batch will be written again."
        )


class TransactionalProducer:
    """A producer whose transactions carry "batch n is done" as the offset of a consumer group.

    Creating one fences every other producer of the same id. From then on `done` (the newest batch that was
    committed) and `note` (what was committed with it) can only change through this one.
    """

    def __init__(self, binding: KafkaBinding, transactional_id: str) -> None:
        self._binding = binding
        self._id = transactional_id
        self._errors = LastError()
        self._open = False
        settings = producer_settings(binding, transactional_id)
        try:
            self._producer, self._send = _build_sender(BulkTransactions, binding, settings, self._errors)
            # Without a connection, the search for the coordinator waits half a second before it retries.
            self._producer.list_topics(binding.topic, timeout=_ANSWER_TIMEOUT_S)
            self._producer.init_transactions(_ANSWER_TIMEOUT_S)
            group, next_batch, self.note = _group_of(binding, transactional_id)
        except KafkaException as e:
            raise self._error(e.args[0]) from e
        self._group: Final = group
        self.done = next_batch - 1

    @classmethod
    def of(cls, binding: KafkaBinding, transactional_id: str) -> TransactionalProducer:
        """Return the producer of this process with that id, created if it does not exist."""
        key = ("transactional", binding.servers, binding.topic, transactional_id, *_sorted_settings(binding))
        return _keep_client(key, lambda: cls(binding, transactional_id))

    def send(self, messages: Messages) -> None:
        """Queue messages, in a transaction that the first one begins."""
        try:
            self._begin()
            self._send(messages, lambda: None)
        except KafkaException as e:
            raise self._lost(e) from e

    def commit(self, batch_id: int, note: str) -> None:
        """Commit the records together with the fact that the batch is done, and a note."""
        try:
            self._begin()
            self._send_offset(batch_id + 1, note)
            # Wait as long as the broker keeps the transaction open: until then the messages may still arrive.
            self._producer.commit_transaction(transaction_timeout_s(self._binding))
        except KafkaException as e:
            raise self._lost(e) from e
        self._open = False
        self.done, self.note = batch_id, note

    def abort(self) -> None:
        """Abort the open transaction, if there is one. Raises TransactionLostError when that fails."""
        if self._open:
            try:
                self._producer.abort_transaction(_ABORT_TIMEOUT_S)
            except KafkaException as e:
                raise self._lost(e) from e
            self._open = False

    def close(self) -> None:
        """Drop what is queued. Never raises."""
        with suppress(Exception):
            self._producer.purge()

    def _send_offset(self, offset: int, note: str) -> None:
        if isinstance(self._producer, BulkTransactions):
            self._producer.send_offset(self._id, offset, note, _ANSWER_TIMEOUT_S)
        else:
            place = TopicPartition(self._binding.topic, 0, offset, metadata=note)
            self._producer.send_offsets_to_transaction([place], self._group, _ANSWER_TIMEOUT_S)

    def _begin(self) -> None:
        if not self._open:
            self._producer.begin_transaction()
            self._open = True

    def _lost(self, exception: KafkaException) -> TransactionLostError:
        forget(self)
        return TransactionLostError(self._errors.after(exception.args[0]))

    def _error(self, error: KafkaError) -> ExternalSystemError:
        return ExternalSystemError(
            f"Sink {self._binding.stream!r}: the transaction {self._id} cannot be started on "
            f"{self._binding.servers} ({self._errors.after(error)}). If the broker is away, start the job again "
            "when it is back. If not, transactions need its topics __transaction_state and __consumer_offsets; on a "
            "single broker set their replication factors to 1, or bind the sink with delivery=at-least-once."
        )


def _record_failure(failures: list[KafkaError], error: KafkaError, _message: object) -> None:
    failures.append(error)


_Bulk = TypeVar("_Bulk", bound=BulkClient)


def _build_sender(
    kind: Callable[[Mapping[str, Any], str], _Bulk],
    binding: KafkaBinding,
    settings: Mapping[str, Any],
    errors: LastError,
) -> tuple[Producer | _Bulk, Callable[[Messages, Callable[[], None]], None]]:
    """Return a producer, one that sends in bulk if possible, and the function that queues messages with it."""
    if _sends_in_bulk(binding):
        bulk = build_client(lambda found: kind(found, binding.topic), binding, settings, errors)
        return bulk, functools.partial(_send_in_bulk, bulk)
    single = build_client(Producer, binding, settings, errors)
    return single, functools.partial(_send, single, binding.topic, PartitionCount(single, binding, errors))


def _sends_in_bulk(binding: KafkaBinding) -> bool:
    """Return whether messages have only a key and a value, as librdkafka's call for many messages needs."""
    has_headers = bool(binding.header_fields) or binding.origin or binding.events is not None
    return not has_headers and binding.partition_by is None and has_bulk_calls()


def _send_in_bulk(producer: BulkClient, messages: Messages, check: Callable[[], None]) -> None:
    """Queue messages in order, waiting for room."""
    for begin in range(0, len(messages), _SLICE_RECORDS):
        some = messages.slice(begin, _SLICE_RECORDS)
        queued = producer.produce(some.values, some.keys)
        # Messages leave the queue when they are delivered or time out, so this loop ends.
        while queued < len(some):
            producer.poll(_FULL_BULK_POLL_S)
            check()
            some = some.slice(queued, len(some) - queued)
            queued = producer.produce(some.values, some.keys)
        producer.poll(0)
        check()


def _send(
    producer: Producer, topic: str, partitions: PartitionCount, messages: Messages, check: Callable[[], None]
) -> None:
    """Queue messages in order, waiting for room."""
    produce = producer.produce
    for begin in range(0, len(messages), _SLICE_RECORDS):
        some = messages if len(messages) <= _SLICE_RECORDS else messages.slice(begin, _SLICE_RECORDS)
        if some.headers or some.hashes is not None:
            _produce_with_parts(producer, topic, some, partitions, check)
        else:
            texts, keys = _bodies(some)
            # The client's call for many messages takes them as dictionaries, and 1.5 times as long.
            for text, key in zip(texts, keys, strict=True):
                try:
                    produce(topic, text, key)
                except BufferError:
                    _produce_patiently(producer, check, topic, text, key)
        producer.poll(0)
        check()


def _bodies(messages: Messages) -> tuple[list[bytes], list[bytes | None]]:
    texts = messages.values.to_pylist()
    return texts, [None] * len(texts) if messages.keys is None else messages.keys.to_pylist()


def _produce_with_parts(
    producer: Producer, topic: str, messages: Messages, partitions: PartitionCount, check: Callable[[], None]
) -> None:
    """Queue messages with headers, or with partitions of their own."""
    produce = producer.produce
    texts, keys = _bodies(messages)
    hashes = messages.hashes
    places = [BY_KEY] * len(texts) if hashes is None else partitions_of(hashes, partitions.get())
    names, columns = list(messages.headers), [column.to_pylist() for column in messages.headers.values()]
    for text, key, place, *found in zip(texts, keys, places, *columns, strict=True):
        pairs = [(name, value) for name, value in zip(names, found, strict=True) if value is not None]
        try:
            produce(topic, text, key, place, headers=pairs)
        except BufferError:
            _produce_patiently(producer, check, topic, text, key, place, headers=pairs)


def _produce_patiently(producer: Producer, check: Callable[[], None], *message: Any, **headers: Any) -> None:
    # Messages leave the queue when they are delivered or time out, so this loop ends.
    while True:
        producer.poll(_FULL_QUEUE_POLL_S)
        check()
        with suppress(BufferError):
            producer.produce(*message, **headers)
            return


def _group_of(binding: KafkaBinding, group: str) -> tuple[object, int, str]:
    """Return the group's metadata for a transaction, and the offset and the note that were committed for the group.

    The consumer never joins the group. (librdkafka's admin client could return the offset as well, but
    2.16 crashes the process when the coordinator is still loading.)
    """
    own = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    settings = connection_settings(binding) | own | {"enable.sparse.connections": False}
    consumer = build_client(Consumer, binding, settings, LastError())
    try:
        return consumer.consumer_group_metadata(), *committed_offset(consumer, binding.topic)
    finally:
        consumer.close()


def committed_offset(consumer: Consumer, topic: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> tuple[int, str]:
    """Return the offset that the group of a consumer has committed, with its note; 0 without one."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout_s)
            break
        except KafkaException as e:
            code = e.args[0].code()
            # Some brokers return this for a group that has never committed.
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return 0, ""
            # The broker has just become or ceased to be the group's coordinator; librdkafka does not retry.
            if code not in _COORDINATOR_MOVES or time.monotonic() >= deadline:
                raise
            time.sleep(_MOVING_POLL_S)
    if found.error is not None:
        raise KafkaException(found.error)
    # A negative offset means that no offset was committed.
    return max(0, int(found.offset)), found.metadata or ""


_Kept = TypeVar("_Kept")
_producers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
# In real time one thread commits an interval while another one writes the next.
_keeping: Final = threading.RLock()


def _sorted_settings(binding: KafkaBinding) -> Sequence[tuple[str, str]]:
    return sorted({**binding.client, "partitioner": binding.partitioner}.items())


def _keep_client(key: tuple[Any, ...], make: Callable[[], _Kept]) -> _Kept:
    """Return the client of this process under the key; drop the least recently used one when there are many."""
    # A forked process inherits the objects, but not the threads that would serve them.
    key = (os.getpid(), *key)
    with _keeping:
        if key not in _producers:
            _producers[key] = make()
        _producers.move_to_end(key)
        if len(_producers) > _MAX_PRODUCERS:
            _producers.popitem(last=False)
        kept: _Kept = _producers[key]
    return kept


def forget(producer: PlainProducer | TransactionalProducer) -> None:
    """Close a producer, so that the next use creates a new one."""
    producer.close()
    with _keeping:
        for key in [key for key, kept in _producers.items() if kept is producer]:
            del _producers[key]
