"""RabbitMQ sink: records as messages of an exchange, at least once, with origins that tell repetitions apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pika.exceptions import AMQPError

from penstock.bindings.types import ExchangeBinding
from penstock.rabbitmq.rabbitmq_publisher import RabbitPublisher, check_exchange
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder
from penstock.sinks.field_templates import check_template, fill_template
from penstock.sinks.publishing_sink import PublishingSink

__all__ = ["RabbitSink"]

_UNFIT: Final = re.compile("\0")
_MAX_KEY_BYTES: Final = 255
_MAX_BYTES: Final = 128 << 20


class RabbitSink(PublishingSink):
    """A sink that publishes each record as a persistent message, and waits until the broker has confirmed it.

    `{field}` in the routing key is the value of a field. A message for which there is no queue is rejected.
    """

    lost = (OSError, AMQPError)

    def __init__(self, binding: ExchangeBinding, encoder: Encoder, record_type: RecordType) -> None:
        super().__init__(
            binding.stream,
            f"RabbitMQ at {binding.virtual_host}",
            encoder,
            tells_origin=bool(binding.origin),
            max_bytes=_MAX_BYTES,
        )
        self._binding: Final = binding
        what = "routing key" if binding.exchange else "queue"
        check_template(binding.stream, what, binding.routing_key, record_type)

    @property
    def login(self) -> tuple[Any, ...]:
        """What a connection that is kept for another task must have been opened with."""
        return self._binding.uri, self._binding.virtual_host.password

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the broker has the exchange or the queue."""
        check_exchange(self._binding)

    def open_publisher(self) -> RabbitPublisher:
        """Connect. Raises ConnectionError if that fails."""
        return RabbitPublisher(self._binding)

    def routes(self, batch: pa.RecordBatch) -> Sequence[str | None]:
        """Return the routing key of each record; None if it cannot have one."""
        found = fill_template(self._binding.routing_key, batch, _UNFIT)
        return [None if key is None or len(key.encode()) > _MAX_KEY_BYTES else key for key in found]

    def why_without_route(self) -> str:
        """Return why a record has no routing key."""
        return (
            f"Its routing key {self._binding.routing_key!r} would have an empty field, or more than "
            f"{_MAX_KEY_BYTES} bytes."
        )
