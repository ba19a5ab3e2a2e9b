"""The session that dumps and rescales state: a separate Spark, next to a job that may be running."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.machine.priority import yield_process
from penstock.spark.session import SessionSettings, has_session, open_session

__all__ = ["reading_session"]


@contextlib.contextmanager
def reading_session(*, store: str = "", gives_way: bool = True) -> Iterator[SparkSession]:
    """Open a Spark session to read state with, also from a `store` ("s3" or "hdfs").

    With `gives_way`, a running job comes first.
    In a process that has a session already, for example for tests, that one is used, and the priority stays.
    """
    if gives_way and not has_session():
        # The lowest priority: reading only uses CPU time that the job leaves free.
        yield_process()
    with tempfile.TemporaryDirectory(prefix="penstock-reading-") as folder:
        settings = SessionSettings(
            app_name="penstock state",
            master="local[*]",
            parallelism=len(os.sched_getaffinity(0)),
            lean=True,
            log_file=Path(folder) / "spark.log",
            store=store,
        )
        with open_session(settings) as session:
            yield session
