"""RabbitMQ sink: records as messages of an exchange, at least once, with origins that tell repetitions apart."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import pyarrow as pa
from pika.exceptions import AMQPError

from penstock.bindings.types import ExchangeBinding
from penstock.errors import ExternalSystemError
from penstock.rabbitmq.rabbitmq_publisher import Outgoing, Publisher, check_exchange
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, SinkTask, TaskContext
from penstock.sinks.field_templates import check_template, fill_template
from penstock.sinks.message_parts import origins_of

__all__ = ["RabbitSink"]

_UNFIT: Final = re.compile("\0")
_MAX_KEY_BYTES: Final = 255
_MAX_BYTES: Final = 128 << 20
_PATIENCE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 5.0

_kept: Final[dict[tuple[Any, ...], list[Publisher]]] = {}


class _Encoder(Protocol):
    def encode(self, batch: pa.RecordBatch) -> pa.Array: ...


class RabbitSink:
    """A sink that publishes each record as a persistent message, and waits until the broker has confirmed it.

    `{field}` in the routing key is the value of a field. A message for which there is no queue is rejected.
    """

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: ExchangeBinding, encoder: _Encoder, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        what = "routing key" if binding.exchange else "queue"
        check_template(binding.stream, what, binding.routing_key, record_type)

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the broker keeps no number
        """Return -1: the broker does not know micro-batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the broker has the exchange or the queue."""
        check_exchange(self._binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task whose records the broker has when they are written."""
        return _PublishTask(self._binding, self._encoder, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the broker has the records."""


class _PublishTask(RejectingTask):
    """A task that publishes the records of a block, and waits until the broker has judged them."""

    def __init__(self, binding: ExchangeBinding, encoder: _Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._publisher: Publisher | None = None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # messages have no keys
        bodies = self._encoder.encode(batch).to_pylist()
        routing_keys = fill_template(self._binding.routing_key, batch, _UNFIT)
        origins: Sequence[bytes | None] = [None] * len(bodies)
        if self._binding.origin and self._origin is not None:
            origins = origins_of(self._context, self._origin).to_pylist()
        waiting: dict[int, Outgoing] = {}
        refused: dict[int, str] = {}
        for row, (key, body, origin) in enumerate(zip(routing_keys, bodies, origins, strict=True)):
            if key is None or len(key.encode()) > _MAX_KEY_BYTES:
                refused[row] = (
                    f"Its routing key {self._binding.routing_key!r} would have an empty field, or more than "
                    f"{_MAX_KEY_BYTES} bytes."
                )
            else:
                waiting[row] = Outgoing(key, body, None if origin is None else origin.decode())
        refused |= self._publish(waiting)
        self._rejections = [
            Rejection(row, reason, bodies[row], _MAX_BYTES) for row, reason in sorted(refused.items())
        ]

    def finish(self) -> bytes:
        if self._publisher is not None:
            _kept.setdefault(_key(self._binding), []).append(self._publisher)
            self._publisher = None
        return b""

    def abort(self) -> None:
        self._drop()

    def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with suppress(Exception):
                publisher.close()

    def _publish(self, waiting: dict[int, Outgoing]) -> dict[int, str]:
        """Publish messages until the broker has judged all of them; return the reasons of those that it refuses.

        When the connection is lost, those that are not confirmed are published again.
        """
        refused: dict[int, str] = {}
        begun_s, pause_s = time.monotonic(), 0.1
        while waiting:
            try:
                if self._publisher is None:
                    self._publisher = _take(self._binding)
                self._publisher.publish(waiting, refused)
            except (OSError, AMQPError) as e:
                self._drop()
                if time.monotonic() - begun_s > _PATIENCE_S:
                    binding = self._binding
                    raise ExternalSystemError(
                        f"Sink {binding.stream!r}: RabbitMQ at {binding.virtual_host} takes no messages ({e}), for "
                        f"{_PATIENCE_S:g} s. The records are sent again."
                    ) from e
                if waiting:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return refused


def _key(binding: ExchangeBinding) -> tuple[Any, ...]:
    return os.getpid(), binding.uri, binding.virtual_host.password


def _take(binding: ExchangeBinding) -> Publisher:
    kept = _kept.setdefault(_key(binding), [])
    return kept.pop() if kept else Publisher(binding)
