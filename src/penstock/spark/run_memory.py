"""Memory of a run: its processes on this machine, and the heap of its JVM."""

from __future__ import annotations

import os
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.machine.memory import MemoryUse, family_of, resident_bytes
from penstock.spark.startup.fork_server import fork_server_processes

__all__ = ["MemoryGauge"]


class MemoryGauge:
    """A gauge of the memory of the run that has the session. A sample takes some milliseconds."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm  # noqa: SLF001  # Spark's own metrics are off
        factory = jvm.java.lang.management.ManagementFactory
        self._pid: Final[int] = jvm.java.lang.ProcessHandle.current().pid()
        self._heap: Final = factory.getMemoryMXBean()
        self._collectors: Final = list(factory.getGarbageCollectorMXBeans())

    def sample(self) -> MemoryUse:
        """Measure the memory now. Workers on other machines are not included."""
        heap = self._heap.getHeapMemoryUsage()
        collected_ms = sum(collector.getCollectionTime() for collector in self._collectors)
        return MemoryUse(
            driver_bytes=resident_bytes(os.getpid()),
            jvm_bytes=resident_bytes(self._pid),
            workers_bytes=sum(map(resident_bytes, (*family_of(self._pid), *fork_server_processes()))),
            heap_used_bytes=heap.getUsed(),
            heap_max_bytes=heap.getMax(),
            gc_seconds=collected_ms / 1000,
        )
