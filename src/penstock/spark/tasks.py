"""Tasks: information for a worker about its current micro-batch."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

__all__ = ["WRITE_VERSION", "is_first_batch", "spark_batch", "write_version"]

_BATCH_ID: Final = "streaming.sql.batchId"
WRITE_VERSION: Final = "penstock.write.version"
"""The local property of Spark with the version of what the tasks of a micro-batch write."""


def spark_batch() -> int:
    """Return Spark's number of the micro-batch."""
    task = TaskContext.get()
    assert task is not None
    batch_id = task.getLocalProperty(_BATCH_ID)
    assert batch_id is not None
    return int(batch_id)


def is_first_batch() -> bool:
    """Return whether the micro-batch is the first one of its checkpoint."""
    return spark_batch() == 0


def write_version() -> int:
    """Return the version of what this task writes."""
    task = TaskContext.get()
    assert task is not None
    return int(task.getLocalProperty(WRITE_VERSION) or 0)
