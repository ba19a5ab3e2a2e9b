"""A given record: a record from a custom source, as the bytes that the format of its stream decodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

__all__ = ["GivenRecord", "bytes_of"]

GivenRecord: TypeAlias = bytes | str | Mapping[str, Any]
"""A record: its bytes or its text, in the format of the stream, or a mapping from fields to values, for JSON."""


def bytes_of(record: GivenRecord) -> bytes:
    """Return the bytes of a record. Raises TypeError for other values.

    >>> bytes_of({"room": 5, "open": True})
    b'{"room":5,"open":true}'
    """
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    if isinstance(record, Mapping):
        return msgspec.json.encode(record)
    raise TypeError(f"a record is bytes, text or a mapping, not {type(record).__name__}")
