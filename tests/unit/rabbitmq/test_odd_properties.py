"""Odd properties of RabbitMQ's messages: what publishers may send and pika does not decode ends no run."""

from __future__ import annotations

import struct

import pika
import pytest

from penstock.rabbitmq import rabbitmq_connections
from penstock.rabbitmq.rabbitmq_publisher import message_id

_HAS_HEADERS, _HAS_ID = 1 << 13, 1 << 7


def properties(headers: bytes, name: bytes) -> pika.BasicProperties:
    """Return properties as they come from a broker."""
    sent = struct.pack(">HI", _HAS_HEADERS | _HAS_ID, len(headers)) + headers + bytes([len(name)]) + name
    found = pika.BasicProperties()
    found.decode(sent)
    return found


@pytest.mark.parametrize(
    "header",
    [b"\x02atT" + struct.pack(">Q", 1_700_000_000_000), b"\x02atT" + b"\xff" * 8, b"\x02atZ\x00"],
    ids=["milliseconds for seconds", "no time at all", "an unknown type"],
)
def test_headers_that_pika_cannot_decode_are_passed_over(header: bytes) -> None:
    """The rest of the message is read; else the broker would deliver it again for ever."""
    assert rabbitmq_connections.NOT_FOUND
    assert properties(header, b"m1").message_id == "m1"
    assert properties(b"\x01kt\x01", b"m1").headers == {"k": True}


def test_an_origin_too_long_for_a_message_id_becomes_a_digest() -> None:
    """AMQP has 255 bytes for it, and the name of a topic may take nearly all of them."""
    long = "lineage/" + 249 * "t" + "/0/17/0"
    assert message_id("lineage/17/0") == "lineage/17/0"
    assert message_id(long) == message_id(long) != message_id(long + "1")
    assert len(message_id(long) or "") == 64
