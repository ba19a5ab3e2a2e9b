"""Contestants of benchmarks in the shared Spark session, instead of one process and JVM each."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from benchmarks import run_job
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import app

__all__ = ["contestants_here"]

PATIENCE_S = 150.0
_PENSTOCK = "penstock.cli"
_JOB = "benchmarks.run_job"


def contestants_here(session: SparkSession, monkeypatch: pytest.MonkeyPatch, *benchmarks: Any) -> None:
    """Patch modules of benchmarks to start contestants in the session, however they start them."""

    def start(module: str, arguments: list[str], log: Path) -> ContestantHere:
        assert module == _JOB, "what is stopped by a signal is a job"
        return ContestantHere(session, arguments, log)

    for benchmark in benchmarks:
        for name, replaced in (("run_module", run_module), ("python_process", start), ("end_session", end)):
            if hasattr(benchmark, name):
                monkeypatch.setattr(benchmark, name, replaced)


def run_module(module: str, arguments: list[str], log: Path) -> tuple[dict[str, Any], int]:
    """Return a module's output; its memory is that of the whole process, which the tests do not use."""
    if module == _PENSTOCK:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), 0
    program = importlib.import_module(module)
    # Workers get the functions of a module that is the main program by value, and cannot import it.
    cloudpickle.register_pickle_by_value(program)
    try:
        with mock.patch.object(sys, "argv", [module, *arguments]), redirect_stdout(io.StringIO()) as out:
            program.main()
    finally:
        cloudpickle.unregister_pickle_by_value(program)
    return json.loads(out.getvalue().splitlines()[-1]), 0


class ContestantHere:
    """A job that runs until it gets a signal: a thread that acts as its process."""

    pid = os.getpid()
    args = _JOB

    def __init__(self, session: SparkSession, arguments: list[str], log: Path) -> None:
        self.returncode: int | None = None
        self._output = ""
        self._stop = threading.Event()
        self._run: Callable[[], dict[str, Any]] = lambda: run_job.run(arguments, self._stop)
        self._session = session
        self._log = log
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        """Return the exit code, once it has ended."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Stop the job, for either of these signals."""
        assert number in (signal.SIGINT, signal.SIGTERM)
        self._stop.set()

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Wait for its end; return its output."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"it does not end: {self._log}"
        return self._output, None

    def _work(self) -> None:
        # Spark tracks the active session per thread.
        sessions = SparkSession._get_j_spark_session_class(self._session._jvm)
        sessions.setActiveSession(self._session._jsparkSession)
        try:
            self._output = json.dumps(self._run())
            self.returncode = 0
        except BaseException:  # reported by the reader of the log
            self._log.write_text(traceback.format_exc())
            self.returncode = 1


def end(process: ContestantHere) -> None:
    """Stop all contestants."""
    process.send_signal(signal.SIGTERM)
    process.communicate(PATIENCE_S)
