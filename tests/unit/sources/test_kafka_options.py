"""The Kafka source's options for Spark, and the settings with which a topic is checked."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding, Role
from penstock.sources import kafka_source
from penstock.sources.kafka_source import preflight, spark_options


def bind(query: str = "", role: Role = "data") -> KafkaBinding:
    binding = parse_binding("readings", f"kafka://h1:1,h2:2/topic{query}", role)
    assert isinstance(binding, KafkaBinding)
    return binding


def test_a_binding_becomes_options_of_sparks_source() -> None:
    """Servers, topic, start and the limit come from the URI; lost records are an error."""
    options = spark_options(bind("?start=earliest&max_records_per_batch=7"))
    expected = {
        "kafka.bootstrap.servers": "h1:1,h2:2",
        "subscribe": "topic",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    assert expected.items() <= options.items()


def test_every_topic_has_a_limit() -> None:
    """Control streams too, but where nobody can tell how much waits, so that data could not wait for it."""
    assert spark_options(bind())["maxOffsetsPerTrigger"] == "2000000"
    assert spark_options(bind(role="control"))["maxOffsetsPerTrigger"] == "2000000"
    java = "?security.protocol=SSL&ssl.keystore.location=/k.jks"
    assert "maxOffsetsPerTrigger" not in spark_options(bind(java, role="control"))


def test_client_settings_in_the_uri_go_before_ours() -> None:
    """A setting is handed to Spark's consumer, whether it was written with `kafka.` or without."""
    options = spark_options(
        bind("?fetch.max.bytes=5&kafka.check.crcs=false&isolation.level=read_uncommitted")
    )
    assert options["kafka.fetch.max.bytes"] == "5"
    assert options["kafka.check.crcs"] == "false"
    assert options["kafka.isolation.level"] == "read_uncommitted"


LOGIN = 'sasl.jaas.config=org.apache...PlainLoginModule required username="u" password="p";'


@pytest.mark.parametrize(
    ("query", "checked_with"),
    [
        ("?fetch.max.bytes=5", {}),
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
def test_the_check_connects_as_spark_would_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, query: str, checked_with: dict[str, str] | None
) -> None:
    """Settings of Kafka's Java client are put into librdkafka's words; where there are none, Spark will tell."""
    seen: list[dict[str, str]] = []

    def check(_: Any, settings: dict[str, str]) -> int:
        seen.append(settings)
        return 2

    monkeypatch.setattr(kafka_source, "check_topic", check)
    assert preflight(bind(query)) == (() if checked_with is None else ("00000", "00001"))
    assert seen == ([] if checked_with is None else [checked_with])


def test_a_topic_that_is_held_waits_for_more_than_there_is() -> None:
    """The limit of a micro-batch gives way, which Spark would refuse below the least number of records."""
    options = spark_options(bind(), holds=True)
    assert options["minOffsetsPerTrigger"] == str(2**63 - 1)
    assert "maxOffsetsPerTrigger" not in options
    assert "minOffsetsPerTrigger" not in spark_options(bind())
