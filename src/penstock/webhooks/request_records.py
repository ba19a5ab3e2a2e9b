"""The records of a request: a JSON value, an array of them, or lines of JSON, each as the bytes that were sent."""

from __future__ import annotations

import msgspec

__all__ = ["split_records"]

_BLANK = b" \t\r\n"


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
        return [_checked(text)]
    except (msgspec.DecodeError, RecursionError) as e:
        reason = str(e)
    lines = [(number, line.strip(_BLANK)) for number, line in enumerate(text.split(b"\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if len(lines) == 1:
        raise ValueError(reason)
    records = []
    for number, line in lines:
        try:
            records.append(_checked(line))
        except (msgspec.DecodeError, RecursionError) as e:
            raise ValueError(f"neither the whole is JSON ({reason}), nor is line {number} ({e})") from None
    return records


def _checked(text: bytes) -> bytes:
    msgspec.json.decode(text, type=msgspec.Raw)
    return text
