"""JVM start: the settings and the environment with which Spark's JVM is started. Imports no PySpark."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.machine.class_archive import archive_options
from penstock.machine.jars import bare_filesystem_jar, pyspark_folder
from penstock.machine.java import find_java
from penstock.machine.limits import LOCAL_HEAP_MB
from penstock.machine.python import interpreter_without
from penstock.machine.spark_home import quick_spark_home
from penstock.spark.startup.fork_client import ADDRESS
from penstock.spark.startup.fork_server import CLIENT, fork_server_address

__all__ = ["JvmStart", "jvm_environment", "jvm_settings", "start_environment", "variables_set"]

# The JVM mostly moves bytes of packed rows, and its optimizing compiler would compete with the Python workers for the
# cores for a minute before it pays off. Measured on 2 cores: without it, a run of 24 M rows from files is 15 to 30 %
# faster, and the median latency from Kafka to Kafka in the first minute is 270 ms instead of 380 ms. Without it, the
# JVM's default code cache is 48 MiB. Spark alone needs that much, so every two minutes half of the code was discarded
# and compiled again, and the JVM took a third more CPU time. The unused part of the larger cache takes no memory.
_QUICK_COMPILER: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=160m")

# For sessions that only read state, which may be large; for real time, where the JVM is not on the path of records; and
# for few cores: on 2 cores jobs from Kafka to Kafka take a tenth less CPU time. G1, the default, lets garbage of large
# objects accumulate until the heap has its maximum size. The young generation grows with the heap, and gains nothing
# from it. What a micro-batch in real time needs until it has committed must fit into its survivor spaces, 16 MB each:
# else it becomes old, and a full collection of 180 ms follows every four micro-batches. Spark starts with 75 MB of
# objects and 21 MB of classes; with less room its start has full collections.
_LEAN_HEAP: Final = (
    "-XX:+UseSerialGC",
    "-Xms192m",
    "-XX:NewSize=96m",
    "-XX:MaxNewSize=96m",
    "-XX:SurvivorRatio=4",
    "-XX:MinHeapFreeRatio=30",
    "-XX:MaxHeapFreeRatio=50",
    "-XX:MetaspaceSize=96m",
)
# The allocator of native libraries has arenas for each thread, and keeps the free memory of each. So does Arrow's own,
# mimalloc, of which a worker with ten threads kept 120 MB where 50 MB were in use. Buffers of 4 MB or more are given
# back at once; by default the allocator keeps those of up to 32 MB after the first. Of free memory 32 MB stay, which
# the next round of records takes again, without faults of new pages.
_LEAN_ENVIRONMENT: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
# For the short-lived JVM that composes the command line of Spark's JVM.
_LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


@dataclass(frozen=True)
class JvmStart:
    """The settings that matter when the JVM starts; equal ones start the same JVM.

    `heap_mb` is the limit of its heap on this machine, and `is_lean` says that it uses as little memory as possible.
    `more` are the user's settings of Spark.
    """

    master: str
    heap_mb: int = LOCAL_HEAP_MB
    is_lean: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the tasks run on this machine."""
        return self.master.startswith("local")


def jvm_settings(start: JvmStart, properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of Spark that count when the JVM starts, including these system properties."""
    log4j = Path(__file__).parents[1] / "log4j2.properties"
    options = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        *(f"-D{name}={value}" for name, value in (properties or {}).items()),
        *_QUICK_COMPILER,
        *(_LEAN_HEAP if start.is_lean else ()),
    ]
    found = {"spark.master": start.master}
    if start.is_local:
        options += archive_options(find_java())
        found["spark.driver.extraClassPath"] = str(bare_filesystem_jar())
        found["spark.driver.memory"] = f"{start.heap_mb}m"
    found["spark.driver.extraJavaOptions"] = " ".join(map(shlex.quote, options))
    return found | dict(start.more)


def jvm_environment(start: JvmStart) -> dict[str, str]:
    """Return the environment of the JVM, and so of the workers on this machine: this process's with some variables."""
    added = {"PYSPARK_PYTHON": _worker_python(start), "SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS}
    if start.is_lean:
        added |= _LEAN_ENVIRONMENT
    if start.is_local:
        added["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Otherwise the same Java would be examined again under its other path.
    fixed = {"JAVA_HOME": str(find_java().home)}
    if start.is_local:
        fixed[ADDRESS] = fork_server_address()
    return {**added, **os.environ, **fixed}


def start_environment(start: JvmStart) -> dict[str, str]:
    """Return the further variables of the JVM, which this process does not keep: they say where Spark is."""
    if start.is_local:
        return {}
    # On this machine it makes no difference for workers, which run elsewhere and with an interpreter of the user's.
    return {"SPARK_HOME": str(quick_spark_home(Path(os.environ.get("SPARK_HOME") or pyspark_folder())))}


@contextlib.contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment, and restore their values afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _worker_python(start: JvmStart) -> str:
    """Return the interpreter of workers, which must have penstock's dependencies.

    It is this process's, unless a setting names another. Spark itself applies that setting only when it starts the
    driver.
    """
    named = start.more.get("spark.pyspark.python")
    if named is not None:
        return named
    return str(_quick_python()) if start.is_local else sys.executable


def _quick_python() -> Path:
    """Return a fast-starting interpreter for Spark's Python processes on this machine.

    About ten of them start before the first result. Spark puts its own zip of PySpark at the front of the import path,
    where every process compiles it again; this interpreter leaves it out.
    """
    library = pyspark_folder() / "python" / "lib"
    path = [library / "pyspark.zip", *sorted(library.glob("py4j-*-src.zip"))]
    return interpreter_without(path, forked=(ADDRESS, CLIENT))
