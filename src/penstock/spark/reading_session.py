"""The session in which state is read and dumped: a Spark of its own, beside a job that may run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.session import SessionSettings, open_session

__all__ = ["reading_session"]


@contextlib.contextmanager
def reading_session(*, gives_way: bool = True) -> Iterator[SparkSession]:
    """A Spark session to read state with; with `gives_way` a job that runs beside comes first."""
    if gives_way:
        # The least that there is: the job comes first, and reading takes what it leaves.
        os.nice(19)
    with tempfile.TemporaryDirectory(prefix="penstock-reading-") as folder:
        settings = SessionSettings(
            app_name="penstock state",
            master="local[*]",
            parallelism=len(os.sched_getaffinity(0)),
            needs_kafka=False,
            lean=True,
            log_file=Path(folder) / "spark.log",
        )
        with open_session(settings) as session:
            yield session
