"""What lets a job start soon is in use: archived classes, and processes forked from one that has imported all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.local.class_archive import archived_classes
from penstock.local.java import find_java
from penstock.runtime.fork_server import fork_server_processes


def test_the_jvm_maps_archived_classes(spark: SparkSession) -> None:
    """With the archive that `make setup` has made; in Java's words it shares."""
    options = archived_classes(find_java())
    assert options, "run make setup"
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    arguments = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(options) <= set(arguments)
    assert "sharing" in jvm.java.lang.System.getProperty("java.vm.info")


def test_workers_have_what_they_need_imported(spark: SparkSession) -> None:
    """Before they do anything, as forks of the fork server."""

    def modules(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        for _ in batches:
            there = {"penstock.runtime.keyed", "pandas"} <= sys.modules.keys()
            yield pa.record_batch({"there": [there], "parent": [os.getppid()]})

    rows = spark.range(1, numPartitions=1).mapInArrow(modules, "there BOOLEAN, parent LONG").collect()
    assert [row.there for row in rows] == [True]
    assert rows[0].parent in fork_server_processes()
