"""MQTT sink: records as messages of topics, at least once, with origins by which readers can leave out repetitions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import pyarrow as pa

from penstock.bindings.types import MqttBinding
from penstock.errors import ExternalSystemError
from penstock.mqtt.mqtt_connection import MqttConnection, Outgoing, check_connection
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, SinkTask, TaskContext
from penstock.sinks.field_templates import check_template, fill_template
from penstock.sinks.message_parts import origins_of

__all__ = ["MqttSink"]

_UNFIT: Final = re.compile("[+#/\0]")
_MAX_BYTES: Final = 256 << 20
_PATIENCE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 5.0

_kept: Final[dict[tuple[Any, ...], list[MqttConnection]]] = {}


class _Encoder(Protocol):
    def encode(self, batch: pa.RecordBatch) -> pa.Array: ...


class MqttSink:
    """A sink that publishes each record with quality of service 1, and waits until the broker has it.

    `{field}` in the topic is the value of a field. What the broker refuses is rejected record by record.
    """

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: MqttBinding, encoder: _Encoder, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        check_template(binding.stream, "topic", binding.topic, record_type)

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the broker keeps no number
        """Return -1: the broker does not know micro-batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the broker lets the job connect."""
        check_connection(self._binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task whose records the broker has when they are written."""
        return _PublishTask(self._binding, self._encoder, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the broker has the records."""


class _PublishTask(RejectingTask):
    """A task that publishes the records of a block, and waits until the broker has confirmed them."""

    def __init__(self, binding: MqttBinding, encoder: _Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._connection: MqttConnection | None = None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # topics have no keys
        bodies = self._encoder.encode(batch).to_pylist()
        topics = fill_template(self._binding.topic, batch, _UNFIT)
        origins: Sequence[bytes | None] = [None] * len(bodies)
        if self._binding.origin and self._origin is not None:
            origins = origins_of(self._context, self._origin).to_pylist()
        waiting: dict[int, Outgoing] = {}
        refused: dict[int, str] = {}
        for row, (topic, body, origin) in enumerate(zip(topics, bodies, origins, strict=True)):
            if topic is None:
                refused[row] = (
                    f"Its topic {self._binding.topic!r} would have an empty level, or +, # or / in one."
                )
            else:
                waiting[row] = Outgoing(topic, body, None if origin is None else origin.decode())
        refused |= self._publish(waiting)
        self._rejections = [
            Rejection(row, reason, bodies[row], _MAX_BYTES) for row, reason in sorted(refused.items())
        ]

    def finish(self) -> bytes:
        if self._connection is not None:
            _kept.setdefault(_key(self._binding), []).append(self._connection)
            self._connection = None
        return b""

    def abort(self) -> None:
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _publish(self, waiting: dict[int, Outgoing]) -> dict[int, str]:
        """Publish messages until the broker has judged all of them; return the reasons of those that it refuses.

        When the connection is lost, those that are not confirmed are published again.
        """
        refused: dict[int, str] = {}
        begun_s, pause_s = time.monotonic(), 0.1
        while waiting:
            try:
                if self._connection is None:
                    self._connection = _take(self._binding)
                for row, reason in self._connection.publish(waiting, self._binding.retain):
                    del waiting[row]
                    if reason:
                        refused[row] = reason
            except (OSError, ExternalSystemError) as e:
                self._drop()
                if time.monotonic() - begun_s > _PATIENCE_S:
                    binding = self._binding
                    raise ExternalSystemError(
                        f"Sink {binding.stream!r}: the MQTT broker {binding.host}:{binding.port} takes no messages "
                        f"({e}), for {_PATIENCE_S:g} s. The records are sent again."
                    ) from e
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return refused


def _key(binding: MqttBinding) -> tuple[Any, ...]:
    return os.getpid(), binding.uri, *binding.login.values()


def _take(binding: MqttBinding) -> MqttConnection:
    kept = _kept.setdefault(_key(binding), [])
    return kept.pop() if kept else MqttConnection(binding, None)
