"""Gathered messages: what Kafka's client cannot decode becomes a bad record, and does not end the run."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from penstock.sources import gathered_messages
from penstock.sources.gathered_messages import GatheredMessages, WantedParts
from penstock.sources.topic_reader import _end_of


def messages(*values: bytes) -> list[Any]:
    return [
        Message(
            topic="t", partition=0, offset=offset, key=b"k%d" % offset, value=value, headers=[("a", value)]
        )
        for offset, value in enumerate(values)
    ]


def headers(message: Any) -> Any:
    """Return headers as the client does: it raises where a header's name is not UTF-8."""
    if message.value().startswith(b"bad"):
        raise SystemError("<method 'headers'> returned a result with an exception set")
    return message.headers()


@pytest.mark.parametrize("values", [[b"x", b"bad1", b"y", b"bad2"], [b"bad1"], [b"x", b"y"]])
def test_messages_whose_headers_cannot_be_read(monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> None:
    """Other messages keep their places, and reading continues after the bad one."""
    monkeypatch.setattr(gathered_messages, "_HEADERS", headers)
    gathered = GatheredMessages("00000", WantedParts(keys=True, timestamps=True, headers=("a", "b")))
    (chunk,) = [*gathered.add(messages(*values)), *gathered.rest()]
    good = [(row, value) for row, value in enumerate(values) if not value.startswith(b"bad")]
    assert chunk.raw is not None
    assert chunk.keys is not None
    assert chunk.timestamps is not None
    assert chunk.offsets.to_pylist() == [row for row, _ in good]
    assert chunk.raw.to_pylist() == chunk.headers["a"].to_pylist() == [value for _, value in good]
    assert chunk.keys.to_pylist() == [b"k%d" % row for row, _ in good]
    assert len(chunk.timestamps) == len(chunk.headers["b"]) == len(good)
    assert [(one.offset, one.raw) for one in chunk.bad] == [
        (row, value) for row, value in enumerate(values) if value.startswith(b"bad")
    ]
    assert all("is not UTF-8" in one.reason for one in chunk.bad)
    assert _end_of(chunk) == len(values)
