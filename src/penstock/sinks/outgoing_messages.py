"""Outgoing messages: the messages of one task for a broker, in memory up to a limit, and on disk beyond it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

import pyarrow as pa

from penstock.errors import ExternalSystemError
from penstock.sinks.message_parts import Messages

__all__ = ["OutgoingMessages"]

_MEMORY_BYTES: Final = 16 << 20
# The memory of a block of messages besides its bytes.
_BLOCK_BYTES: Final = 1 << 10
_FIELDS: Final = [
    pa.field("value", pa.binary()),
    pa.field("key", pa.binary()),
    pa.field("hash", pa.int32()),
]


class OutgoingMessages:
    """The messages of a task, in order, which can be read more than once.

    The file on disk has no name, so nothing is left of it when the process ends, however that happens.
    """

    def __init__(self, stream: str, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._stream = stream
        self._memory_bytes = memory_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self.nbytes = 0
        """The size of the messages, in bytes."""

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._file is not None

    def append(self, messages: Messages) -> None:
        """Append messages, all with the same names of headers.

        Raises ExternalSystemError when the disk does not accept them.
        """
        count = len(messages)
        keys = pa.nulls(count, pa.binary()) if messages.keys is None else messages.keys
        hashes = pa.nulls(count, pa.int32()) if messages.hashes is None else messages.hashes
        schema = pa.schema([*_FIELDS, *(pa.field(name, pa.binary()) for name in messages.headers)])
        columns = [messages.values, keys, hashes, *messages.headers.values()]
        block = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._waiting.append(block)
        self._waiting_bytes += block.nbytes + _BLOCK_BYTES
        self.nbytes += block.nbytes
        if self._waiting_bytes > self._memory_bytes:
            with self._disk_errors():
                self._spill()

    def blocks(self) -> Iterator[Messages]:
        """Yield all messages, block by block.

        No more can be appended once they are read.
        """
        if self._file is not None:
            with self._disk_errors():
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
                self._file.seek(0)
                stored = pa.ipc.open_stream(pa.PythonFile(self._file, "r"))
            while True:
                with self._disk_errors():
                    try:
                        block = stored.read_next_batch()
                    except StopIteration:
                        break
                yield _messages(block)
        for block in self._waiting:
            yield _messages(block)

    def close(self) -> None:
        """Drop the messages. Never raises."""
        self._waiting, self._writer = [], None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-outgoing-")  # noqa: SIM115  # `close` closes it
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), self._waiting[0].schema)
        assert self._writer is not None, "messages came after they were read"
        for block in self._waiting:
            self._writer.write_batch(block)
        self._waiting, self._waiting_bytes = [], 0

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise ExternalSystemError(
                f"Sink {self._stream!r}: the output of a micro-batch waits in the folder {tempfile.gettempdir()} "
                f"until it is sent, and cannot be written there ({e.strerror or e}). Make room there, or name a folder "
                "on a larger disk with the environment variable TMPDIR of the workers."
            ) from e


def _messages(block: pa.RecordBatch) -> Messages:
    values, keys, hashes, *headers = block.columns
    names = block.schema.names[len(_FIELDS) :]
    # Without any, the client need not be asked how many partitions there are.
    some = None if hashes.null_count == len(hashes) else hashes
    return Messages(values, keys, dict(zip(names, headers, strict=True)), some)
