"""Client settings: the settings of the Kafka client that a URI may have."""

from __future__ import annotations

from typing import Final

__all__ = ["CLIENT_SETTING", "JAVA_SETTINGS", "OWN_SETTINGS", "is_client_setting"]

CLIENT_SETTING: Final = (
    "client settings: a name with a dot (fetch.max.bytes), or the prefix kafka. (kafka.acks)"
)

OWN_SETTINGS: Final = {
    "auto.offset.reset": "write start=latest|earliest instead",
    "bootstrap.servers": "write the servers before the topic",
    "enable.auto.commit": "the checkpoint keeps the offsets",
    "enable.auto.offset.store": "the checkpoint keeps the offsets",
    "enable.idempotence": "sinks are always idempotent",
    "group.id": "the checkpoint keeps the offsets",
    "interceptor.classes": "penstock reads and writes without interceptors",
    "key.deserializer": "keys stay bytes",
    "key.serializer": "keys stay bytes",
    "partitioner": "write partitioner=... without kafka. before it",
    "transactional.id": "write delivery=exactly-once instead",
    "value.deserializer": "write format=json|protobuf|bytes instead",
    "value.serializer": "write format=json|protobuf|bytes instead",
}
"""Client settings that would break penstock's guarantees, and what to do instead."""


JAVA_SETTINGS: Final = {
    "sasl.jaas.config": "write sasl.username=USER&sasl.password=env:NAME",
    "ssl.truststore.": "write ssl.ca.location=FILE, with certificates in PEM",
    "ssl.keystore.type": "write ssl.certificate.location=FILE and ssl.key.location=FILE, in PEM",
    "ssl.keystore.key": "write ssl.key.location=FILE, in PEM",
    "ssl.keystore.certificate.chain": "write ssl.certificate.location=FILE, in PEM",
}
"""Beginnings of settings that only Kafka's Java client has, and what librdkafka has instead."""


def is_client_setting(name: str) -> bool:
    """Return whether a parameter is a setting of the Kafka client."""
    # A name without a dot is more likely a misspelt parameter than a setting, so such settings need the prefix.
    return "." in name.strip(".")
