"""Message formats: the format of a binding, also with a schema registry."""

from __future__ import annotations

from penstock.bindings.types import (
    ExchangeBinding,
    KafkaBinding,
    MqttBinding,
    QueueBinding,
    RabbitStreamBinding,
)
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.records.wire_formats import Format, format_of
from penstock.registries.avro_format import AvroFormat, check_installed
from penstock.registries.registry_client import kept_client

__all__ = ["message_format"]


def message_format(
    binding: KafkaBinding | MqttBinding | ExchangeBinding | QueueBinding | RabbitStreamBinding,
    record_type: RecordType,
    protobuf: ProtobufSource | None,
    *,
    allow_nan: bool = False,
) -> Format:
    """Return the format of the messages of a binding.

    For a sink the schema of its records is registered, so workers need no registry. Raises SchemaError when format and
    records do not fit, and BindingError or ExternalSystemError when the registry refuses or does not answer.
    """
    if binding.format != "avro":
        return format_of(binding.format, record_type, protobuf=protobuf, allow_nan=allow_nan)
    assert binding.registry is not None
    check_installed(binding.stream)
    client = kept_client(binding.stream, binding.registry)
    found = AvroFormat(record_type, client, allow_nan=allow_nan)
    if binding.registry.subject is not None:
        return found.registered(binding.registry.subject)
    client.check()
    return found
