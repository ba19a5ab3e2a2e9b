"""Tasks: information for a worker about its current micro-batch."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

__all__ = ["is_first_batch", "spark_batch"]

_BATCH_ID: Final = "streaming.sql.batchId"


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
