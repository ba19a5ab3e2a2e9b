"""The command envelope: well-formed ones are read; others yield a reason and, where readable, the id."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command, CommandError, Target


def test_an_envelope_is_read() -> None:
    """All fields are read; missing ones get their defaults."""
    full = decode_command(
        b'{"id": "a", "kind": "set", "target": {"step": "s", "keys": [1, 2]}, "version": 3, "issued_by": "ann", '
        b'"issued_at": "2026-11-21T10:00:00Z", "effective_at": "2026-11-21T10:00:00+01:00", '
        b'"expires_at": "2026-12-01T00:00:00Z", "payload": {"x": 1}}'
    )
    assert full.target == Target("s", keys=[1, 2])
    assert full.effective_at == dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)
    assert msgspec.json.decode(full.payload) == {"x": 1}
    short = decode_command(b'{"id": "b", "kind": "trace"}')
    assert (short.target.scope, short.version, bytes(short.payload)) == ("job", None, b"null")


@pytest.mark.parametrize(
    ("target", "scope", "text"),
    [
        (Target(), "job", "*"),
        (Target("s"), "step", "s"),
        (Target("s", all=True), "all", "s/*"),
        (Target("s", key=0), "key", "s/0"),
        (Target("s", keys=["a", "b"]), "keys", "s/a,b"),
    ],
)
def test_targets_have_a_scope(target: Target, scope: str, text: str) -> None:
    """False and 0 are keys too; an envelope survives encoding and decoding."""
    assert (target.scope, str(target)) == (scope, text)
    again = decode_command(msgspec.json.encode(Command(id="a", kind="k", target=target)))
    assert again.target == target


@pytest.mark.parametrize(
    ("data", "reason", "command_id"),
    [
        (b"{", "malformed|truncated", ""),
        (b"[]", "Expected `object`", ""),
        (b'{"id": "a"}', "missing required field `kind`", "a"),
        (b'{"id": 5, "kind": "set"}', "Expected `str`", ""),
        (b'{"id": "a", "kind": "set", "verson": 3}', "unknown field `verson`", "a"),
        (b'{"id": "a", "kind": ""}', "the kind is empty", "a"),
        (b'{"id": "", "kind": "set"}', "the id is empty", ""),
        (b'{"id": "%s", "kind": "set"}' % (b"x" * 200), r"longer than 128 bytes; it begins with 'x{64}'", ""),
        (b'{"id": "a", "kind": "set", "target": {"key": 5}}', "names keys but no step", "a"),
        (
            b'{"id": "a", "kind": "set", "target": {"step": "s", "key": 5, "all": true}}',
            "more than one of",
            "a",
        ),
        (b'{"id": "a", "kind": "set", "target": {"step": "s", "keys": []}}', "empty list of keys", "a"),
        (b'{"id": "a", "kind": "set", "version": -1}', "the version is negative", "a"),
        (b'{"id": "a", "kind": "set", "version": 1.5}', "Expected `int | null`", "a"),
        (
            b'{"id": "a", "kind": "set", "expires_at": "2026-11-21T10:00:00"}',
            "expires_at has no time zone",
            "a",
        ),
        (b'{"id": "a", "kind": "set", "expires_at": "tomorrow"}', "Invalid RFC3339", "a"),
    ],
)
def test_what_is_not_well_formed_has_a_reason(data: bytes, reason: str, command_id: str) -> None:
    """The rejection carries the id whenever it can be read, so that the sender gets an answer."""
    with pytest.raises(CommandError, match=reason) as caught:
        decode_command(data)
    assert caught.value.id == command_id
