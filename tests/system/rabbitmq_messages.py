"""Messages: publish to a queue or stream of RabbitMQ, and read what waits there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import pika
import rstream
import xxhash
from rabbitmq_node import PASSWORD, RabbitNode

__all__ = ["Taken", "publish", "take", "waiting"]

WAIT_S = 60.0


class Taken(NamedTuple):
    """A message from a queue."""

    body: bytes
    origin: str | None
    id: str | None
    delivery_mode: int | None


def publish(node: RabbitNode, name: str, bodies: Iterable[bytes]) -> None:
    """Publish, and wait until the broker has confirmed everything."""
    if name.endswith("queue"):
        with node.connect() as connection:
            channel = connection.channel()
            # One confirmation for all: otherwise the client would wait for each.
            channel.tx_select()
            for body in bodies:
                properties = pika.BasicProperties(delivery_mode=2, message_id=xxhash.xxh64_hexdigest(body))
                channel.basic_publish("", name, body, properties)
            channel.tx_commit()
    else:
        asyncio.run(_publish_to_stream(node, name, bodies))


async def _publish_to_stream(node: RabbitNode, name: str, bodies: Iterable[bytes]) -> None:
    messages = [rstream.AMQPMessage(body=body) for body in bodies]
    login = {"username": "tester", "password": PASSWORD}
    confirmed = asyncio.Event()
    left = len(messages)

    def on_confirmation(_: rstream.ConfirmationStatus) -> None:
        nonlocal left
        left -= 1
        if not left:
            confirmed.set()

    async with rstream.Producer("127.0.0.1", node.stream_port, **login) as producer:
        await producer.send_batch(name, messages, on_publish_confirm=on_confirmation)
        await asyncio.wait_for(confirmed.wait(), WAIT_S)


def waiting(node: RabbitNode, queue: str) -> int:
    """Return how many messages wait in a queue; delivered but unacknowledged ones do not count."""
    with node.connect() as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def take(node: RabbitNode, queue: str) -> list[Taken]:
    """Take the messages that wait in a queue."""
    found = []
    with node.connect() as connection:
        channel = connection.channel()
        while True:
            delivery, properties, body = channel.basic_get(queue, auto_ack=True)
            if delivery is None:
                return found
            origin = (properties.headers or {}).get("penstock-origin")
            found.append(Taken(body, origin, properties.message_id, properties.delivery_mode))
