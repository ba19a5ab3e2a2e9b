"""Kafka message: a record of a test with the key, the timestamp and the headers of its message."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.base.instants import milliseconds_of

__all__ = ["KafkaMessage", "bytes_or_none"]


@dataclass(frozen=True)
class KafkaMessage:
    """A Kafka message that a test sends. Its parts fill the fields that the stream's `metadata` names.

    >>> message = KafkaMessage({"value": 21.5}, key="room-7", headers={"trace-id": "ab12"})

    Args:
        body: what the message holds: a dict, JSON as bytes or text, or a protobuf message; with a schema of one field
            of text or bytes beside the metadata, the value of that field.
        key: the key: text, bytes, or a number, which becomes decimal digits.
        timestamp: the timestamp, as a datetime or in milliseconds since 1970.
        headers: the headers, by name, as text, bytes or numbers.

    """

    body: Any
    key: str | bytes | int | None = None
    timestamp: dt.datetime | int | None = None
    headers: Mapping[str, str | bytes | int | None] = field(default_factory=dict)

    @property
    def timestamp_ms(self) -> int | None:
        """The timestamp in milliseconds since 1970."""
        return milliseconds_of(self.timestamp) if isinstance(self.timestamp, dt.datetime) else self.timestamp


def bytes_or_none(value: str | bytes | int | None) -> bytes | None:
    """Return a key or header as a message has it."""
    return value if value is None or isinstance(value, bytes) else str(value).encode()
