"""Messages to RabbitMQ say of what type their body is."""

from __future__ import annotations

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ExchangeBinding
from penstock.rabbitmq.rabbitmq_publisher import content_type


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", "application/json"),
        ("&format=protobuf", "application/x-protobuf"),
        ("&format=bytes", "application/octet-stream"),
        (
            "&format=cloudevents&event_id={i}&event_source=s&event_type=t",
            "application/cloudevents+json; charset=UTF-8",
        ),
        ("&format=avro&registry=http://r:1&subject=s", "application/octet-stream"),
        ("&format=json&registry=http://r:1&subject=s", "application/octet-stream"),
    ],
)
def test_a_body_with_the_id_of_its_schema_is_bytes(parameters: str, expected: str) -> None:
    """Since it is neither JSON nor a message of protobuf alone."""
    binding = parse_binding("out", f"amqp://u:p@h:1/%2F/x?routing_key=k{parameters}", "sink")
    assert isinstance(binding, ExchangeBinding)
    assert content_type(binding) == expected
