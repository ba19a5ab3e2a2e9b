"""Bulk client: a producer of one topic that takes columns of messages, by calls of librdkafka for many messages.

The Python client of Kafka has librdkafka in it, but calls it for each message, and once more when each is delivered. A
bulk client makes one call for a column, and librdkafka reports only what it could not deliver.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from penstock.brokers.librdkafka import NO_PROBLEM, OnDelivery, OnError, OnLog, libraries

__all__ = ["BulkClient"]

# Up to this many messages, a call for each takes less time than making the columns of one call for all.
_FEW: Final = 16
# A call for this many messages lets other threads of Python run meanwhile; taking the interpreter back costs time.
_MANY: Final = 1000
_TEXT_BYTES: Final = 512

# Constants of rdkafka.h.
_PRODUCER: Final = 0
_CONF_OK: Final = 0
_COPY: Final = 0x2
_ANY_PARTITION: Final = -1
_PURGE_ALL: Final = 0x1 | 0x2
_QUEUE_FULL: Final = KafkaError._QUEUE_FULL  # noqa: SLF001  # librdkafka's own codes begin with it
_INVALID: Final = KafkaError._INVALID_ARG  # noqa: SLF001  # as above

# rd_kafka_message_t, as NumPy sees it.
_MESSAGE: Final = np.dtype(
    [
        ("problem", np.int32),
        ("topic", np.uintp),
        ("partition", np.int32),
        ("value", np.uintp),
        ("value_bytes", np.uintp),
        ("key", np.uintp),
        ("key_bytes", np.uintp),
        ("offset", np.int64),
        ("opaque", np.uintp),
    ],
    align=True,
)
# By the levels of syslog.
_LEVELS: Final = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, *[logging.INFO] * 2, logging.DEBUG)


class BulkClient:
    """A producer of one topic.

    The settings are those of a `Producer` of confluent_kafka, with its `error_cb` and `logger`. `on_delivery`, if it is
    there, is called for messages that could not be delivered, without the message. Raises KafkaException as it does.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        found = libraries()
        assert found is not None, "the caller has asked has_bulk_calls()"
        self._library, self._short = found
        callbacks = _callbacks(settings)
        client = _new_client(self._library, settings, callbacks)
        self._client: Final = client
        self._name: Final = topic.encode()
        # The topic's handle, once it is made.
        self._topics: Final[list[int]] = []
        # librdkafka calls the callbacks until it is destroyed.
        closing = weakref.finalize(
            self, _destroy, self._library, os.getpid(), client, self._topics, callbacks
        )
        closing.atexit = False

    @property
    def _topic(self) -> int:
        """The topic's handle, made for the first messages.

        An idempotent producer of librdkafka asks for its id when it hears of brokers. A client with a topic asks about
        the topic first instead, before it knows the broker by its number, and the id has to wait for a timer of 500 ms.
        """
        if not self._topics:
            self._topics.append(self._library.rd_kafka_topic_new(self._client, self._name, None))
        return self._topics[0]

    def produce(self, values: pa.Array, keys: pa.Array | None) -> int:
        """Queue messages from the first on, as many as fit, and return how many.

        Raises KafkaException for a message that cannot be sent.
        """
        count = len(values)
        if count <= _FEW:
            return self._produce_few(values, keys)
        messages = np.zeros(count, _MESSAGE)
        kept = [_fill(messages, "value", values)]
        if keys is not None:
            kept.append(_fill(messages, "key", keys))
        library = self._short if count < _MANY else self._library
        queued: int = library.rd_kafka_produce_batch(
            self._topic, _ANY_PARTITION, _COPY, messages.ctypes.data, count
        )
        del kept
        if queued < count:
            for problem in np.unique(messages["problem"]).tolist():
                if problem not in (NO_PROBLEM, _QUEUE_FULL):
                    raise self._exception(problem)
        return queued

    def _produce_few(self, values: pa.Array, keys: pa.Array | None) -> int:
        produce = self._short.rd_kafka_produce
        texts: list[bytes | None] = values.to_pylist()
        key_texts = [None] * len(texts) if keys is None else keys.to_pylist()
        for number, (text, key) in enumerate(zip(texts, key_texts, strict=True)):
            sizes = len(text or b""), len(key or b"")
            if produce(self._topic, _ANY_PARTITION, _COPY, text, sizes[0], key, sizes[1], None):
                problem = self._short.rd_kafka_last_error()
                if problem == _QUEUE_FULL:
                    return number
                raise self._exception(problem)
        return len(texts)

    def _exception(self, problem: int) -> KafkaException:
        return KafkaException(KafkaError(problem, self._library.rd_kafka_err2str(problem).decode()))

    def set_sasl_credentials(self, user: str, password: str) -> None:
        """Log in with these from the next connection on."""
        error = self._library.rd_kafka_sasl_set_credentials(self._client, user.encode(), password.encode())
        assert error is None, "librdkafka takes any user and password"

    def poll(self, timeout_s: float) -> None:
        """Report undelivered messages and errors; wait a while for them."""
        library = self._library if timeout_s else self._short
        library.rd_kafka_poll(self._client, int(timeout_s * 1000))

    def __len__(self) -> int:
        """Return how many messages are not delivered yet, and how many reports wait for `poll`."""
        waiting: int = self._short.rd_kafka_outq_len(self._client)
        return waiting

    def flush(self, timeout_s: float) -> int:
        """Wait until all messages are delivered or reported, and return how many were not in time."""
        self._library.rd_kafka_flush(self._client, int(timeout_s * 1000))
        return len(self)

    def purge(self) -> None:
        """Drop the messages that wait."""
        self._library.rd_kafka_purge(self._client, _PURGE_ALL)


def _callbacks(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    on_error: Callable[[KafkaError], None] = settings["error_cb"]
    on_delivery: Callable[[KafkaError, None], None] | None = settings.get("on_delivery")
    logger: logging.Logger = settings["logger"]

    def error(_client: int, problem: int, reason: bytes, _opaque: int) -> None:
        on_error(KafkaError(problem, reason.decode()))

    def delivery(_client: int, message: Any, _opaque: int) -> None:
        problem = message.contents.value
        if problem != NO_PROBLEM and on_delivery is not None:
            on_delivery(KafkaError(problem), None)

    def log(_client: int, level: int, facility: bytes, text: bytes) -> None:
        logger.log(_LEVELS[level], "%s %s", facility.decode(), text.decode())

    return OnError(error), OnDelivery(delivery), OnLog(log)


def _strings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if not callable(value) and not isinstance(value, logging.Logger):
            yield name, str(value)
    # Messages that are delivered leave the queue at once, and not when `poll` is called.
    yield "delivery.report.only.error", "true"
    # So that `poll` calls the logger, not a thread of librdkafka.
    yield "log.queue", "true"


def _new_client(library: ctypes.CDLL, settings: Mapping[str, Any], callbacks: tuple[Any, Any, Any]) -> int:
    """Return a new producer. Raises KafkaException when it does not accept a setting."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    given: int = library.rd_kafka_conf_new()
    for name, value in _strings(settings):
        if library.rd_kafka_conf_set(given, name.encode(), value.encode(), text, _TEXT_BYTES) != _CONF_OK:
            library.rd_kafka_conf_destroy(given)
            raise KafkaException(KafkaError(_INVALID, text.value.decode()))
    on_error, on_delivery, on_log = callbacks
    library.rd_kafka_conf_set_error_cb(given, on_error)
    library.rd_kafka_conf_set_dr_msg_cb(given, on_delivery)
    library.rd_kafka_conf_set_log_cb(given, on_log)
    client: int | None = library.rd_kafka_new(_PRODUCER, given, text, _TEXT_BYTES)
    if client is None:
        library.rd_kafka_conf_destroy(given)
        raise KafkaException(KafkaError(_INVALID, text.value.decode()))
    library.rd_kafka_set_log_queue(client, None)
    return client


def _destroy(library: ctypes.CDLL, process: int, client: int, topics: list[int], _callbacks: object) -> None:
    # A forked process has the object, but not the threads that would be waited for.
    if os.getpid() == process:
        for topic in topics:
            library.rd_kafka_topic_destroy(topic)
        library.rd_kafka_destroy(client)


def _fill(messages: npt.NDArray[Any], part: str, column: pa.Array) -> object:
    """Set where a part of each message is, and its size. The result must live as long as the messages."""
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    # A part of no bytes has a place, unlike one that is missing.
    begin = offsets.address if data is None or not data.size else data.address
    messages[part] = ends[:-1].astype(np.uintp) + np.uintp(begin)
    messages[f"{part}_bytes"] = np.diff(ends)
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        messages[part][missing] = 0
        messages[f"{part}_bytes"][missing] = 0
    return column
