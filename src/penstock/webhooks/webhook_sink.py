"""Webhook sink: records to a server by POST, at least once, with ids by which it can leave out repetitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.bindings.types import WebhookBinding
from penstock.records.cloud_events import binary_attributes
from penstock.records.event_headers import http_header_value
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, Rejection, SinkTask, TaskContext
from penstock.sinks.message_parts import origins_of
from penstock.webhooks.webhook_requests import check_secrets, get_sender

__all__ = ["WebhookSink"]

_MAX_BYTES: Final = 1 << 30


class WebhookSink:
    """A sink that sends each record, or some in an array, as the JSON body of a request. They may be CloudEvents.

    A request is repeated while the server is away or overloaded. Records that it refuses (4xx) are rejected one by one.
    After a crash requests of the newest micro-batch or interval are sent again, with the same `Idempotency-Key`.
    """

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: WebhookBinding, encoder: Encoder) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the server keeps no number
        """Return -1: the server does not know micro-batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the secrets that the binding refers to are there. Sends nothing."""
        check_secrets(self._binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task whose records the server has when they are written."""
        return _RequestTask(self._binding, self._encoder, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the server has the records."""


@dataclass(frozen=True)
class _Request:
    """Consecutive records of a block: the first row, their bodies, and the ids that tell them apart.

    `attributes` are headers, of a request with one event in the binary mode.
    """

    first: int
    bodies: Sequence[bytes]
    ids: Sequence[str] | None
    attributes: Mapping[str, str] | None = None

    def halves(self) -> tuple[_Request, _Request]:
        """Return two requests with the same records."""
        half = len(self.bodies) // 2
        return (
            _Request(self.first, self.bodies[:half], None if self.ids is None else self.ids[:half]),
            _Request(self.first + half, self.bodies[half:], None if self.ids is None else self.ids[half:]),
        )


class _RequestTask(RejectingTask):
    """A task that sends the records of a block, and waits until the server has them."""

    def __init__(self, binding: WebhookBinding, encoder: Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._sender: Final = get_sender(binding)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # a request has no key
        requests = self._requests(batch)
        at_once = min(self._binding.requests_at_once, len(requests))
        if at_once <= 1:
            found = [list(self._send(request)) for request in requests]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                found = list(pool.map(lambda request: list(self._send(request)), requests))
        self._rejections = [rejection for rejections in found for rejection in rejections]

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: sent records stay."""

    def _requests(self, batch: pa.RecordBatch) -> list[_Request]:
        bodies = self._encoder.encode(batch).to_pylist()
        ids: list[str] | None = None
        if self._binding.origin and self._origin is not None:
            ids = [one.decode() for one in origins_of(self._context, self._origin).to_pylist()]
        size = self._binding.records_per_request
        attributes = _event_headers(self._binding, batch)
        return [
            _Request(
                first,
                bodies[first : first + size],
                None if ids is None else ids[first : first + size],
                None if attributes is None else attributes[first],
            )
            for first in range(0, len(bodies), size)
        ]

    def _send(self, request: _Request) -> Iterator[Rejection]:
        """Send a request; when the server refuses it, find out which of its records, and send the others."""
        answer = self._sender.send(self._body(request), _request_id(request.ids), request.attributes)
        if answer.taken:
            return
        if len(request.bodies) > 1:
            for half in request.halves():
                yield from self._send(half)
            return
        yield Rejection(request.first, answer.reason, request.bodies[0], _MAX_BYTES)

    def _body(self, request: _Request) -> bytes:
        if self._binding.records_per_request == 1:
            return request.bodies[0]
        return b"[" + b",".join(request.bodies) + b"]"


def _request_id(ids: Sequence[str] | None) -> str | None:
    """Return the id of a request: that of its only record, or of the first and the last, which imply the others."""
    if ids is None:
        return None
    return ids[0] if len(ids) == 1 else f"{ids[0]}..{ids[-1]}"


def _event_headers(binding: WebhookBinding, batch: pa.RecordBatch) -> list[dict[str, str]] | None:
    """Return the attributes of each record as headers, if they are events in the binary mode."""
    events = binding.events
    if events is None or not events.is_binary:
        return None
    columns = binary_attributes(batch, events.attributes, (events.id, events.source, events.type))
    names = [f"ce-{name}" for name in columns]
    return [
        {name: http_header_value(value) for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*(column.to_pylist() for column in columns.values()), strict=True)
    ]
