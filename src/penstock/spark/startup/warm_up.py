"""Warming up: let Spark load classes and start Python workers while the query is still being described.

Starting a query is a chain of short-lived helper processes that the JVM waits for, with the cores idle. A small job
beside it runs through the parts that the first micro-batch needs; it takes nothing from the query, and its result is
of no interest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.startup.worker_daemon import import_for_tasks

__all__ = ["warm_up"]

_ROWS: Final = "id LONG"


def warm_up(spark: SparkSession) -> None:
    """Start the small job, in the background. It may fail unseen: what keeps it from running, the query will report."""
    threading.Thread(target=_run, args=(spark,), name="penstock-warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    # A session that is stopped meanwhile has no JVM to ask any more, and no context.
    with contextlib.suppress(Py4JError, PySparkException, OSError, AttributeError):
        # Extracts and loads a native library of some 50 MB.
        spark.sparkContext._jvm.org.rocksdb.RocksDB.loadLibrary()  # type: ignore[union-attr]  # noqa: SLF001
        tasks = spark.sparkContext.defaultParallelism
        rows = spark.range(tasks, numPartitions=tasks).mapInArrow(_touch, _ROWS)
        rows.write.format("noop").mode("overwrite").save()


def _touch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: import what the query's tasks will import, where their parent has not done so."""
    import_for_tasks()
    yield from batches
