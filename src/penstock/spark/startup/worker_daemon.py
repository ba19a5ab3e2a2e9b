"""The process that Spark forks its Python workers from, with what tasks need imported beforehand, once for all of them.

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
    """Import what the tasks of a query will import."""
    for name in _FOR_TASKS:
        importlib.import_module(name)


def main() -> None:
    """Import, then fork a worker for each connection until Spark goes away."""
    import_for_tasks()
    # What is there stays, so no worker need look through it, and have pages of its own for that.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
