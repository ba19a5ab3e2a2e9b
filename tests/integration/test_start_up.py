"""How the session of jobs is set up: archived classes, a fork server with preloaded modules, and a bounded log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.machine.class_archive import archive_options
from penstock.machine.java import find_java
from penstock.runtime.packed_rows import PACKED_SCHEMA
from penstock.spark.log_source import _LogDataSource
from penstock.spark.startup.fork_server import fork_server_processes


def test_the_jvm_maps_archived_classes(spark: SparkSession) -> None:
    """The archive is made by `make setup`; Java calls it class data sharing."""
    options = archive_options(find_java())
    assert options, "run make setup"
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    arguments = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(options) <= set(arguments)
    assert "sharing" in jvm.java.lang.System.getProperty("java.vm.info")


def test_threads_without_a_session_generate_no_code(spark: SparkSession) -> None:
    """Threads that serve the state of a task are such: the session's setting is the default of its JVM."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    settings = jvm.org.apache.spark.sql.internal.SQLConf
    assert str(settings.getFallbackConf().getConf(settings.CODEGEN_FACTORY_MODE())) == "NO_CODEGEN"


def test_hadoop_s_settings_are_sent_without_their_files(spark: SparkSession) -> None:
    """All of them go to the tasks of each micro-batch."""
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    assert settings.size() > 500
    assert settings.get("io.file.buffer.size") is not None
    assert settings.getPropertySources("io.file.buffer.size") is None


def test_workers_have_what_they_need_imported(spark: SparkSession) -> None:
    """They are forks of the fork server, so this holds before they run any task."""

    def modules(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        for _ in batches:
            there = {"penstock.spark.keyed", "pandas"} <= sys.modules.keys()
            yield pa.record_batch({"there": [there], "parent": [os.getppid()]})

    rows = spark.range(1, numPartitions=1).mapInArrow(modules, "there BOOLEAN, parent LONG").collect()
    assert [row.there for row in rows] == [True]
    assert rows[0].parent in fork_server_processes()


def test_a_source_is_described_as_a_type(spark: SparkSession) -> None:
    """Spark tries that first. It makes an exception for anything else, for which it reads all its texts of errors."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    parsed = parser.parseDataType(_LogDataSource({}).schema())
    assert list(parsed.fieldNames()) == PACKED_SCHEMA.names


def test_spark_s_log_has_a_bound(spark: SparkSession) -> None:
    """It is rotated at that size, and the previous content is kept once."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    properties = jvm.java.lang.System
    log = Path(properties.getProperty("penstock.log"))
    bound = int(properties.getProperty("penstock.log.bytes"))
    logger = jvm.org.apache.logging.log4j.LogManager.getLogger("filler")
    filling = "x" * 1000
    count = 4 * bound // len(filling)
    for number in range(count):
        logger.warn(f"warning {number} of many {filling}")
    logs = {path.name: path for path in log.parent.glob(f"{log.name}*")}
    assert set(logs) == {"spark.log", "spark.log.1"}
    assert all(path.stat().st_size < bound + 2 * len(filling) for path in logs.values())
    kept = logs["spark.log.1"].read_text() + logs["spark.log"].read_text()
    assert f"warning {count - 1} of many" in kept
    assert "warning 0 of many" not in kept
