"""The settings with which a topic is checked and read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding, Role
from penstock.errors import BindingError
from penstock.sources import kafka_source
from penstock.sources.kafka_source import preflight


def bind(query: str = "", role: Role = "data") -> KafkaBinding:
    binding = parse_binding("readings", f"kafka://h1:1,h2:2/topic{query}", role)
    assert isinstance(binding, KafkaBinding)
    return binding


@pytest.mark.parametrize(
    "client",
    [
        {},
        {"fetch.max.bytes": "5", "check.crcs": "true"},
        {"isolation.level": "read_uncommitted"},
        {
            "security.protocol": "SASL_SSL",
            "sasl.username": "u",
            "sasl.password": "env:P",
            "ssl.ca.location": "/ca.pem",
        },
    ],
)
def test_a_topic_is_checked_with_its_settings(
    monkeypatch: pytest.MonkeyPatch, client: dict[str, str]
) -> None:
    """They are librdkafka's settings, taken from the URI."""
    seen: list[Any] = []

    def check(_: Any, settings: Any) -> int:
        seen.append(settings)
        return 2

    monkeypatch.setattr(kafka_source, "check_topic", check)
    query = "&".join(f"kafka.{name}={value}" for name, value in client.items())
    assert preflight(bind(f"?{query}")) == {"topic": 2}
    assert seen == [client]


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        (
            'sasl.jaas.config=x username="u" password="p";',
            r"write sasl\.username=USER&sasl\.password=env:NAME",
        ),
        ("ssl.truststore.location=/store.jks", r"write ssl\.ca\.location=FILE, with certificates in PEM"),
        (
            "ssl.keystore.type=JKS",
            r"write ssl\.certificate\.location=FILE and ssl\.key\.location=FILE, in PEM",
        ),
    ],
)
@pytest.mark.parametrize("role", ["data", "sink"])
def test_settings_of_java_s_client_are_refused(setting: str, instead: str, role: Role) -> None:
    """The error names librdkafka's equivalent; sources and sinks have the same settings."""
    with pytest.raises(BindingError, match=f"is a setting of Kafka's Java client; {instead}"):
        bind(f"?{setting}", role)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [("env:", "must name an environment variable"), ("env:a b", "must name"), ("file:a", "an absolute path")],
)
def test_a_reference_names_a_variable_or_a_file(value: str, wrong: str) -> None:
    """It is resolved before anything starts."""
    with pytest.raises(BindingError, match=wrong):
        bind(f"?sasl.password={value}")
