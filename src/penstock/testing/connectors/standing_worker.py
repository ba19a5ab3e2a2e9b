"""Standing worker: a task in a separate process, which is suspended before its end, or killed there."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from typing import Any, Final, Self

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.types import RecordType
from penstock.sinks.base import RecordOrigin, RejectingTask, Sink, SinkTask, TaskContext
from penstock.testing.connectors.conformance import Refuted

__all__ = ["StandingWorker", "write_block"]


def write_block(task: SinkTask, kind: RecordType, partition: int, ids: list[int], values: list[str]) -> None:
    """Write records as the runtime does: with their keys, and with their origin if the task wants to know it."""
    block = pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array(values, pa.string())], schema=kind.schema
    )
    if isinstance(task, RejectingTask):
        offsets = pa.array(ids, pa.int64())
        task.come_from(RecordOrigin("", "kit", str(partition), offsets, is_source=True))
    task.write(block, pa.array([b"%d" % number for number in ids], pa.binary()))


class StandingWorker:
    """A worker process; a context manager. It has one task at a time."""

    def __init__(self, limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._limit_s: Final = limit_s
        self._pipe, theirs = context.Pipe()
        self._process: Final = context.Process(target=_serve, args=(theirs,), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._pipe.close()

    def write(
        self, sink: Sink, context: TaskContext, kind: RecordType, ids: list[int], values: list[str]
    ) -> None:
        """Begin a task and write records, which it does not finish."""
        self._ask((pickle.dumps(sink), context, kind, ids, values), "write records")

    def finish(self) -> None:
        """Finish the task. It may raise an error of penstock's."""
        self._ask(None, "finish")

    def kill(self) -> None:
        """Kill the process, as it stands."""
        self._process.kill()
        self._process.join()

    def _ask(self, what: Any, which: str) -> None:
        self._pipe.send(what)
        # The process has to start first.
        if not self._pipe.poll(self._limit_s + 60):
            raise Refuted(f"a task in another process does not {which} within {self._limit_s + 60:g} s.")
        error = self._pipe.recv()
        if error is not None:
            raise Refuted(f"a task in another process did not {which}: it raised {error}.")


def _serve(pipe: Connection) -> None:
    """Carry out the requests of the kit, until it ends this process."""
    task: SinkTask | None = None
    while True:
        asked = pipe.recv()
        error = None
        try:
            if asked is None:
                assert task is not None
                task.finish()
            else:
                pickled, context, kind, ids, values = asked
                task = pickle.loads(pickled).task(context, kind)
                write_block(task, kind, context.partition, ids, values)
        except PenstockError as e:
            # A task may find out that it comes too late, but not that it cannot write.
            error = None if asked is None else f"{type(e).__name__}: {e}"
        except Exception as e:  # a connector may raise anything, which is a finding
            error = f"{type(e).__name__}: {e}"
        pipe.send(error)
