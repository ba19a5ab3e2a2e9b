"""The process that Spark forks its Python workers from. It imports what tasks need once, for all of them.

Spark starts it as `python -m penstock.spark.startup.worker_daemon pyspark.worker`, where penstock is installed.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

from pyspark import daemon

__all__ = ["import_for_tasks"]

_FOR_TASKS: Final = (
    "pyspark.worker",
    "pyspark.testing.utils",  # by PySpark's own state client, with pandas
    "penstock.spark.keyed",
    "penstock.runtime.record_reader",
    "penstock.runtime.writer",
)


def import_for_tasks() -> None:
    """Import the modules that the tasks of a query need."""
    for name in _FOR_TASKS:
        importlib.import_module(name)


def main() -> None:
    """Import, then fork a worker for each connection until Spark ends."""
    import_for_tasks()
    # These objects stay, so no worker needs to scan them, which would copy their memory pages.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
