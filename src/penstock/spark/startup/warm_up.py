"""Warming up: make Spark load classes and start Python workers while the query is still being built.

Starting a query is a chain of short-lived helper processes. The JVM waits for them, and the cores are idle. Meanwhile a
small job runs the code paths that the first micro-batch needs. It takes nothing from the query, and its result is
ignored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no stubs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.startup.worker_daemon import import_for_tasks

__all__ = ["warm_up"]

_ROWS: Final = "id LONG"


def warm_up(spark: SparkSession) -> None:
    """Start the small job in the background. Its errors are ignored: the query would report the same ones."""
    threading.Thread(target=_run, args=(spark,), name="penstock-warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    # A session that is stopped meanwhile has no JVM and no context.
    with contextlib.suppress(Py4JError, PySparkException, OSError, AttributeError):
        # Extracts and loads a native library of some 50 MB.
        spark.sparkContext._jvm.org.rocksdb.RocksDB.loadLibrary()  # type: ignore[union-attr]  # noqa: SLF001  # a JVM runs, and there is no public way
        tasks = spark.sparkContext.defaultParallelism
        rows = spark.range(tasks, numPartitions=tasks).mapInArrow(_touch, _ROWS)
        rows.write.format("noop").mode("overwrite").save()


def _touch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import what the query's tasks need, in a worker, unless its parent process has done so."""
    import_for_tasks()
    yield from batches
