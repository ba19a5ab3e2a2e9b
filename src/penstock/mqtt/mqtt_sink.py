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

_UNFIT: Final = re.compile("[+#/\0]")
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
        return fill_template(self._binding.topic, batch, _UNFIT)

    def why_without_route(self) -> str:
        """Return why a record has no topic."""
        return f"Its topic {self._binding.topic!r} would have an empty level, or +, # or / in one."


class _MqttPublisher:
    def __init__(self, binding: MqttBinding) -> None:
        self._retain: Final = binding.retain
        self._connection: Final = MqttConnection(binding, None)

    def publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        for row, reason in self._connection.publish(waiting, self._retain):
            del waiting[row]
            if reason:
                refused[row] = reason

    def close(self) -> None:
        self._connection.close()
