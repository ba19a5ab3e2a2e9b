"""Own sinks: a `RecordSink` of the user's as a sink of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa

from penstock.bindings.types import PythonBinding
from penstock.connectors.custom_class import in_custom_class, make_custom
from penstock.connectors.record_block import Block
from penstock.connectors.record_sink import RecordSink
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, Rejection, SinkTask, TaskContext
from penstock.sinks.message_parts import origins_of

__all__ = ["CustomSink"]

_MAX_BYTES: Final = 1 << 30


class CustomSink:
    """A sink that calls objects of the user's class: one for each task, and one for each call of the driver."""

    def __init__(self, binding: PythonBinding, encoder: Encoder) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        self.exactly_once = binding.guarantee == "exactly once"
        # A replay must give each task the same records if these have replaced others, or are skipped.
        self.commits_in_tasks = self.exactly_once or binding.guarantee == "idempotent by key"

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # it knows the destination only
        """Return what the class says."""
        with self._opened() as own, in_custom_class(self._binding, "newest"):
            return own.newest(lineage)

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # likewise
        """Let the class check that writing will work."""
        with self._opened() as own, in_custom_class(self._binding, "prepare"):
            own.prepare(lineage)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task with an object of its own."""
        return _OwnTask(self._binding, self._encoder, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Let the class make the micro-batch visible."""
        with self._opened() as own, in_custom_class(self._binding, "commit"):
            own.commit(batch_id, [message.decode() for message in messages if message])

    @contextmanager
    def _opened(self) -> Iterator[RecordSink]:
        own: RecordSink = make_custom(self._binding)
        try:
            yield own
        finally:
            with in_custom_class(self._binding, "close"):
                own.close()


class _OwnTask(RejectingTask):
    """A task that passes records on to an object of the user's class."""

    def __init__(self, binding: PythonBinding, encoder: Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._own: Final[RecordSink] = make_custom(binding)
        try:
            with in_custom_class(binding, "begin"):
                self._own.begin(context)
        except BaseException:
            self.abort()
            raise

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        ids: list[str] | None = None
        if self._binding.origin and self._origin is not None:
            ids = [one.decode() for one in origins_of(self._context, self._origin).to_pylist()]
        block = Block(batch, keys, ids)
        with in_custom_class(self._binding, "write"):
            self._own.write(block)
        if block.rejected:
            rows = sorted(block.rejected)
            raw = self._encoder.encode(batch.take(pa.array(rows, pa.int64()))).to_pylist()
            self._rejections = [
                Rejection(row, block.rejected[row], bytes_, _MAX_BYTES)
                for row, bytes_ in zip(rows, raw, strict=True)
            ]

    def finish(self) -> bytes:
        with in_custom_class(self._binding, "finish"):
            message = self._own.finish()
            if not isinstance(message, str):
                raise TypeError(f"finish returns a text for commit, not {type(message).__name__}")
        with in_custom_class(self._binding, "close"):
            self._own.close()
        return message.encode()

    def abort(self) -> None:
        """Abort and close the object, whatever it raises."""
        with suppress(Exception):
            self._own.abort()
        with suppress(Exception):
            self._own.close()
