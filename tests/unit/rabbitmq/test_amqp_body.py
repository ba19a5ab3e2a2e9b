"""AMQP 1.0 bodies: what a program sent comes out, whichever client it used, and never something else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rstream import AMQPMessage, Properties

from penstock.rabbitmq.amqp_body import message_body

DATA = b"\x00\x53\x75"


@given(
    body=st.binary(max_size=300),
    properties=st.none()
    | st.builds(Properties, message_id=st.text(max_size=5), user_id=st.binary(max_size=4)),
    more=st.none()
    | st.dictionaries(st.text(max_size=4), st.text(max_size=300) | st.integers(-9, 9), max_size=9),
)
def test_the_data_of_a_message_is_found_behind_its_properties(
    body: bytes, properties: Any, more: Any
) -> None:
    """Messages of a real client, of any size, with and without properties."""
    message = bytes(AMQPMessage(body=body, properties=properties, application_properties=more))
    assert message_body(message) == body


@given(st.binary(max_size=60))
def test_other_bytes_stay_as_they_are(message: bytes) -> None:
    """A program may put bytes into a stream without a message around them."""
    if not message.startswith(b"\x00\x53"):
        assert message_body(message) == message


@given(st.lists(st.binary(max_size=12)), st.integers(0, 60))
def test_what_is_cut_off_stays_whole(parts: list[bytes], cut: int) -> None:
    """No part of a message is taken for the whole."""
    message = b"".join(DATA + b"\xa0" + bytes([len(part)]) + part for part in parts)
    assert message_body(message) == b"".join(parts)
    shorter = message[:cut]
    assert message_body(shorter) in [shorter, *(b"".join(parts[:count]) for count in range(len(parts) + 1))]


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (b"\x00\x53\x77\xa1\x02hi", b"hi"),
        (b"\x00\x53\x77\xb1\x00\x00\x00\x02hi", b"hi"),
        (b"\x00\x53\x70\x45" + DATA + b"\xb0\x00\x00\x00\x01x", b"x"),
        (b"\x00\x53\x77\x54\x07", b"\x00\x53\x77\x54\x07"),
        (b"\x00\x53\x76\x45", b"\x00\x53\x76\x45"),
        (b"\x00\x53\x70\x45", b""),
        (b"\x00\x53\x75", b"\x00\x53\x75"),
        (b"\x00\x53\x75\x10", b"\x00\x53\x75\x10"),
        (b"", b""),
    ],
)
def test_texts_and_values(message: bytes, body: bytes) -> None:
    """A text is its bytes, no body is no bytes; numbers and lists come whole, to become dead letters."""
    assert message_body(message) == body
