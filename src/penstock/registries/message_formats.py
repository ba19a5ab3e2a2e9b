"""Message formats: the format of a binding, also with a schema registry."""

from __future__ import annotations

from typing import TypeAlias

from penstock.bindings.types import (
    ExchangeBinding,
    HttpListenBinding,
    KafkaBinding,
    MqttBinding,
    QueueBinding,
    RabbitStreamBinding,
    RegistryBinding,
    WebhookBinding,
)
from penstock.records.cloud_events import CloudEventsFormat
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType
from penstock.records.wire_formats import Format, format_of
from penstock.registries import avro_format, json_schema_format
from penstock.registries.avro_format import AvroFormat
from penstock.registries.json_schema_format import JsonSchemaFormat
from penstock.registries.protobuf_format import RegisteredProtobufFormat
from penstock.registries.registry_client import get_client

__all__ = ["MessageBinding", "check_registry", "message_format"]

MessageBinding: TypeAlias = (
    KafkaBinding
    | MqttBinding
    | ExchangeBinding
    | QueueBinding
    | RabbitStreamBinding
    | HttpListenBinding
    | WebhookBinding
)


def message_format(
    binding: MessageBinding,
    record_type: RecordType,
    protobuf: ProtobufSource | None,
    *,
    allow_nan: bool = False,
) -> Format:
    """Return the format of the messages of a binding.

    For a sink the schema of its records is registered, so workers need no registry. Raises SchemaError when format and
    records do not fit, and BindingError or ExternalSystemError when the registry refuses or does not answer.
    """
    if binding.format == "cloudevents":
        events = binding.events
        assert events is not None, "the parameters of events say what their attributes are"
        templates = (events.id, events.source, events.type) if events.id else None
        return CloudEventsFormat(
            record_type, events.attributes, templates, allow_nan=allow_nan, is_binary=events.is_binary
        )
    if binding.registry is None:
        assert binding.format != "avro", "the parameters of avro include a registry"
        return format_of(binding.format, record_type, protobuf=protobuf, allow_nan=allow_nan)
    client = get_client(binding.stream, binding.registry)
    _check_installed(binding)
    subject = binding.registry.subject
    if subject is None:
        client.check()
    if binding.format == "protobuf":
        messages = RegisteredProtobufFormat(record_type, client, allow_nan=allow_nan)
        return messages if subject is None else messages.registered(subject, protobuf)
    form = AvroFormat if binding.format == "avro" else JsonSchemaFormat
    found = form(record_type, client, allow_nan=allow_nan)
    return found if subject is None else found.registered(subject)


def check_registry(binding: MessageBinding, registry: RegistryBinding) -> None:
    """Raise BindingError or ExternalSystemError when a library is missing, or the registry does not answer as one."""
    _check_installed(binding)
    get_client(binding.stream, registry).check()


def _check_installed(binding: MessageBinding) -> None:
    if binding.format == "avro":
        avro_format.check_installed(binding.stream)
    elif binding.format == "json":
        json_schema_format.check_installed(binding.stream)
