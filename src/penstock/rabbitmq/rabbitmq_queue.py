"""RabbitMQ queues: messages are acknowledged when they are in the journal, not before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError, UnroutableError

from penstock.bindings.types import QueueBinding
from penstock.rabbitmq.rabbitmq_connections import NOT_FOUND, open_connection, reason_of
from penstock.rabbitmq.rabbitmq_problems import Problems
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import IDLE_S, Group, Receiver
from penstock.sources.redelivery import JournaledMessages, message_digest

__all__ = ["QueueReceiver", "check_queue", "publish_to_queue"]

_SILENCE_S: Final = 1.0
_ACCESS_REFUSED: Final = 403


def check_queue(binding: QueueBinding) -> None:
    """Check that the broker answers and has the queue; create it if the binding says so.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    with _QueueConnection(binding):
        pass


def publish_to_queue(binding: QueueBinding, body: bytes, message_id: str) -> None:
    """Publish one durable message, and wait until the broker has it.

    Raises ExternalSystemError or BindingError, whose message says what is wrong.
    """
    with _QueueConnection(binding) as connection:
        connection.publish(body, message_id)


class QueueReceiver(Receiver["_QueueConnection"]):
    """A receiver of the messages of a queue.

    Messages are acknowledged in groups, when the group is durable in the journal. A message that a crash left journaled
    but not acknowledged comes again. It is skipped when the broker marks it as redelivered, it has a `message_id`, and
    it is among the last 100 000 such messages in the journal. A bounded run ends when it has received as many messages
    as the queue held when the connection was made, or when the queue is empty.
    """

    def __init__(self, binding: QueueBinding, journal: JournalWriter, *, bounded: bool = False) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        self._journaled = JournaledMessages(journal.notes())

    def _connect(self) -> _QueueConnection:
        return _QueueConnection(self._binding)

    def _receive(self, connection: _QueueConnection) -> None:
        wanted = connection.waiting if self._bounded else None
        if wanted == 0:
            return
        # Half of what may be in flight: while one half is made durable, the other arrives.
        group = Group(self._journal, max(1, self._binding.prefetch // 2))
        inbox = _Inbox(group, self._journaled, wanted)
        connection.consume(inbox.take)
        while not self._stopping.is_set() and not inbox.is_full:
            came = connection.wait(inbox.wait_s)
            if inbox.wait_s == 0:
                connection.acknowledge(inbox.commit())
            elif wanted is not None and not came and connection.is_exhausted():
                break
        connection.acknowledge(inbox.commit())


class _Inbox:
    """The messages that have arrived and are not durable yet.

    Args:
        group: where records wait to be journaled.
        journaled: the messages that are already durable.
        wanted: the number of messages after which it is full; None for no end.

    """

    def __init__(self, group: Group, journaled: JournaledMessages, wanted: int | None) -> None:
        self._group = group
        self._journaled = journaled
        self._wanted = wanted
        self._digests: list[bytes] = []
        self._received = 0
        self._newest_tag = 0

    @property
    def is_full(self) -> bool:
        """Whether all wanted messages have arrived."""
        return self._wanted is not None and self._received >= self._wanted

    @property
    def wait_s(self) -> float:
        """How long to wait for more before the next commit, in seconds."""
        if not len(self._group):
            return 0.0 if self._newest_tag else IDLE_S
        return self._group.wait_s

    def take(self, message: _Message) -> None:
        """Take a message; one after the last that is wanted stays with the broker."""
        if self.is_full:
            return
        self._received += 1
        self._newest_tag = message.tag
        if message.message_id is None:
            self._group.add(message.body)
            return
        digest = message_digest(message.message_id, message.body)
        if not (message.is_redelivered and digest in self._journaled):
            self._group.add(message.body, digest)
            self._digests.append(digest)

    def commit(self) -> int:
        """Make durable what arrived; return the tag up to which the broker may forget, 0 for nothing new."""
        self._group.commit()
        self._journaled.add(self._digests)
        tag = self._newest_tag
        self._digests, self._newest_tag = [], 0
        return tag


@dataclass(frozen=True)
class _Message:
    """A delivered message. `tag` is the broker's number for acknowledging it."""

    tag: int
    body: bytes
    message_id: str | None = None
    is_redelivered: bool = False


class _QueueConnection:
    """A connection to a queue; a context manager.

    Creating one raises the errors of `Problems`; everything else raises ConnectionError when the connection is lost.
    `waiting` is how many messages the queue held when the connection was made.
    """

    def __init__(self, binding: QueueBinding) -> None:
        self._binding = binding
        self._problems = Problems(binding)
        self._cancelled = False
        self._came_s = time.monotonic()
        self._came = False
        self._connection = open_connection(binding, self._problems)
        try:
            self._channel, self.waiting = self._open_queue()
            self._refuse_stream()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def consume(self, take: Callable[[_Message], None]) -> None:
        """From now on pass each message that arrives to `take`, whenever `wait` is called."""

        def on_message(channel: Any, delivery: Any, properties: Any, body: bytes) -> None:  # noqa: ARG001  # the signature is pika's
            self._came = True
            message_id = properties.message_id
            if isinstance(message_id, bytes):
                # pika leaves what is not UTF-8 as bytes.
                message_id = message_id.decode(errors="surrogateescape")
            take(_Message(delivery.delivery_tag, body, message_id, delivery.redelivered))

        def on_cancel(frame: Any) -> None:  # noqa: ARG001  # the signature is pika's
            self._cancelled = True

        with _connection_errors():
            self._channel.basic_qos(prefetch_count=self._binding.prefetch)
            self._channel.add_on_cancel_callback(on_cancel)
            self._channel.basic_consume(self._binding.queue, on_message, auto_ack=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for messages; return whether any arrived."""
        self._came = False
        with _connection_errors():
            self._connection.process_data_events(timeout_s)
        if self._cancelled:
            raise ConnectionError("the broker ended the delivery")
        if not self._channel.is_open:
            # The connection stays, and would wait for ever.
            reason = self._channel._closing_reason  # noqa: SLF001  # pika tells it nowhere else
            raise ConnectionError(f"the broker closed the channel ({reason})")
        if self._came:
            self._came_s = time.monotonic()
        return self._came

    def is_exhausted(self) -> bool:
        """Return whether nothing has arrived for a while, and nothing waits in the queue.

        Others may read the same queue, so not all that was there arrives here.
        """
        return time.monotonic() > self._came_s + _SILENCE_S and self._count() == 0

    def acknowledge(self, tag: int) -> None:
        """Let the broker forget all messages up to this one; 0 is none."""
        if tag:
            with _connection_errors():
                self._channel.basic_ack(tag, multiple=True)

    def publish(self, body: bytes, message_id: str) -> None:
        """Publish one durable message; return when the broker has confirmed it."""
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id)
        try:
            self._channel.confirm_delivery()
            self._channel.basic_publish("", self._binding.queue, body, properties, mandatory=True)
        except (UnroutableError, NackError) as e:
            raise self._problems.refused(f"the message is not accepted, {type(e).__name__}") from None
        except ChannelClosedByBroker as e:
            raise self._problems.refused(e.reply_text) from None
        except AMQPError as e:
            raise self._problems.unreachable(reason_of(e)) from e

    def _count(self) -> int:
        with _connection_errors():
            return int(self._channel.queue_declare(self._binding.queue, passive=True).method.message_count)

    def _open_queue(self) -> tuple[Any, int]:
        """Return a channel on which the queue is known to exist, and how many messages it holds."""
        queue = self._binding.queue
        try:
            try:
                channel = self._connection.channel()
                return channel, channel.queue_declare(queue, passive=True).method.message_count
            except ChannelClosedByBroker as e:
                if e.reply_code != NOT_FOUND or "no queue" not in e.reply_text:
                    raise
                if not self._binding.create:
                    raise self._problems.missing() from None
            channel = self._connection.channel()
            arguments = {"x-queue-type": "quorum"}
            return channel, channel.queue_declare(
                queue, durable=True, arguments=arguments
            ).method.message_count
        except ChannelClosedByBroker as e:
            raise self._problems.refused(e.reply_text) from None
        except AMQPError as e:
            raise self._problems.unreachable(reason_of(e)) from e

    def _refuse_stream(self) -> None:
        """Refuse a stream: it can be read like a queue, but would begin at its end after each restart."""
        try:
            channel = self._connection.channel()
            # Queues refuse the argument, and streams refuse a missing prefetch, so this never starts to read.
            channel.basic_consume(self._binding.queue, _unread, arguments={"x-stream-offset": "next"})
            channel.close()
        except ChannelClosedByBroker as e:
            if "prefetch" in e.reply_text:
                raise self._problems.is_a_stream() from None
            if e.reply_code == _ACCESS_REFUSED:
                raise self._problems.refused(e.reply_text) from None
        except AMQPError as e:
            raise self._problems.unreachable(reason_of(e)) from e

    def _close(self) -> None:
        with suppress(AMQPError, OSError):
            self._connection.close()


def _unread(*_: object) -> None:
    """Do nothing: no message arrives here."""


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise pika's errors as ConnectionError."""
    try:
        yield
    except AMQPError as e:
        raise ConnectionError(str(e)) from e
