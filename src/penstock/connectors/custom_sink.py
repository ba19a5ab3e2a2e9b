"""Own sinks: a `RecordSink` of the user's as a sink of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import pyarrow as pa

from penstock.bindings.types import PythonBinding
from penstock.connectors.custom_class import in_custom_class, make_custom
from penstock.connectors.custom_thread import take_thread
from penstock.connectors.record_block import Block
from penstock.connectors.record_sink import RecordSink
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, Rejection, SinkTask, TaskContext
from penstock.sinks.message_parts import origins_of

__all__ = ["CustomSink"]

_MAX_BYTES: Final = 1 << 30

_Result = TypeVar("_Result")


class CustomSink:
    """A sink that calls objects of the user's class: one for each task, and one for each call of the driver."""

    def __init__(self, binding: PythonBinding, encoder: Encoder) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        self.exactly_once = binding.guarantee == "exactly once"
        # A replay must give each task the same records if these have replaced others, or are skipped.
        self.commits_in_tasks = self.exactly_once or binding.guarantee == "idempotent by key"

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # it knows the destination only
        """Return the answer of the class."""
        with self._opened() as own, in_custom_class(self._binding, "newest"):
            return own.newest(lineage)

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # likewise
        """Let the class check that writing will work."""
        with self._opened() as own, in_custom_class(self._binding, "prepare"):
            own.prepare(lineage)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task with a separate object."""
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
    """A task that passes records on to an object of the user's class, all of whose calls are made in one thread."""

    def __init__(self, binding: PythonBinding, encoder: Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._thread: Final = take_thread()
        self._is_closed = False
        self._own: RecordSink | None = None
        try:
            self._own = self._in_thread(lambda: make_custom(binding))
            self._call("begin", lambda own: own.begin(context))
        except BaseException:
            self.abort()
            raise

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        ids: list[str] | None = None
        if self._binding.origin and self._origin is not None:
            ids = [one.decode() for one in origins_of(self._context, self._origin).to_pylist()]
        block = Block(batch, keys, ids)
        self._call("write", lambda own: own.write(block))
        if block.rejected:
            rows = sorted(block.rejected)
            raw = self._encoder.encode(batch.take(pa.array(rows, pa.int64()))).to_pylist()
            self._rejections = [
                Rejection(row, block.rejected[row], bytes_, _MAX_BYTES)
                for row, bytes_ in zip(rows, raw, strict=True)
            ]

    def finish(self) -> bytes:
        def finished(own: RecordSink) -> str:
            message = own.finish()
            if not isinstance(message, str):
                raise TypeError(f"finish returns a text for commit, not {type(message).__name__}")
            return message

        message = self._call("finish", finished)
        self._call("close", lambda own: own.close())
        self._end()
        return message.encode()

    def abort(self) -> None:
        """Abort and close the object, whatever it raises, unless it has finished and is closed."""
        if self._is_closed:
            return
        with suppress(Exception):
            self._call("abort", lambda own: own.abort())
        with suppress(Exception):
            self._call("close", lambda own: own.close())
        self._end()

    def _call(self, method: str, work: Callable[[RecordSink], _Result]) -> _Result:
        """Call a method of the object in its thread."""
        own = self._own
        assert own is not None, "it was made"

        def called() -> _Result:
            with in_custom_class(self._binding, method):
                return work(own)

        return self._in_thread(called)

    def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return work() if self._thread is None else self._thread.call(work)

    def _end(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._thread.give_back()
