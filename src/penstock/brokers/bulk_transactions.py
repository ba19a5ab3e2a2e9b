"""Bulk transactions: a bulk client whose messages are in transactions, with the offset of a consumer group."""

from __future__ import annotations

import ctypes

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from penstock.brokers.bulk_client import BulkClient
from penstock.brokers.librdkafka import NO_PROBLEM, Pointer

__all__ = ["BulkTransactions"]


class BulkTransactions(BulkClient):
    """A producer of one topic, in transactions. Its settings have a `transactional.id`.

    Its methods are those of confluent_kafka's `Producer`, and raise KafkaException as they do.
    """

    def list_topics(self, topic: str, timeout: float) -> None:
        """Ask a broker for its topic and return nothing, which is enough for a connection."""
        assert topic.encode() == self._name
        found = Pointer()
        problem = self._library.rd_kafka_metadata(
            self._client, 0, self._topic, ctypes.byref(found), int(timeout * 1000)
        )
        if problem != NO_PROBLEM:
            raise self._exception(problem)
        self._library.rd_kafka_metadata_destroy(found)

    def init_transactions(self, timeout_s: float) -> None:
        """Fence other producers of the id, and end the transaction they left open."""
        self._check(self._library.rd_kafka_init_transactions(self._client, int(timeout_s * 1000)))

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._check(self._library.rd_kafka_begin_transaction(self._client))

    def produce(self, values: pa.Array, keys: pa.Array | None) -> int:
        """Queue messages from the first on, as many as fit, and return how many.

        Raises KafkaException for a message that cannot be sent, and when no transaction is open. Of
        the calls of librdkafka, only that for a single message looks for that.
        """
        if not len(values):
            return 0
        queued = self._produce_few(values.slice(0, 1), None if keys is None else keys.slice(0, 1))
        if queued == len(values) or not queued:
            return queued
        return queued + super().produce(values.slice(1), None if keys is None else keys.slice(1))

    def send_offset(self, group: str, offset: int, note: str, timeout_s: float) -> None:
        """Make an offset of partition 0 of the topic part of the transaction, for a group that nobody joins."""
        library = self._library
        places = library.rd_kafka_topic_partition_list_new(1)
        whose = library.rd_kafka_consumer_group_metadata_new(group.encode())
        try:
            place = library.rd_kafka_topic_partition_list_add(places, self._name, 0).contents
            place.offset = offset
            if text := note.encode():
                # The list owns the note. The copy needs its size, and sending looks for its end.
                size = len(text) + 1
                place.note = library.rd_kafka_mem_malloc(None, size)
                place.note_bytes = size
                ctypes.memmove(place.note, text, size)
            self._check(
                library.rd_kafka_send_offsets_to_transaction(
                    self._client, places, whose, int(timeout_s * 1000)
                )
            )
        finally:
            library.rd_kafka_consumer_group_metadata_destroy(whose)
            library.rd_kafka_topic_partition_list_destroy(places)

    def commit_transaction(self, timeout_s: float) -> None:
        """Wait until all messages are delivered, and commit them."""
        self._check(self._library.rd_kafka_commit_transaction(self._client, int(timeout_s * 1000)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Drop the messages of the transaction."""
        self._check(self._library.rd_kafka_abort_transaction(self._client, int(timeout_s * 1000)))

    def _check(self, error: int | None) -> None:
        """Raise the error that a call has returned, if any."""
        if error is None:
            return
        code: int = self._library.rd_kafka_error_code(error)
        text: bytes = self._library.rd_kafka_error_string(error)
        found = KafkaException(KafkaError(code, text.decode()))
        self._library.rd_kafka_error_destroy(error)
        raise found
