"""Publishing sink: records as messages of a broker, at least once, published until the broker has judged each."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from penstock.errors import ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext
from penstock.sinks.message_parts import origins_of
from penstock.sinks.patience import Patience

__all__ = ["OutgoingMessage", "Publisher", "PublishingSink"]

_PATIENCE_S: Final = 60.0

_kept: Final[dict[tuple[Any, ...], list[Publisher]]] = {}


class OutgoingMessage(NamedTuple):
    """A message to publish. `route` is its topic or routing key; `origin` tells it apart from others."""

    route: str
    body: bytes
    origin: str | None = None


class Publisher(Protocol):
    """A connection that publishes."""

    def publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        """Publish the messages of rows, and take out of `waiting` those that the broker has judged.

        `refused` gets the reasons of those that it does not take. Raises an error of the sink's `lost` when messages
        stay in `waiting`, which may be different later.
        """

    def close(self) -> None:
        """End the connection."""


class PublishingSink(ABC):
    """A sink whose tasks publish the records of each block, and wait until the broker has judged them.

    Args:
        stream: the name of the stream.
        broker: the broker, as messages name it.
        encoder: makes the body of each message.
        tells_origin: whether messages have their origin, by which readers leave out repetitions.
        max_bytes: the largest body that a dead letter keeps.

    """

    exactly_once = False
    commits_in_tasks = False
    # The errors of a lost connection.
    lost: tuple[type[Exception], ...] = (OSError,)

    def __init__(
        self, stream: str, broker: str, encoder: Encoder, *, tells_origin: bool, max_bytes: int
    ) -> None:
        self.stream: Final = stream
        self.broker: Final = broker
        self.encoder: Final = encoder
        self.tells_origin: Final = tells_origin
        self.max_bytes: Final = max_bytes

    @property
    @abstractmethod
    def login(self) -> tuple[Any, ...]:
        """What a connection that is kept for another task must have been opened with."""

    @abstractmethod
    def open_publisher(self) -> Publisher:
        """Connect. Raises an error of `lost` if that fails."""

    @abstractmethod
    def routes(self, batch: pa.RecordBatch) -> Sequence[str | None]:
        """Return the topic or routing key of each record; None if it cannot have one."""

    @abstractmethod
    def why_without_route(self) -> str:
        """Return why a record has no topic or routing key, as a sentence."""

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the broker keeps no number
        """Return -1: the broker does not know micro-batches."""
        return -1

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task whose records the broker has when they are written."""
        return _PublishTask(self, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:  # noqa: B027  # nothing is left to do
        """Do nothing: the broker has the records."""


class _PublishTask(RejectingTask):
    def __init__(self, sink: PublishingSink, context: TaskContext) -> None:
        super().__init__()
        self._sink: Final = sink
        self._context: Final = context
        self._publisher: Publisher | None = None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # messages have no keys
        sink = self._sink
        bodies = sink.encoder.encode(batch).to_pylist()
        origins: Sequence[bytes | None] = [None] * len(bodies)
        if sink.tells_origin and self._origin is not None:
            origins = origins_of(self._context, self._origin).to_pylist()
        waiting: dict[int, OutgoingMessage] = {}
        refused: dict[int, str] = {}
        for row, (route, body, origin) in enumerate(zip(sink.routes(batch), bodies, origins, strict=True)):
            if route is None:
                refused[row] = sink.why_without_route()
            else:
                waiting[row] = OutgoingMessage(route, body, None if origin is None else origin.decode())
        self._publish(waiting, refused)
        self._reject(refused, bodies.__getitem__, sink.max_bytes)

    def finish(self) -> bytes:
        if self._publisher is not None:
            self._others().append(self._publisher)
            self._publisher = None
        return b""

    def abort(self) -> None:
        self._drop()

    def _others(self) -> list[Publisher]:
        """Return the connections of this process that no task uses."""
        return _kept.setdefault((os.getpid(), *self._sink.login), [])

    def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with suppress(Exception):
                publisher.close()

    def _publish(self, waiting: dict[int, OutgoingMessage], refused: dict[int, str]) -> None:
        """Publish messages until the broker has judged all of them.

        When the connection is lost, those that are not confirmed are published again.
        """
        patience = Patience(_PATIENCE_S)
        while waiting:
            before = len(waiting)
            try:
                if self._publisher is None:
                    others = self._others()
                    self._publisher = others.pop() if others else self._sink.open_publisher()
                self._publisher.publish(waiting, refused)
            except self._sink.lost as e:
                self._drop()
                # A queue that is full may take some each time.
                if waiting and not patience.rest(has_progressed=len(waiting) < before):
                    raise ExternalSystemError(
                        f"Sink {self._sink.stream!r}: {self._sink.broker} takes no messages ({e}), for "
                        f"{_PATIENCE_S:g} s. The records are sent again."
                    ) from e
