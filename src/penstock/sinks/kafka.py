"""Kafka sink: records to a topic, at least once or exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import pyarrow as pa

from penstock.bindings import KafkaBinding
from penstock.errors import ExternalSystemError
from penstock.kafka_topics import check_topic
from penstock.records import RecordType
from penstock.sinks.base import SinkTask, TaskContext
from penstock.sinks.kafka_groups import newest_batch
from penstock.sinks.kafka_producers import (
    PlainProducer,
    TransactionalProducer,
    TransactionLostError,
    connection_settings,
    forget,
)

__all__ = ["Encoder", "KafkaSink"]

_ATTEMPTS: Final = 3


class Encoder(Protocol):
    """What the sink needs of a format."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """The records as a binary column."""


class KafkaSink:
    """Writes each record as a message, with its key.

    With `delivery=exactly-once` each sink partition writes a batch in one transaction, which also commits the
    batch as the offset of a consumer group named like the transaction. A task that runs again, also beside an
    older attempt that still lives, finds the batch there and writes nothing. A consumer with
    `isolation.level=read_committed` sees every record once.
    """

    def __init__(self, binding: KafkaBinding, encoder: Encoder) -> None:
        self._binding = binding
        self._encoder = encoder
        self.exactly_once = binding.delivery == "exactly-once"
        self.commits_in_tasks = self.exactly_once

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # Kafka keeps what is fixed
        """The newest batch of a lineage that any sink partition has committed, while the broker remembers it."""
        return newest_batch(self._binding, self._transactional_id(lineage, "")) if self.exactly_once else -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # Kafka keeps what is fixed
        """Check the topic, the client settings and, for exactly-once, that transactions work."""
        check_topic(self._binding, connection_settings(self._binding))
        # Settings and transactions are tried here, where an error is a sentence and not a failed task.
        if self.exactly_once:
            forget(TransactionalProducer(self._binding, self._transactional_id(lineage, "start")))
        else:
            forget(PlainProducer(self._binding))

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """A task that sends while records come, and is done when they are safe (or committed)."""
        if self.exactly_once:
            transactional_id = self._transactional_id(context.lineage, str(context.partition))
            return _TransactionTask(self._binding, self._encoder, transactional_id, context.batch_id)
        return _PlainTask(self._binding, self._encoder)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Nothing to do: the tasks have made their records visible."""

    def _transactional_id(self, lineage: str, partition: str) -> str:
        return f"penstock-{lineage}-{self._binding.stream}-{partition}"


class _PlainTask:
    """Sends while records come, and waits for the broker at the end."""

    def __init__(self, binding: KafkaBinding, encoder: Encoder) -> None:
        self._encoder = encoder
        self._producer = PlainProducer.of(binding)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        if len(batch):
            self._producer.send(self._encoder.encode(batch), keys)

    def finish(self) -> bytes:
        self._producer.flush()
        return b""

    def abort(self) -> None:
        with suppress(Exception):
            forget(self._producer)


class _TransactionTask:
    """Sends in a transaction, and keeps the messages until it is committed, in case it has to begin again.

    The producer that this process has kept may be fenced, by a worker that had the partition in between. Then
    the first request fails, and a new producer finds out whether the batch is there already.
    """

    def __init__(self, binding: KafkaBinding, encoder: Encoder, transactional_id: str, batch_id: int) -> None:
        self._binding = binding
        self._encoder = encoder
        self._id = transactional_id
        self._batch_id = batch_id
        self._messages: list[tuple[pa.Array, pa.Array | None]] = []
        self._sent = 0
        self._producer: TransactionalProducer | None = None
        self._lost = 0

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        if len(batch):
            self._messages.append((self._encoder.encode(batch), keys))
            self._until_done(self._send)

    def finish(self) -> bytes:
        if self._messages:
            self._until_done(self._send_and_commit)
        return b""

    def abort(self) -> None:
        with suppress(Exception):
            if self._producer is not None:
                self._producer.abort()

    def _send(self) -> bool:
        """Send what this producer has not sent yet; whether the batch is there already."""
        if self._producer is None:
            self._producer = TransactionalProducer.of(self._binding, self._id)
            # An earlier task of this process may have left a transaction open.
            self._producer.abort()
            self._sent = 0
        if self._producer.done >= self._batch_id:
            return True
        while self._sent < len(self._messages):
            self._producer.send(*self._messages[self._sent])
            self._sent += 1
        return False

    def _send_and_commit(self) -> bool:
        already_there = self._send()
        if not already_there and self._producer is not None:
            self._producer.commit(self._batch_id)
        return already_there

    def _until_done(self, action: Callable[[], bool]) -> None:
        """Do it, with a new producer when the transaction is lost."""
        while True:
            try:
                action()
                return
            except TransactionLostError as e:
                self._producer = None
                self._lost += 1
                if self._lost == _ATTEMPTS:
                    raise ExternalSystemError(
                        f"Sink {self._binding.stream!r}: the transaction {self._id} on {self._binding.servers} "
                        f"was lost {self._lost} times ({e}). The batch will be written again."
                    ) from e
