"""Drivers that are killed during commits, each followed by one that repeats it: `killed_commit.py LAKE FOLDER
POINT...`.

They are forks of this process, which itself only imports, so that they start fast.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow
import pyiceberg.transforms  # noqa: F401  # so that no fork has to load them
from deltalake import DeltaTable
from lake_tables import lake_sink
from pyiceberg.catalog.sql import SqlCatalog

from penstock.lakes import delta_files
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

NUMBER = record_type("number BIGINT")


def killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, after which the process dies."""

    def run(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    return run


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def set_trap(lake: str, point: str) -> None:
    """Make the process die at a point within the library, or near it."""
    if lake == "iceberg" and point == "created":
        SqlCatalog.create_table = killed_after(SqlCatalog.create_table)  # type: ignore[method-assign]
    if lake == "iceberg" and point == "uncommitted":
        SqlCatalog.commit_table = die  # type: ignore[method-assign,assignment]
    if lake == "iceberg" and point == "committed":
        SqlCatalog.commit_table = killed_after(SqlCatalog.commit_table)  # type: ignore[method-assign]
    if lake == "delta" and point == "created":
        DeltaTable.create = killed_after(DeltaTable.create)  # type: ignore[method-assign]
    if lake == "delta" and point == "committed":
        delta_files._LocalFiles.settle_log = die  # type: ignore[method-assign]
    if lake == "delta" and point == "added":
        DeltaTable.create_write_transaction = killed_after(  # type: ignore[method-assign]
            DeltaTable.create_write_transaction
        )


def drive(lake: str, folder: str, batch_id: int, point: str) -> None:
    """Commit a micro-batch, as its first driver or as the next one; die at a point."""
    set_trap(lake, point)
    sink = lake_sink(lake, Path(folder), NUMBER)
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


def ended(lake: str, folder: str, batch_id: int, point: str) -> int:
    """Return how a separate driver ended."""
    child = os.fork()
    if child == 0:
        drive(lake, folder, batch_id, point)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for number, name in enumerate(sys.argv[3:]):
        assert ended(sys.argv[1], sys.argv[2], number, name) == -signal.SIGKILL, name
        assert ended(sys.argv[1], sys.argv[2], number, "none") == 0, name
