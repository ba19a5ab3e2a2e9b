"""Stream inputs: write records from Python to files in the checkpoint, which a stream of the job reads.

A sequence or a frame is the stream from its beginning. It is written once for the life of a checkpoint, so that a
restarted run resumes where it was. Records from an iterator, or sent ones, come after it.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.durable import make_folder, sync_file, sync_folder, write_atomically
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.unread_files import found_files, list_unread_files
from penstock.errors import CheckpointError
from penstock.launch.records_given import ROWS, is_frame, table_of_records, tables_of
from penstock.records.types import RecordType
from penstock.snapshots.digests import row_hashes

__all__ = ["IteratorFeed", "StreamInput", "is_sequence"]

_FLUSH_S: Final = 0.1
_END: Final = object()


class _Beginning(msgspec.Struct):
    """How a stream began: the number and the digest of the records."""

    rows: int
    digest: str


class StreamInput:
    """The records from Python for one stream. Any thread may write."""

    def __init__(self, stream: str, record_type: RecordType, checkpoint: Path) -> None:
        self._stream: Final = stream
        self._record_type: Final = record_type
        self._checkpoint: Final = checkpoint
        self._folder: Final = Checkpoint(checkpoint).inputs / stream
        self._lock: Final = threading.Lock()
        self._next = 0

    @property
    def uri(self) -> str:
        """The URI to which the stream is bound."""
        return f"parquet:{self._folder}"

    def open(self, given: Any) -> None:
        """Create the folder, and write the sequence or frame that the stream begins with, if any.

        Raises CheckpointError when the checkpoint began with other records.
        """
        make_folder(self._folder)
        if given is not None:
            self._begin(given)
        found = found_files(self._checkpoint, self._stream)
        self._next = found.end + len(found.unknown(str(self._folder), self._names()))

    def _begin(self, given: Any) -> None:
        note = self._folder.with_name(f"{self._stream}.beginning.json")
        digest = hashlib.sha256()
        rows = 0
        begins = not note.exists()
        if begins:
            # These files are from an interrupted start; nothing has read them.
            for name in self._names():
                (self._folder / name).unlink()
        for table in tables_of(self._stream, self._record_type, given):
            rows += len(table)
            digest.update(_row_digests(table))
            if begins:
                self._write(table)
        beginning = _Beginning(rows, digest.hexdigest())
        if begins:
            write_atomically(note, msgspec.json.encode(beginning))
        elif msgspec.json.decode(note.read_bytes(), type=_Beginning) != beginning:
            raise CheckpointError(
                f"The checkpoint {self._checkpoint} began with other records for the stream {self._stream!r}. Pass the "
                "same records to resume the job, send further ones with run.send(), or use a new checkpoint."
            )

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))  # noqa: PTH208  # names

    def send(self, records: Sequence[Any]) -> int:
        """Write records, or the rows of a frame, and return their number. They are durable when this returns."""
        rows = 0
        for table in tables_of(self._stream, self._record_type, records):
            self._write(table)
            rows += len(table)
        return rows

    def _write(self, table: pa.Table) -> None:
        with self._lock:
            name = f"{self._next:020}.parquet"
            hidden = self._folder / f".{name}"
            pq.write_table(table, hidden, compression="none")
            sync_file(hidden)
            hidden.rename(self._folder / name)
            sync_folder(self._folder)
            self._next += 1

    @property
    def is_read(self) -> bool:
        """Whether committed micro-batches have read everything that was written."""
        return not list_unread_files(self._checkpoint, self._stream, str(self._folder))

    def drain(self, records: Iterable[Any]) -> None:
        """Write all records of an iterator."""
        chunk: list[Any] = []
        for record in records:
            chunk.append(record)
            if len(chunk) == ROWS:
                self._write(table_of_records(self._stream, self._record_type, chunk))
                chunk = []
        if chunk:
            self._write(table_of_records(self._stream, self._record_type, chunk))


def _row_digests(table: pa.Table) -> bytes:
    """Return the hashes of the rows in order, independent of how a frame stores the rows."""
    return b"".join(np.stack(row_hashes(batch), axis=1).tobytes() for batch in table.to_batches())


class IteratorFeed:
    """A writer of an iterator's records while the job runs, in groups of a tenth of a second."""

    def __init__(self, stream_input: StreamInput, records: Iterable[Any], name: str) -> None:
        self._input: Final = stream_input
        self._records: Final = records
        self._queue: Final[queue.Queue[Any]] = queue.Queue(maxsize=ROWS)
        self._stop: Final = threading.Event()
        self.error: Exception | None = None
        # An iterator may block forever, which must not keep Python from exiting.
        self._threads: Final = [
            threading.Thread(target=target, name=f"{name}-{target.__name__}", daemon=True)
            for target in (self._pull, self._push)
        ]

    def start(self) -> None:
        """Start reading the iterator."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write the records read so far, and stop reading the iterator."""
        self._stop.set()
        self._threads[1].join()

    def _pull(self) -> None:
        try:
            for record in self._records:
                while not self._stop.is_set():
                    try:
                        self._queue.put(record, timeout=_FLUSH_S)
                        break
                    except queue.Full:
                        continue
                if self._stop.is_set():
                    return
        except Exception as e:  # a user's iterator may raise anything
            self.error = e
        self._queue.put(_END)

    def _push(self) -> None:
        try:
            for chunk in self._chunks():
                self._input.send(chunk)
        except Exception as e:  # raised again in the thread that waits for the run
            self.error = e

    def _chunks(self) -> Iterator[list[Any]]:
        chunk: list[Any] = []
        while True:
            try:
                record = self._queue.get(timeout=_FLUSH_S)
            except queue.Empty:
                if chunk:
                    yield chunk
                    chunk = []
                if self._stop.is_set():
                    return
                continue
            if record is _END:
                break
            chunk.append(record)
            if len(chunk) == ROWS:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def is_sequence(given: object) -> bool:
    """Return whether the binding of a stream has a known end: a list, a tuple, or a frame."""
    return is_frame(given) or (isinstance(given, Sequence) and not isinstance(given, str | bytes))
