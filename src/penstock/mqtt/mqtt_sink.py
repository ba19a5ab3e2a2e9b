"""MQTT sink: records as messages of topics, at least once, with origins by which readers can leave out repetitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.bindings.types import MqttBinding
from penstock.errors import ExternalSystemError
from penstock.mqtt.mqtt_connection import MqttConnection, check_connection
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder
from penstock.sinks.field_templates import check_template, fill_template
from penstock.sinks.publishing_sink import OutgoingMessage, PublishingSink

__all__ = ["MqttSink"]

# A broker ends the connection of whoever sends a control character, or no character, in a topic.
_UNFIT: Final = re.compile("[+#/\0-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_MAX_TOPIC_BYTES: Final = 65_535
_MAX_BYTES: Final = 256 << 20


class MqttSink(PublishingSink):
    """A sink that publishes each record with quality of service 1, and waits until the broker has it.

    `{field}` in the topic is the value of a field. What the broker refuses is rejected record by record.
    """

    lost = (OSError, ExternalSystemError)

    def __init__(self, binding: MqttBinding, encoder: Encoder, record_type: RecordType) -> None:
        super().__init__(
            binding.stream,
            f"the MQTT broker {binding.host}:{binding.port}",
            encoder,
            tells_origin=bool(binding.origin),
            max_bytes=_MAX_BYTES,
        )
        self._binding: Final = binding
        check_template(binding.stream, "topic", binding.topic, record_type)

    @property
    def login(self) -> tuple[Any, ...]:
        """What a connection that is kept for another task must have been opened with."""
        return self._binding.uri, *self._binding.login.values()

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the broker lets the job connect."""
        check_connection(self._binding)

    def open_publisher(self) -> _MqttPublisher:
        """Connect. Raises ExternalSystemError if that fails."""
        return _MqttPublisher(self._binding)

    def routes(self, batch: pa.RecordBatch) -> Sequence[str | None]:
        """Return the topic of each record; None if it cannot have one."""
        topics = fill_template(self._binding.topic, batch, _UNFIT)
        is_own = self._binding.topic.startswith("$")
        return [topic if topic is None or _is_topic(topic, is_own) else None for topic in topics]

    def why_without_route(self) -> str:
        """Return why a record has no topic."""
        return (
            f"Its topic {self._binding.topic!r} would have an empty level, one with +, #, / or a control character, "
            f"$ at its beginning, or more than {_MAX_TOPIC_BYTES} bytes."
        )

    def why_lost(self, message: OutgoingMessage) -> str:
        """Return why a broker ends the connection at a message: MQTT 3.1.1, and some brokers of 5, do not say it."""
        return (
            f"A message of {len(message.body)} bytes to {message.route!r} is not taken when it is sent alone, either. "
            "Brokers end the connection when a message is too large (Mosquitto: message_size_limit, max_packet_size), "
            "or when the user may not publish to the topic. Raise the limit, or give the right; or add "
            "max_message_bytes=N to the URI, and larger messages become dead letters. "
        )


def _is_topic(topic: str, is_own: bool) -> bool:
    """Return whether a topic can be sent. Those that begin with $ are the broker's own, unless the URI names one."""
    return len(topic.encode()) <= _MAX_TOPIC_BYTES and (is_own or not topic.startswith("$"))


class _MqttPublisher:
    def __init__(self, binding: MqttBinding) -> None:
        self._retain: Final = binding.retain
        self._max_bytes: Final = binding.max_message_bytes
        self._connection: Final = MqttConnection(binding, None)

    def publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        if self._max_bytes is not None:
            for row, size in [(row, len(message.body)) for row, message in waiting.items()]:
                if size > self._max_bytes:
                    del waiting[row]
                    refused[row] = (
                        f"It has {size} bytes, and max_message_bytes of the URI is {self._max_bytes}."
                    )
        for row, reason in self._connection.publish(waiting, self._retain):
            del waiting[row]
            if reason:
                refused[row] = reason

    def close(self) -> None:
        self._connection.close()
