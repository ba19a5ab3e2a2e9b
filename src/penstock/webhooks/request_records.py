"""The records of a request: a JSON value, an array of them, or lines of JSON, each as the bytes that were sent."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["split_records"]

_BLANK = b" \t\r\n"
_values: Final = msgspec.json.Decoder(msgspec.Raw)


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
    return _all_lines(text) or _lines(text, reason)


def _all_lines(text: bytes) -> list[bytes]:
    """Return the lines, in one pass, if each is a JSON value without white space around it; none otherwise."""
    try:
        records = list(map(bytes, _values.decode_lines(text)))
    except (msgspec.DecodeError, RecursionError):
        return []
    are_lines = len(records) == text.count(b"\n") + 1 and b"\n".join(records) == text
    return records if are_lines else []


def _lines(text: bytes, reason: str) -> list[bytes]:
    """Return the lines that are not blank. Raises ValueError for what is not JSON; `reason` is why the whole is not."""
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
    _values.decode(text)
    return text
