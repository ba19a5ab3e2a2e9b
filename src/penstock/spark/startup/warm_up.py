"""Warming up: make Spark load classes and start Python workers while the query is still being built.

Starting a query is a chain of short-lived helper processes. The JVM waits for them, and the cores are idle. Meanwhile a
small job runs the code paths that the first micro-batch needs. It is independent of the query, and its result is
ignored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no stubs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from penstock.spark.startup.worker_daemon import import_for_tasks

__all__ = ["warm_up"]

_ROWS: Final = "slot INT"
# The server of a task's state needs it for its first answer, and making it takes 0.4 s.
_REFLECTION: Final = "org.apache.spark.sql.catalyst.ScalaReflection$"


def warm_up(spark: SparkSession) -> None:
    """Start the small job in the background. Its errors are ignored: the query would report the same ones."""
    threading.Thread(target=_run, args=(spark,), name="penstock-warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    # A session that is stopped meanwhile has no JVM and no context.
    with contextlib.suppress(Py4JError, PySparkException, OSError, AttributeError):
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # nothing public has the JVM
        # Extracts and loads a native library of some 50 MB.
        jvm.org.rocksdb.RocksDB.loadLibrary()
        tasks = spark.sparkContext.defaultParallelism
        slots = spark.range(tasks, numPartitions=tasks).select(functions.col("id").cast("int").alias("slot"))
        # The code that tells one slot from the next is compiled, and kept for levels, which are grouped alike.
        rows = slots.mapInArrow(_touch, _ROWS).groupBy("slot").applyInArrow(_same, _ROWS)
        rows.write.format("noop").mode("overwrite").save()
        jvm.java.lang.Class.forName(_REFLECTION)


def _touch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import what the query's tasks need, in a worker, unless its parent process has done so."""
    import_for_tasks()
    yield from batches


def _same(group: pa.Table) -> pa.Table:
    """Return the rows of a group."""
    return group
