"""Kafka source: checks a topic before the start, and the settings of its clients."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.bindings.secrets import redacted
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import BindingError
from penstock.sources.gathered_messages import partition_name

__all__ = ["client_settings", "preflight"]


def preflight(binding: KafkaBinding) -> tuple[str, ...]:
    """Check in the driver that a broker answers and the topic exists; create it if the binding says so.

    Returns the names of the topic's partitions, as chunks have them.

    Raises ExternalSystemError or BindingError.
    """
    return tuple(map(partition_name, range(check_topic(binding, client_settings(binding)))))


def client_settings(binding: KafkaBinding) -> dict[str, str]:
    """Return a binding's settings for librdkafka. Raises BindingError for those that only Java's client understands."""
    settings = _librdkafka_settings(binding.client)
    if settings is None:
        raise BindingError(
            f"Stream {binding.stream!r}: the settings of {redacted(binding.uri)!r} are for Kafka's Java client only. "
            "Secure the connection with PEM certificates or a plain login, or use a client of your own."
        )
    return settings


def _librdkafka_settings(client: Mapping[str, str]) -> dict[str, str] | None:
    """Return the Java client's security settings as librdkafka's, or None when librdkafka has no equivalent."""
    settings: dict[str, str] = {}
    for name, value in client.items():
        if name in ("security.protocol", "sasl.mechanism", "ssl.endpoint.identification.algorithm"):
            settings[name] = value or "none"
        elif name == "sasl.jaas.config":
            login = dict(re.findall(r"(username|password)\s*=\s*\"([^\"]*)\"", value))
            if len(login) != 2:
                return None
            settings |= {f"sasl.{part}": text for part, text in login.items()}
        elif name == "ssl.truststore.location" and client.get("ssl.truststore.type", "").upper() == "PEM":
            settings["ssl.ca.location"] = value
        elif name == "ssl.truststore.certificates":
            settings["ssl.ca.pem"] = value
        elif name.startswith(("ssl.keystore.", "ssl.truststore.", "sasl.")):
            if name != "ssl.truststore.type" or value.upper() != "PEM":
                return None
        else:
            settings[name] = value
    return settings
