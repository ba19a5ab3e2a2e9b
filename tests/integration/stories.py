"""Runs examples as readers do, but with the jobs in the shared Spark session, and returns their output."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from job_in_session import JobInSession
from pyspark.sql import SparkSession
from state_stores import stop_state_stores
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.settings import RunSettings

__all__ = ["EXAMPLES", "Stories", "cells"]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Stories:
    """Replaces the examples' `running_job.py`, with threads and calls instead of processes."""

    def __init__(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.running_job: Any = importlib.import_module("running_job")
        monkeypatch.setattr(self.running_job, "RunningJob", _job_in(spark, self.running_job))
        monkeypatch.setattr(self.running_job, "subprocess", SimpleNamespace(run=self._run))

    def told(self, example: str, *arguments: str) -> str:
        """Return the output of an example's `run.py` as plain text."""
        self._monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        runpy.run_path(str(EXAMPLES / example / "run.py"), run_name="__main__")
        return self._capsys.readouterr().out

    def beside(self, example: str, module: str) -> Any:
        """Import a module of an example, such as its reference."""
        return importlib.import_module(f"{example}.{module}")

    def _run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        """Run the command line in this process, instead of `subprocess.run`."""
        penstock = self.running_job.PENSTOCK
        assert tuple(command[: len(penstock)]) == penstock
        done = CliRunner().invoke(app, command[len(penstock) :])
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def _job_in(spark: SparkSession, running_job: Any) -> Any:
    """Return a kind of `RunningJob` that is a thread."""

    class StoryJob(running_job.RunningJob):  # type: ignore[misc]  # a class found at run time
        """Stops at a signal, as the process does."""

        def __enter__(self) -> Self:
            (self.folder / "log").write_text("It ran in the session of the tests.")
            settings = RunSettings(
                bindings=self.bindings,
                checkpoint=str(self.checkpoint),
                allow_read=() if self.allow_read is None else (str(self.allow_read),),
                allow_write=() if self.allow_write is None else (str(self.allow_write),),
                from_dump=None if self.from_dump is None else str(self.from_dump),
            )
            self._job = JobInSession(spark, self.job_file, settings).__enter__()
            return self

        def runs(self) -> bool:
            return self._job.running

        def __exit__(self, *error: object) -> None:
            self._job.stop()
            stop_state_stores(spark)

    return StoryJob


def cells(out: str, first: str) -> list[str]:
    """Return the cells of the table row that begins with a text."""
    (row,) = (line for line in out.splitlines() if line.startswith(f"│ {first} "))
    return [cell.strip() for cell in row.strip("│").split("│")]
