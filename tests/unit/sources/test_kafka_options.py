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


LOGIN = 'sasl.jaas.config=org.apache...PlainLoginModule required username="u" password="p";'


@pytest.mark.parametrize(
    ("query", "checked_with"),
    [
        ("", {}),
        ("?fetch.max.bytes=5&kafka.check.crcs=true", {"fetch.max.bytes": "5", "check.crcs": "true"}),
        ("?isolation.level=read_uncommitted", {"isolation.level": "read_uncommitted"}),
        (
            f"?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&{LOGIN}&ssl.truststore.location=/ca.pem&ssl.truststore.type=PEM",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
                "ssl.ca.location": "/ca.pem",
            },
        ),
        ("?security.protocol=SSL&ssl.truststore.location=/store.jks", None),
        ("?security.protocol=SASL_SSL&sasl.jaas.config=Krb5LoginModule required;", None),
    ],
)
def test_settings_of_java_s_client_are_translated_or_refused(
    monkeypatch: pytest.MonkeyPatch, query: str, checked_with: dict[str, str] | None
) -> None:
    """Names that both clients share go through; a key store or Kerberos login of Java is refused with the remedy."""
    seen: list[dict[str, str]] = []

    def check(_: Any, settings: dict[str, str]) -> int:
        seen.append(settings)
        return 2

    monkeypatch.setattr(kafka_source, "check_topic", check)
    if checked_with is None:
        with pytest.raises(BindingError, match=r"for Kafka's Java client only.* PEM certificates"):
            preflight(bind(query))
        return
    assert preflight(bind(query)) == ("00000", "00001")
    assert seen == [checked_with]
