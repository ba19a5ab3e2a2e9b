"""A publisher of RabbitMQ: many messages under way, each of which the broker confirms or returns."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import Basic

from penstock.bindings.types import ExchangeBinding
from penstock.rabbitmq.rabbitmq_connections import (
    ANSWER_S,
    NOT_FOUND,
    connection_parameters,
    open_connection,
    reason_of,
)
from penstock.rabbitmq.rabbitmq_problems import Problems
from penstock.records.cloud_events import EVENT_CONTENT_TYPE
from penstock.sinks.message_parts import ORIGIN_HEADER
from penstock.sinks.publishing_sink import OutgoingMessage

__all__ = ["RabbitPublisher", "check_exchange", "content_type", "message_id"]

_UNDER_WAY: Final = 2_000
_PERSISTENT: Final = 2
_MAX_ID_BYTES: Final = 255
_OF_BYTES: Final = "application/octet-stream"
_CONTENT_TYPES: Final = {
    "json": "application/json",
    "protobuf": "application/x-protobuf",
    "bytes": _OF_BYTES,
    "cloudevents": EVENT_CONTENT_TYPE,
}
_TOO_LARGE: Final = re.compile(r"message size \d+\D+(\d+)")


def content_type(binding: ExchangeBinding) -> str:
    """Return the content type of the messages of a sink."""
    # A body that names its schema in a registry has bytes before its Avro, JSON or protobuf.
    return _OF_BYTES if binding.registry is not None else _CONTENT_TYPES[binding.format]


def message_id(origin: str | None) -> str | None:
    """Return the id of a message for its origin: a digest of it where AMQP has no room for the whole.

    >>> message_id("lineage/readings/00000/17/0"), len(message_id(300 * "x"))
    ('lineage/readings/00000/17/0', 64)
    """
    if origin is None or len(origin.encode()) <= _MAX_ID_BYTES:
        return origin
    return hashlib.blake2b(origin.encode(), digest_size=32).hexdigest()


class RabbitPublisher:
    """A connection that publishes, in one thread: everything happens in `publish`.

    Creating one, and `publish`, raise ConnectionError when the connection fails.
    """

    def __init__(self, binding: ExchangeBinding) -> None:
        self._binding: Final = binding
        self._problem = ""
        self._blocked_by = ""
        self._channel: Any = None
        self._is_ready = False
        self._newest_tag = 0
        self._under_way: dict[int, int] = {}
        """The row of each message that the broker has not judged, by its delivery tag."""
        self._unroutable: set[int] = set()
        self._heard_s = time.monotonic()
        self._waiting: dict[int, OutgoingMessage] = {}
        self._unsent: Iterator[int] = iter(())
        self._refused: dict[int, str] = {}
        self._connection: Final[Any] = pika.SelectConnection(
            connection_parameters(binding), self._on_open, self._on_lost, self._on_lost
        )
        try:
            self._run_until(lambda: self._is_ready)
        except BaseException:
            self.close()
            raise

    def publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        """Publish the messages of rows, and take out of `waiting` those that the broker has judged.

        `refused` gets the reasons of those that it does not take. Raises ConnectionError when messages stay in
        `waiting`, which may be different later.
        """
        self._waiting, self._unsent, self._refused = waiting, iter(list(waiting)), refused
        self._fill()
        self._run_until(lambda: not self._under_way)
        if waiting:
            raise ConnectionError("it cannot keep the messages now; a queue may be full")

    def close(self) -> None:
        """End the connection."""
        with suppress(AMQPError):
            if self._connection.is_open:
                self._connection.close()
                self._run_until(lambda: self._connection.is_closed)
        self._connection.ioloop.close()

    def _fill(self) -> None:
        """Send messages until the allowed number is in flight."""
        binding = self._binding
        while len(self._under_way) < _UNDER_WAY:
            row = next(self._unsent, None)
            if row is None:
                return
            message = self._waiting[row]
            properties = pika.BasicProperties(
                content_type=content_type(binding),
                delivery_mode=_PERSISTENT,
                message_id=message_id(message.origin),
                headers=None if message.origin is None else {ORIGIN_HEADER: message.origin},
            )
            self._newest_tag += 1
            self._under_way[self._newest_tag] = row
            self._channel.basic_publish(
                binding.exchange, message.route, message.body, properties, mandatory=True
            )

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        """Exchange with the broker until something is done. Raises ConnectionError when that fails."""
        loop = self._connection.ioloop
        self._heard_s = time.monotonic()
        while not is_done():
            if self._problem:
                raise ConnectionError(self._problem)
            left_s = self._heard_s + ANSWER_S - time.monotonic()
            if left_s <= 0:
                raise ConnectionError(self._blocked_by or f"there is no answer for {ANSWER_S:g} s")
            timer = loop.call_later(left_s, loop.stop)
            loop.start()
            loop.remove_timeout(timer)

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_lost)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_judged, self._on_ready)

    def _on_ready(self, frame: Any) -> None:  # noqa: ARG002  # the signature is pika's
        self._is_ready = True
        self._connection.ioloop.stop()

    def _on_blocked(self, connection: Any, frame: Any) -> None:  # noqa: ARG002  # the signature is pika's
        """Note why the broker takes nothing from anybody, such as "low on memory"."""
        reason = frame.method.reason
        self._blocked_by = (
            f"it is {reason} and blocks those that publish" if reason else "it blocks those that publish"
        )

    def _on_unblocked(self, connection: Any, frame: Any) -> None:  # noqa: ARG002  # the signature is pika's
        self._blocked_by = ""

    def _on_lost(self, of: Any, error: BaseException) -> None:  # noqa: ARG002  # the signature is pika's
        """Note why the connection or its channel is lost, and what is too large if that is the reason."""
        reason = self._blocked_by or getattr(error, "reply_text", "") or reason_of(error)
        self._problem = self._problem or str(reason)
        found = _TOO_LARGE.search(self._problem)
        largest = None if found is None else int(found.group(1))
        for row, message in list(self._waiting.items()):
            if largest is not None and len(message.body) > largest:
                del self._waiting[row]
                self._refused[row] = f"The broker refuses it: {self._problem}."
        self._connection.ioloop.stop()

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:  # noqa: ARG002  # the signature is pika's
        """Note which message has no queue. It is still confirmed, behind this."""
        origin = (properties.headers or {}).get(ORIGIN_HEADER)
        message = (method.routing_key, body, origin)
        for tag, row in self._under_way.items():
            # Of equal messages all go the same way, and in the order in which they were sent.
            if tag not in self._unroutable and self._waiting[row] == message:
                self._unroutable.add(tag)
                return

    def _on_judged(self, frame: Any) -> None:
        """Note what the broker has confirmed. What it cannot keep now is still waiting."""
        self._heard_s = time.monotonic()
        method = frame.method
        newest = method.delivery_tag
        tags = [newest]
        if method.multiple:
            tags = [tag for tag in self._under_way if tag <= newest]
        for tag in tags:
            row = self._under_way.pop(tag)
            if tag in self._unroutable:
                self._unroutable.discard(tag)
                self._refused[row] = self._no_queue(self._waiting.pop(row).route)
            elif isinstance(method, Basic.Ack):
                del self._waiting[row]
        self._fill()
        if not self._under_way:
            self._connection.ioloop.stop()

    def _no_queue(self, routing_key: str) -> str:
        exchange = self._binding.exchange
        if not exchange:
            return f"There is no queue {routing_key!r}."
        return f"The exchange {exchange!r} has no queue for the routing key {routing_key!r}."


def check_exchange(binding: ExchangeBinding) -> None:
    """Check that the broker answers and has the exchange or the queue; create the queue if the binding says so.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    problems = Problems(binding)
    connection = open_connection(binding, problems)
    try:
        try:
            if binding.exchange:
                connection.channel().exchange_declare(binding.exchange, passive=True)
            elif "{" not in binding.routing_key:
                connection.channel().queue_declare(binding.routing_key, passive=True)
        except ChannelClosedByBroker as e:
            if e.reply_code != NOT_FOUND:
                raise
            if not binding.create:
                raise problems.missing() from None
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(binding.routing_key, durable=True, arguments=arguments)
    except ChannelClosedByBroker as e:
        raise problems.refused(e.reply_text) from None
    except AMQPError as e:
        raise problems.unreachable(reason_of(e)) from e
    finally:
        with suppress(AMQPError, OSError):
            connection.close()
