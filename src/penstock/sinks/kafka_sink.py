"""Kafka sink: records to a topic, at least once or exactly once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import (
    RecordOrigin,
    RejectingTask,
    Rejection,
    SendingTask,
    SinkTask,
    TaskContext,
)
from penstock.sinks.kafka_groups import newest_batch
from penstock.sinks.kafka_producers import (
    PlainProducer,
    TransactionalProducer,
    TransactionLostError,
    connection_settings,
    forget,
    transaction_timeout_s,
)
from penstock.sinks.message_parts import Messages, hashes_of, headers_of, keys_of
from penstock.sinks.message_sizes import MessageLimit, keyless, limit_of, oversized, with_limit
from penstock.sinks.outgoing_messages import OutgoingMessages
from penstock.sinks.requests_in_flight import with_requests

__all__ = ["Encoder", "KafkaSink"]

_ATTEMPTS: Final = 3


class Encoder(Protocol):
    """The part of a format that the sink needs."""

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the records as a binary column."""


class KafkaSink:
    """A sink that writes each record as a message, with its key.

    With `delivery=exactly-once` each sink partition writes a batch in one transaction, which also commits the
    batch as the offset of a consumer group named like the transaction. A task that runs again, even next to an
    older attempt that is still alive, finds the batch there and writes nothing. A consumer with
    `isolation.level=read_committed` sees every record once.
    """

    def __init__(self, binding: KafkaBinding, encoder: Encoder) -> None:
        self._binding = binding
        self._encoder = encoder
        self._limit = MessageLimit()
        self.exactly_once = binding.delivery == "exactly-once"
        self.commits_in_tasks = self.exactly_once

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # Kafka keeps what is fixed
        """Return the newest batch of a lineage that any sink partition has committed, while the broker remembers it."""
        return newest_batch(self._binding, self._transactional_id(lineage, "")) if self.exactly_once else -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # Kafka keeps what is fixed
        """Check the topic, the client settings and, for exactly-once, that transactions work."""
        connection = connection_settings(self._binding)
        check_topic(self._binding, connection)
        self._limit = limit_of(self._binding, connection)
        self._binding = with_requests(with_limit(self._binding, self._limit), connection)
        # Try settings and transactions here, where an error is a message and not a failed task.
        if self.exactly_once:
            forget(TransactionalProducer(self._binding, self._transactional_id(lineage, "start")))
        else:
            forget(PlainProducer(self._binding))

    def connect(self) -> None:
        """Make the producer early: its first message waits until it knows the brokers, for up to half a second."""
        # A transaction is of a partition, and its producer waits for the connection.
        if not self.exactly_once:
            PlainProducer.of(self._binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task that is done when its records are safe, or committed."""
        if self.exactly_once:
            transactional_id = self._transactional_id(context.lineage, str(context.partition))
            outgoing = _Encoded(self._binding, self._encoder, self._limit, context)
            return _TransactionTask(outgoing, transactional_id, context.batch_id)
        return _PlainTask(_Encoded(self._binding, self._encoder, self._limit, context))

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the tasks have made their records visible."""

    def _transactional_id(self, lineage: str, partition: str) -> str:
        return f"penstock-{lineage}-{self._binding.stream}-{partition}"


@dataclass(frozen=True)
class _Encoded:
    """Records encoded as messages, without those that the topic does not take."""

    binding: KafkaBinding
    encoder: Encoder
    limit: MessageLimit
    context: TaskContext

    def messages(
        self, batch: pa.RecordBatch, keys: pa.Array | None, origin: RecordOrigin | None
    ) -> tuple[Messages, list[Rejection]]:
        """Return the messages that the topic takes, and the records of the others."""
        values = self.encoder.encode(batch)
        found = Messages(
            values,
            keys_of(self.binding, batch, keys),
            headers_of(self.binding, batch, self.context, origin),
            hashes_of(self.binding, batch, keys),
        )
        max_bytes, topic = self.limit.max_bytes, self.binding.topic
        sizes = oversized(values, found.keys, max_bytes, found.headers)
        reasons = keyless(self.limit, found.keys, len(values), topic)
        reasons |= {row: self.limit.reason(size, topic) for row, size in sizes.items()}
        if not reasons:
            return found, []
        rejections = [
            Rejection(row, reason, values[row].as_py() or b"", max_bytes)
            for row, reason in sorted(reasons.items())
        ]
        return found.filter(pa.array([row not in reasons for row in range(len(values))])), rejections


class _PlainTask(SendingTask):
    """A task that sends records as they come, and waits for the broker at the end."""

    def __init__(self, encoded: _Encoded) -> None:
        super().__init__()
        self._encoded = encoded
        self._producer = PlainProducer.of(encoded.binding)
        self._sent = 0

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        if len(batch):
            messages, self._rejections = self._encoded.messages(batch, keys, self._origin)
            self._sent = self._producer.send(messages)

    def has_arrived(self) -> bool:
        return self._producer.has_arrived(self._sent)

    def finish(self) -> bytes:
        if not self.has_arrived():
            self._producer.flush()
        return b""

    def abort(self) -> None:
        with suppress(Exception):
            forget(self._producer)


class _TransactionTask(RejectingTask):
    """A task that keeps its messages until it has all of them, then sends and commits them in one transaction.

    The broker ends a transaction that stays open for long, so none is open while user code still runs.
    The producer that this process has kept may be fenced by a worker that had the partition in between. Then
    the first request fails, and a new producer finds out whether the batch is already there.

    The limit of message sizes is committed with the batch. When the batch is already there, its replay leaves out the
    same records, even if the topic would accept them by now.
    """

    def __init__(self, encoded: _Encoded, transactional_id: str, batch_id: int) -> None:
        super().__init__()
        self._encoded = encoded
        self._binding = encoded.binding
        self._id = transactional_id
        self._batch_id = batch_id
        self._messages = OutgoingMessages(self._binding.stream)
        self._producer: TransactionalProducer | None = None
        self._has_begun = False

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        if not len(batch):
            return
        if self._producer is None:
            self._producer = TransactionalProducer.of(self._binding, self._id)
            self._encoded = replace(self._encoded, limit=self._limit(self._producer))
        messages, self._rejections = self._encoded.messages(batch, keys, self._origin)
        self._messages.append(messages)

    def finish(self) -> bytes:
        if self._producer is not None:
            self._send_and_commit()
        self._messages.close()
        return b""

    def abort(self) -> None:
        self._messages.close()
        with suppress(Exception):
            # In real time another thread may be committing the interval before with the same producer.
            if self._has_begun and self._producer is not None:
                self._producer.abort()

    def _limit(self, producer: TransactionalProducer) -> MessageLimit:
        """Return the limit for the batch: the one it was committed with, if it was committed."""
        if producer.done == self._batch_id and producer.note:
            return msgspec.json.decode(producer.note, type=MessageLimit)
        return self._encoded.limit

    def _send_and_commit(self) -> None:
        """Send and commit; retry with a new producer when the transaction is lost."""
        for attempt in range(1, _ATTEMPTS + 1):
            begun_s = time.monotonic()
            try:
                self._attempt()
                return
            except TransactionLostError as e:
                self._producer = None
                took_s = time.monotonic() - begun_s
                if took_s >= transaction_timeout_s(self._binding):
                    raise self._too_slow(took_s, e) from e
                if attempt == _ATTEMPTS:
                    raise ExternalSystemError(
                        f"Sink {self._binding.stream!r}: the transaction {self._id} on {self._binding.servers} "
                        f"was lost {attempt} times ({e}). The batch will be written again."
                    ) from e

    def _attempt(self) -> None:
        producer = self._producer = TransactionalProducer.of(self._binding, self._id)
        self._has_begun = True
        # An earlier task of this process may have left a transaction open.
        producer.abort()
        if producer.done < self._batch_id:
            for messages in self._messages.blocks():
                producer.send(messages)
            producer.commit(self._batch_id, msgspec.json.encode(self._encoded.limit).decode())
        elif self._limit(producer) != self._encoded.limit:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: batch {self._batch_id} was written to {self._binding.topic!r} by a "
                "task of an earlier run, with another limit of message sizes. The batch will be written again."
            )

    def _too_slow(self, took_s: float, cause: TransactionLostError) -> ExternalSystemError:
        megabytes = self._messages.nbytes / (1 << 20)
        return ExternalSystemError(
            f"Sink {self._binding.stream!r}: the output of batch {self._batch_id} in one task, {megabytes:,.1f} MB, "
            f"could not be sent to {self._binding.servers} within {took_s:.0f} s ({cause}), and its transaction may "
            f"be open for {transaction_timeout_s(self._binding):g} s. Raise transaction.timeout.ms in the URI (the "
            "broker allows at most its transaction.max.timeout.ms), or let a batch read less with "
            "max_records_per_batch or max_files_per_batch."
        )
