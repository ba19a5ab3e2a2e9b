"""Tasks: what a worker knows of the micro-batch that it works on."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

__all__ = ["is_first_batch", "spark_batch"]

_BATCH_ID: Final = "streaming.sql.batchId"


def spark_batch() -> int:
    """The number that Spark gives the micro-batch."""
    task = TaskContext.get()
    assert task is not None
    batch_id = task.getLocalProperty(_BATCH_ID)
    assert batch_id is not None
    return int(batch_id)


def is_first_batch() -> bool:
    """Whether the micro-batch is the first one of its checkpoint."""
    return spark_batch() == 0
