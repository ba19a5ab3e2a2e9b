"""Drivers that are killed at points of commits: `killed_commit.py FOLDER POINT...`, each with the next that repeats it.

They are forks of this process, which itself only imports, so that they start soon.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding
from penstock.lakes import delta_sink
from penstock.lakes.delta_sink import DeltaSink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

NUMBER = record_type("number BIGINT")


def killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, after which the process dies."""

    def run(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    return run


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def drive(folder: str, batch_id: int, point: str) -> None:
    """Commit a micro-batch, as its first driver or as the next one; at a point of it, die."""
    binding = parse_binding("seen", f"delta:{folder}", "sink")
    assert isinstance(binding, DeltaBinding)
    if point == "created":
        DeltaTable.create = killed_after(DeltaTable.create)  # type: ignore[method-assign]
    if point == "committed":
        delta_sink.DeltaSink._sync_log = die  # type: ignore[method-assign]
    if point == "added":
        DeltaTable.create_write_transaction = killed_after(  # type: ignore[method-assign]
            DeltaTable.create_write_transaction
        )
    sink = DeltaSink(binding, NUMBER)
    sink.prepare("line", "")
    messages = []
    for partition in range(2):
        task = sink.task(TaskContext(batch_id, partition, 0, "line"), NUMBER)
        task.write(pa.RecordBatch.from_pylist([{"number": 2 * batch_id + partition}], NUMBER.schema), None)
        if point == "writing":
            die()
        messages.append(task.finish())
    if point == "staged":
        die()
    sink.commit(batch_id, messages)


def ended(folder: str, batch_id: int, point: str) -> int:
    """How a driver of its own ended."""
    child = os.fork()
    if child == 0:
        drive(folder, batch_id, point)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for number, name in enumerate(sys.argv[2:]):
        assert ended(sys.argv[1], number, name) == -signal.SIGKILL, name
        assert ended(sys.argv[1], number, "none") == 0, name
