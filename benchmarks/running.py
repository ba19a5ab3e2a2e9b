"""Running: the temperature-control job, or another one, as a process that reads folders until it is asked to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import EXAMPLE, binding_options, end_session, python_process, result_of, run_module

__all__ = ["RunningJob", "run_bounded"]

_PATIENCE_S: Final = 300.0
_STOP_S: Final = 300.0


def run_bounded(
    job: str, bindings: Mapping[str, str], options: Sequence[str], work: Path
) -> tuple[dict[str, Any], int]:
    """Run a job on all its input, in its own process, with further options of `run_job`.

    Returns its account and its peak memory in MB. The folder has its checkpoint and its log.
    """
    arguments = [
        job,
        "--bounded",
        "--checkpoint",
        str(work / "checkpoint"),
        *options,
        *binding_options(bindings),
    ]
    return run_module("benchmarks.run_job", arguments, work / "stderr.log")


class RunningJob:
    """The job in its own process, with checkpoint and log in a folder.

    `run_job`, which has accounts of its micro-batches, runs it, or another command: a module and its first arguments.
    `options` are those of the command, which prints the summary as a line of JSON. `patience_s` is how long to wait for
    what the job has to reach.
    """

    def __init__(
        self,
        folder: Path,
        bindings: Mapping[str, str],
        options: Sequence[str],
        command: Sequence[str] = ("benchmarks.run_job",),
        *,
        job: Path = EXAMPLE / "job.py",
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.checkpoint: Final = folder / "checkpoint"
        self._log: Final = folder / "stderr.log"
        module, *arguments = command
        arguments += [str(job), "--checkpoint", str(self.checkpoint), *options, *binding_options(bindings)]
        self._patience_s: Final = patience_s
        self._process: Final = python_process(module, arguments, self._log)

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return self._process.pid

    def check(self) -> None:
        """Raise RuntimeError if the job has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"The job has ended; see {self._log}.")

    def await_true(self, what: str, condition: Callable[..., bool], poll_s: float = 0.05) -> None:
        """Wait for a condition. Raises RuntimeError if the job has ended, or the wait takes too long."""
        deadline = time.monotonic() + self._patience_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The job did not reach {what}; see {self._log}.")
            time.sleep(poll_s)

    def end(self) -> dict[str, Any]:
        """Stop the job and any processes it has left behind; return its account."""
        self._process.send_signal(signal.SIGTERM)
        try:
            output, _ = self._process.communicate(timeout=_STOP_S)
        finally:
            end_session(self._process)
        return result_of(self._process, output, self._log)
