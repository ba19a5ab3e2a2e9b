"""Carried bodies: on one machine, large bodies of packed rows go from worker to worker in files, past the JVM.

Spark's shuffle would copy each body ten times. The JVM gets the place of a body in a file instead. The tasks of one
micro-batch write the files and read them, and then they are removed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import SparkContext, TaskContext

from penstock.errors import ExternalSystemError
from penstock.runtime.gathered_rows import StoredBody

__all__ = ["CarriedBodies", "carry_bodies", "folder_for_bodies", "remove_bodies", "unwritable"]

# For smaller bodies a file costs more than it saves.
_LEAST_BYTES: Final = 4 << 10
_LEAST_BATCH_BYTES: Final = 1 << 20
_BODY: Final = "body"
# The other bodies are blocks of Arrow or messages of msgpack, and neither begins with it.
_MARK: Final = b"penstock-body:"


class _Place(NamedTuple):
    """Where a body is."""

    path: str
    start: int
    size: int


_places: Final = msgspec.msgpack.Decoder(_Place)


def folder_for_bodies(context: SparkContext) -> str:
    """Return a folder that the driver and all tasks see, or "" if there are other machines.

    Spark removes it with its own files when its JVM ends, even if the driver was killed.
    """
    if not str(context.master).startswith("local"):
        return ""
    return tempfile.mkdtemp(prefix="bodies-", dir=context._temp_dir)  # noqa: SLF001  # nothing public has it


def remove_bodies(folder: str) -> None:
    """Remove the files of a micro-batch whose tasks have ended. The folder may be gone with Spark's JVM."""
    if not folder:
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            os.remove(file)  # noqa: PTH107  # as os.scandir gives it


def carry_bodies(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Put the large bodies of packed rows into a file of this task, and yield the rows with their places instead.

    Raises ExternalSystemError when the file cannot be written.
    """
    with contextlib.ExitStack() as opened:
        file: IO[bytes] | None = None
        for batch in batches:
            if batch.nbytes < _LEAST_BATCH_BYTES:
                yield batch
                continue
            try:
                if file is None:
                    file = opened.enter_context(_new_file(folder))
                bodies = _append_bodies(batch.column(_BODY), file)
            except OSError as e:
                raise unwritable("The records of a micro-batch go from task to task", folder, e) from e
            place = batch.schema.get_field_index(_BODY)
            yield batch.set_column(place, batch.schema.field(place), bodies)


def _new_file(folder: str) -> IO[bytes]:
    task = TaskContext.get()
    assert task is not None
    return Path(folder, str(task.taskAttemptId())).open("xb")


def _append_bodies(bodies: pa.Array, file: IO[bytes]) -> pa.Array:
    """Append bodies to a file, and return their places; small ones as they are."""
    _, ends, content = bodies.buffers()
    bounds = np.frombuffer(ends, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    start = file.tell() - bounds[0]
    file.write(memoryview(content)[bounds[0] : bounds[-1]])
    file.flush()
    found = []
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if end - begin < _LEAST_BYTES:
            found.append(bodies[row].as_py())
        else:
            found.append(_MARK + msgspec.msgpack.encode(_Place(file.name, start + begin, end - begin)))
    return pa.array(found, pa.binary())


def unwritable(what: str, folder: str, error: OSError) -> ExternalSystemError:
    """Return the error that what tasks put into the folder cannot be written there; `what` is a clause about it."""
    return ExternalSystemError(
        f"{what} in the folder {folder}, and cannot be written there "
        f"({error.strerror or error}). Make room there, or name a folder on a larger disk with --spark "
        "spark.local.dir=PATH."
    )


class CarriedBodies:
    """The bodies of the rows that have come to a slot. A context manager, in which they can be read."""

    def __init__(self) -> None:
        self._files: Final[dict[str, IO[bytes]]] = {}
        self._opened: Final = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def of(self, body: Any) -> bytes | StoredBody:
        """Return a body, or the place where it is stored."""
        found = bytes(body)
        if not found.startswith(_MARK):
            return found
        path, start, size = _places.decode(found[len(_MARK) :])
        file = self._files.get(path)
        if file is None:
            # Without a buffer, which would read ahead of each body.
            file = self._opened.enter_context(Path(path).open("rb", buffering=0))  # noqa: SIM115  # as said
            self._files[path] = file
        return StoredBody(file, start, size)
