"""Kafka source: check a topic before the start, and the options for Spark's own Kafka reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.bindings.secrets import redacted
from penstock.bindings.types import RECORDS_PER_BATCH, KafkaBinding
from penstock.brokers.kafka_topics import check_topic
from penstock.errors import BindingError

__all__ = ["client_settings", "preflight", "spark_options"]

# Spark's name for the beginning of a partition.
_EARLIEST: Final = -2

_CLIENT_DEFAULTS: Final = {
    # Only records of committed transactions count; without transactions this changes nothing.
    "isolation.level": "read_committed",
    # Kafka's defaults fetch 1 MB and hand out 500 records at a time, which is slow for small records.
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(16 << 20),
    "max.poll.records": "20000",
    "receive.buffer.bytes": str(1 << 20),
}


def preflight(binding: KafkaBinding) -> tuple[str, ...]:
    """Check in the driver that a broker answers and the topic exists; create it if the binding says so.

    Returns the names of the topic's partitions, as chunks have them.

    Raises ExternalSystemError or BindingError. Does nothing, and returns no names, when the binding secures the
    connection in a way that only Kafka's Java client understands (a Java key store); then Spark reports what is wrong.
    """
    settings = _librdkafka_settings(binding.client)
    if settings is None:
        return ()
    return tuple(f"{number:05d}" for number in range(check_topic(binding, settings)))


def client_settings(binding: KafkaBinding) -> dict[str, str]:
    """Return a binding's settings for librdkafka. Raises BindingError for those that only Java's client understands."""
    settings = _librdkafka_settings(binding.client)
    if settings is None:
        raise BindingError(
            f"Stream {binding.stream!r}: the settings of {redacted(binding.uri)!r} are for Kafka's Java client only. "
            "Secure the connection with PEM certificates or a plain login, or send with your own Kafka client."
        )
    return settings


def spark_options(
    binding: KafkaBinding,
    *,
    holds: bool = False,
    positions: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a binding. Where to start only counts without a checkpoint.

    With `limit` a micro-batch has at most this many records, whatever the binding says; with `holds` nothing new is
    read. `positions` are the next offsets by topic and partition, as Spark writes them; partitions that were added to
    the topic since are read from their beginning.
    """
    client = _CLIENT_DEFAULTS | dict(binding.client)
    limit = limit or binding.max_records_per_batch
    if limit is None and _librdkafka_settings(binding.client) is not None:
        limit = RECORDS_PER_BATCH
    limits = {"maxOffsetsPerTrigger": str(limit)} if limit is not None else {}
    if holds:
        # Spark waits for this many records, or for this delay since it last read, which it takes to be 1970.
        limits = {"minOffsetsPerTrigger": str(2**63 - 1), "maxTriggerDelay": "100000d"}
    return {
        "kafka.bootstrap.servers": binding.servers,
        "subscribe": binding.topic,
        "startingOffsets": _start(binding, positions),
        **limits,
        # Records that were deleted before they were read are an error, not a gap.
        "failOnDataLoss": "true",
        "includeHeaders": "false",
        # A broker that restarts is back after a few seconds.
        "fetchOffset.numRetries": "10",
        "fetchOffset.retryIntervalMs": "1000",
        **{f"kafka.{name}": value for name, value in client.items()},
    }


def _start(binding: KafkaBinding, positions: Mapping[str, Any] | None) -> str:
    if positions is None:
        return binding.start or "latest"
    if list(positions) != [binding.topic]:
        raise BindingError(
            f"Stream {binding.stream!r}: the positions are of the topic {', '.join(positions)}, but the binding names "
            f"{binding.topic!r}. Bind the stream to the same topic, or start without positions."
        )
    known = positions[binding.topic]
    partitions = check_topic(binding, client_settings(binding))
    return json.dumps({binding.topic: {str(n): known.get(str(n), _EARLIEST) for n in range(partitions)}})


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
        elif name.startswith(("ssl.keystore.", "ssl.truststore.location", "sasl.")):
            return None
    return settings
