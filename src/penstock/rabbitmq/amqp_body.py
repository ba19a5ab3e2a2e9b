"""AMQP 1.0: the body of a message in a RabbitMQ stream."""

from __future__ import annotations

from typing import Final

__all__ = ["message_body"]

# A section is a descriptor (0, small ulong 0x53, code) and a value.
_BODY_DATA: Final = 0x75
_BODY_SEQUENCE: Final = 0x76
_BODY_VALUE: Final = 0x77
_SECTIONS: Final = range(0x70, 0x79)
_DESCRIPTOR_BYTES: Final = 3
_BYTES_OR_TEXT: Final = (0xA0, 0xA1, 0xB0, 0xB1)
_FIXED_BYTES: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
"""How many bytes a value has after its type, by the type's first half; other values begin with a length."""


def message_body(message: bytes) -> bytes:
    r"""Return the bytes that a program sent: the data of an AMQP 1.0 message, without its properties.

    Programs may also put their bytes into a stream as they are. So data that is not an AMQP 1.0 message, or contains
    anything other than bytes or text, is returned whole.

    >>> message_body(b'\x00\x53\x75\xa0\x02hi'), message_body(b'hi')
    (b'hi', b'hi')
    """
    parts: list[bytes] = []
    at = 0
    while at < len(message):
        section = _section(message, at)
        if section is None or section[0] == _BODY_SEQUENCE:
            return message
        code, kind, start, at = section
        if code in (_BODY_DATA, _BODY_VALUE):
            if kind not in _BYTES_OR_TEXT:
                return message
            parts.append(message[start:at])
    # Clients leave out the data of an empty body, such as a protobuf message whose fields have their defaults.
    return b"".join(parts)


def _section(message: bytes, at: int) -> tuple[int, int, int, int] | None:
    """Return the code of the section at a position, the type of its value, and where its content starts and ends."""
    begin = at + _DESCRIPTOR_BYTES
    if message[at : at + 2] != b"\x00\x53" or begin >= len(message) or message[at + 2] not in _SECTIONS:
        return None
    kind = message[begin]
    start = begin + 1
    if kind >> 4 in _FIXED_BYTES:
        end = start + _FIXED_BYTES[kind >> 4]
    elif kind >> 4 >= 0xA:
        # The first halves A, C and E have a length of one byte, B, D and F one of four.
        width = 4 if kind >> 4 & 1 else 1
        end = start + width + int.from_bytes(message[start : start + width], "big")
        start += width
    else:
        return None
    return (message[at + 2], kind, start, end) if start <= end <= len(message) else None
