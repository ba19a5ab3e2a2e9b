"""The records of a request: a JSON value, an array of them, lines of JSON, or a CloudEvent with attributes in headers.

Each is the bytes that were sent, but for such an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from penstock.records.event_headers import EventHeaders, http_header_text, is_json_data
from penstock.sources.journal_blocks import PackedRecords

__all__ = ["event_in_request", "pack_records", "split_records"]

_BLANK = b" \t\r\n"
_LINE_END: Final = 10
_CONTENT_TYPE: Final = "content-type"
_values: Final = msgspec.json.Decoder(msgspec.Raw)


def event_in_request(events: EventHeaders, headers: Mapping[bytes, bytes], body: bytes) -> bytes | None:
    """Return the event of a request in the binary mode, as JSON; None for other requests.

    Raises ValueError when its data is not JSON.
    """
    given: dict[str, bytes | None] = {}
    for name in events.headers:
        value = headers.get(name.encode())
        if value is not None:
            given[name] = value if name == _CONTENT_TYPE else http_header_text(value)
    if not events.is_event(given):
        return None
    if body and not is_json_data(given.get(_CONTENT_TYPE), body):
        raise ValueError("the data of the event is not")
    return events.as_json(given, body or None)


def pack_records(body: bytes) -> PackedRecords:
    """Return the records of a body, as `split_records` would. Many lines are looked at together."""
    return _all_lines(body.strip(_BLANK)) or PackedRecords.of(split_records(body))


def _all_lines(text: bytes) -> PackedRecords | None:
    """Return several lines, if each is a JSON value without white space around it; None otherwise."""
    # An array is not lines, even if it is written over several.
    if text.startswith(b"[") or b"\n" not in text:
        return None
    try:
        values = _values.decode_lines(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _LINE_END)
    if len(values) != len(ends) + 1 or b"\n".join(values) != text:
        return None
    lengths = np.diff(ends, prepend=-1, append=len(text)) - 1
    return PackedRecords(lengths.astype("<u4"), b"".join(values))


def split_records(body: bytes) -> list[bytes]:
    r"""Return the records of a body. Raises ValueError, which says why it is not JSON.

    >>> split_records(b'{"n": 1}'), split_records(b'[{"n": 1}, {"n": 2}]'), split_records(b'{"n": 1}\n{"n": 2}\n')
    ([b'{"n": 1}'], [b'{"n": 1}', b'{"n": 2}'], [b'{"n": 1}', b'{"n": 2}'])
    """
    text = body.strip(_BLANK)
    if not text:
        raise ValueError("the body is empty")
    try:
        if text.startswith(b"["):
            return [bytes(record) for record in msgspec.json.decode(text, type=list[msgspec.Raw])]
        return [_check(text)]
    except (msgspec.DecodeError, RecursionError) as e:
        reason = str(e)
    lines = [(number, line.strip(_BLANK)) for number, line in enumerate(text.split(b"\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if len(lines) == 1:
        raise ValueError(reason)
    records = []
    for number, line in lines:
        try:
            records.append(_check(line))
        except (msgspec.DecodeError, RecursionError) as e:
            raise ValueError(f"neither the whole is JSON ({reason}), nor is line {number} ({e})") from None
    return records


def _check(text: bytes) -> bytes:
    _values.decode(text)
    return text
