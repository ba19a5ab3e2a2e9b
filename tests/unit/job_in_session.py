"""A job that runs in a Spark session of this process, to be looked at and steered while it runs.

A job process of its own costs a JVM each time. A run that nobody kills and that is not about processes does as well
in the session that the tests share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from penstock.jobs.job_loader import load_job
from penstock.jobs.runner import JobRunner, RunHooks, RunSummary
from penstock.jobs.settings import RunSettings

__all__ = ["JobInSession"]

PATIENCE_S = 150.0


class JobInSession:
    """One run of the job of a file, in a thread; a context manager, at whose end the run has ended.

    This process holds the lock of its checkpoint, so whether the job runs is seen by other processes only.
    """

    def __init__(self, session: SparkSession, file: Path, settings: RunSettings) -> None:
        self._session = session
        loaded = load_job(str(file))
        self._runner = JobRunner(loaded.job, settings, loaded.code)
        self._stop = threading.Event()
        self._notes: list[str] = []
        self._summary: RunSummary | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    @property
    def running(self) -> bool:
        """Whether the run has not ended."""
        return self._thread.is_alive()

    @property
    def err(self) -> str:
        """What the run has told so far, and why it failed."""
        return "\n".join([*self._notes, *([] if self._error is None else [repr(self._error)])])

    def await_true(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds while the job runs; raises what ends the job."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if not self.running:
                self.wait()
                assert condition(), f"the job has ended: {self.err}"
                return
            assert time.monotonic() < deadline, f"it does not come to that: {self.err}"
            time.sleep(0.02)

    def stop(self) -> RunSummary:
        """Stop the run as a signal does, and give its summary."""
        self._stop.set()
        return self.wait()

    def wait(self) -> RunSummary:
        """Wait for the end; raises what the run has raised."""
        self._thread.join(PATIENCE_S)
        assert not self.running, f"it does not end: {self.err}"
        if self._error is not None:
            raise self._error
        assert self._summary is not None
        return self._summary

    def _run(self) -> None:
        # Spark knows the active session by the thread.
        sessions = SparkSession._get_j_spark_session_class(self._session._jvm)
        sessions.setActiveSession(self._session._jsparkSession)
        try:
            self._summary = self._runner.run(self._stop, RunHooks(on_note=self._notes.append))
        except Exception as e:  # raised where somebody waits
            self._error = e
