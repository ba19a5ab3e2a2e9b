"""URIs of Kinesis and DynamoDB."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bindings.amazon_types import AmazonPlace, DynamoBinding, KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import Role
from penstock.errors import BindingError


def kinesis(query: str = "", role: Role = "data") -> KinesisBinding:
    found = parse_binding("readings", f"kinesis://plant{query}", role)
    assert isinstance(found, KinesisBinding)
    return found


@pytest.mark.parametrize(
    ("query", "role", "start"),
    [
        ("", "data", "latest"),
        ("", "control", "earliest"),
        ("?start=earliest", "data", "earliest"),
        ("?start=1970-01-01T01:00:00%2B01:00", "data", 0),
        ("?start=2026-01-31T08:00:00.250Z", "data", 1_769_846_400_250),
    ],
)
def test_starts(query: str, role: Role, start: Any) -> None:
    assert kinesis(query, role).start == start


def test_a_place_with_a_key_by_reference() -> None:
    query = "?region=eu-central-1&access_key_id=env:ID&secret_access_key=file:/run/secret&session_token=env:T"
    login = {"access_key_id": "env:ID", "secret_access_key": "file:/run/secret", "session_token": "env:T"}
    assert kinesis(query).place == AmazonPlace("eu-central-1", None, login)
    uri = "dynamodb://rooms?endpoint=http://h:8000&deletions=mark"
    expected = DynamoBinding("latest", uri, "rooms", AmazonPlace(None, "http://h:8000"), "mark")
    assert parse_binding("latest", uri, "sink") == expected


@pytest.mark.parametrize(
    ("uri", "role", "reason"),
    [
        ("kinesis://", "data", "the host is missing"),
        ("kinesis://a b", "data", "not the name of a stream"),
        ("kinesis://a/b", "data", "has no /"),
        ("kinesis://key:secret@a", "data", "keys do not stand before"),
        ("kinesis://a?start=yesterday", "data", "must be earliest, latest, or a time"),
        ("kinesis://a?start=2026-01-31T08:00:00", "data", "must say its time zone"),
        ("kinesis://a?poll_ms=100", "data", "at least 200"),
        ("kinesis://a?partition_key={}", "sink", "name of a field in each pair of braces"),
        ("kinesis://a?origin=true&format=bytes", "sink", "adds a field to JSON"),
        ("kinesis://a?start=latest", "sink", "start has no meaning for a sink"),
        ("kinesis://a?region=Frankfurt", "data", "is not a region"),
        ("kinesis://a?endpoint=h:1", "data", "must be an address"),
        ("kinesis://a?endpoint=http://h:99999", "data", "must be an address"),
        ("kinesis://a?endpoint=http://me:hush@h:1", "data", "the endpoint has a login before its host"),
        ("kinesis://a?access_key_id=x", "data", "belong together"),
        ("kinesis://a?session_token=env:T", "data", "belongs to access_key_id"),
        ("kinesis://a?access_key_id=x&secret_access_key=hush", "data", "give it as env:NAME or file:PATH"),
        ("dynamodb://ab", "sink", "not the name of a table"),
        ("dynamodb://abc", "data", "dynamodb: is only for sinks"),
    ],
)
def test_what_is_wrong_is_said(uri: str, role: Role, reason: str) -> None:
    with pytest.raises(BindingError, match=reason) as raised:
        parse_binding("readings", uri, role)
    assert "hush" not in str(raised.value)
