"""The Spark session: settings that are safe for state from the first day, connectors, and code for the workers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import penstock
from penstock.local.jars import bare_filesystem_jar, spark_kafka_jars
from penstock.local.java import find_java

__all__ = ["SessionSettings", "open_session", "ship_code"]

# What holds for every session. The state store's settings are kept in a checkpoint for its life.
_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
    # Packed rows are few and fat: batches between Spark and Python are bounded by bytes rather than rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # A micro-batch is planned anew each time; what a query plan cannot gain here only costs time.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

# The JVM mostly moves bytes of packed rows. Its optimising compiler would compete with the Python workers for the cores
# for a minute before it pays; measured on 2 cores, a run of 24 M rows is 15 to 30 % faster without it.
_JVM_OPTIONS: Final = " -XX:TieredStopAtLevel=1"

_LOCAL_FILESYSTEM: Final[dict[str, str]] = {
    # Without native Hadoop libraries each checkpoint file costs a forked chmod; this file system does without.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@dataclass(frozen=True)
class SessionSettings:
    """What a session depends on.

    `parallelism` is the number of tasks of each keyed level; `log_file` takes Spark's log and all that workers print.
    """

    app_name: str
    master: str
    parallelism: int
    needs_kafka: bool
    log_file: Path
    retained_batches: int = 100
    more: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def open_session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A Spark session with penstock's settings. Raises JavaNotFoundError without a Java to run on.

    Where this process has a Spark context already, the session shares it and leaves it running.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        session = running.newSession()
        for name, value in _all_settings(settings).items():
            if name.startswith("spark.sql."):
                session.conf.set(name, value)
        yield session
        return
    session = _start(settings)
    try:
        yield session
    finally:
        session.stop()


def _start(settings: SessionSettings) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Workers must run on this interpreter, or they lack penstock's dependencies.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(settings.app_name).master(settings.master)
    for name, value in _all_settings(settings).items():
        builder = builder.config(name, value)
    with _stderr_to(settings.log_file):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send to a file what processes started meanwhile write to standard error: the JVM's and the workers' notes."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _all_settings(settings: SessionSettings) -> dict[str, str]:
    found = dict(_SETTINGS)
    found["spark.sql.shuffle.partitions"] = str(settings.parallelism)
    log4j = Path(__file__).with_name("log4j2.properties")
    found["spark.driver.extraJavaOptions"] = (
        f"-Dlog4j2.configurationFile={log4j.as_uri()} -Dpenstock.log={settings.log_file}{_JVM_OPTIONS}"
    )
    found["spark.sql.streaming.minBatchesToRetain"] = str(settings.retained_batches)
    if settings.master.startswith("local"):
        found |= _LOCAL_FILESYSTEM
        found["spark.driver.extraClassPath"] = str(bare_filesystem_jar())
        found["spark.driver.bindAddress"] = "127.0.0.1"
        found["spark.driver.host"] = "127.0.0.1"
        found["spark.driver.memory"] = "2g"
    if settings.needs_kafka:
        found["spark.jars"] = ",".join(str(jar) for jar in spark_kafka_jars())
    found.update(settings.more)
    return found


def ship_code(session: SparkSession, folder: Path, job_modules: Sequence[Path]) -> None:
    """Make penstock and the job's modules importable in the workers, wherever they run."""
    package = Path(penstock.__file__).parent
    files = [(path, Path("penstock") / path.relative_to(package)) for path in sorted(package.rglob("*.py"))]
    files += [(path, Path(path.name)) for path in job_modules]
    digest = hashlib.sha256(b"".join(str(name).encode() + path.read_bytes() for path, name in files))
    folder.mkdir(parents=True, exist_ok=True)
    # Named by content: Spark refuses a second file of the same name.
    archive = folder / f"penstock-code-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path, name in files:
            target.write(path, name)
    session.sparkContext.addPyFile(str(archive))
