"""Job processes: start `penstock run` as a user would; find, kill and await all processes that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from penstock.jobs.settings import RunSettings

__all__ = [
    "EXAMPLE",
    "JobProcess",
    "Result",
    "await_true",
    "busiest",
    "cli",
    "kill",
    "processes_of",
    "run_arguments",
    "workers_among",
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "temperature_control" / "job.py"

# A JVM start and a first micro-batch take about 15 s on two cores, and several times that on a busy machine.
PATIENCE_S = 150.0
_TAG = "PENSTOCK_TEST_RUN"
_ENGINE = "engine_process"


@dataclass(frozen=True)
class Result:
    """The exit code and output of a finished process."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """Return the JSON object of the last line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


class JobProcess:
    """One `penstock run` in its own process, with all processes that it starts.

    They are identified by an inherited environment variable, so orphans are found too. The working folder is
    an empty one and PYTHONPATH is not set, so that nothing can be imported by accident.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "penstock.cli"),
    ) -> None:
        self._tag = uuid.uuid4().hex
        self._folder = folder / f"run-{self._tag[:8]}"
        working = self._folder / "cwd"
        working.mkdir(parents=True)
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {_TAG: self._tag, "SPARK_LOCAL_DIRS": str(self._folder / "spark")}
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *program, "run", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=working,
                env={**inherited, **own, **(environment or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill all remaining processes, whatever the outcome of the test."""
        for pid in [self.process.pid, *self.family()]:
            kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def out(self) -> str:
        """Return standard output so far."""
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        """Return standard error so far."""
        return (self._folder / "err").read_text()

    @property
    def running(self) -> bool:
        """Return whether the process is running."""
        return self.process.poll() is None

    def wait(self, timeout_s: float = PATIENCE_S) -> Result:
        """Wait for the process to end."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {timeout_s:g} s: {self.out[-500:]} {self.err[-2000:]}"
            ) from None
        return Result(code, self.out, self.err)

    def signal(self, number: int) -> None:
        """Send a signal only to the process that the user started."""
        kill(self.process.pid, number)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to all processes of the foreground group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def family(self) -> dict[int, str]:
        """Return all processes of the run except the first, by id, with their command lines."""
        found = processes_of(self._tag)
        found.pop(self.process.pid, None)
        return found

    def jvms(self) -> list[int]:
        """Return the run's JVM, if any. A dump of its state has another, whose id may be lower."""
        found = [pid for pid, command in self.family().items() if "SparkSubmit" in command]
        return [pid for pid in found if _parent(pid) == self.process.pid]

    def workers(self, *, any_kind: bool = False) -> list[int]:
        """Return the processes in which tasks run; with `any_kind` every Python process except the first."""
        family = self.family()
        modules = (" -m pyspark.", " -m penstock.spark.startup.")
        python = [pid for pid, command in family.items() if any(module in command for module in modules)]
        if any_kind:
            return python
        return workers_among(python)

    def engines(self) -> list[int]:
        """Return the processes of engines, which only a run in real time has."""
        return _named(_ENGINE, self.family())

    def await_end_of_family(self, timeout_s: float = 60.0) -> None:
        """Fail if a process of the run still exists after a timeout."""
        await_true(lambda: not self.family(), lambda: f"left behind: {self.family()}", timeout_s)


def cli(*arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> Result:
    """Run `penstock run` to its end, and check that no process remains."""
    with JobProcess(arguments, folder, environment) as job:
        result = job.wait()
        job.await_end_of_family()
    return result


def run_arguments(file: Path, settings: RunSettings) -> list[str]:
    """Return the arguments of `penstock run` for these settings, for tests that run a job both here and in
    another way.
    """
    options = {
        "checkpoint": settings.checkpoint,
        "parallelism": settings.parallelism,
        "max-held-bytes": settings.max_held_bytes,
        "checkpoint-interval": f"{settings.checkpoint_interval_ms}ms",
    }
    return [
        str(file),
        *(f"-D{name}={uri}" for name, uri in settings.bindings.items()),
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
        *(f"--allow-write={place}" for place in settings.allow_write),
        *(f"--spark={name}={value}" for name, value in settings.spark_settings.items()),
        *(["--bounded"] if settings.bounded else []),
    ]


def await_true(
    condition: Callable[[], Any], otherwise: Callable[[], str], timeout_s: float = PATIENCE_S
) -> None:
    """Wait until a condition holds; fail with a message at the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)


def workers_among(pids: Iterable[int]) -> list[int]:
    """Return those processes in which tasks and, in real time, the engines of slots run."""
    pids = list(pids)
    tasks = _named("worker", pids)
    # The first worker is a daemon that forks one per task.
    return [pid for pid in tasks if _parent(pid) in tasks] + _named(_ENGINE, pids)


def busiest(pids: Iterable[int]) -> int:
    """Return the process with the most CPU time: a worker with a slot, since others only wait for work."""
    return max(pids, key=_worked)


def processes_of(tag: str) -> dict[int, str]:
    """Return the processes whose environment has a tag, by id, with their command lines."""
    marker = f"{_TAG}={tag}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # A zombie process, which its parent has not awaited, has an empty environment.
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace")
        except OSError:
            continue
    return found


def _stat(pid: int) -> list[str]:
    """Return the `stat` fields of a process from its state on; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _worked(pid: int) -> int:
    """Return the CPU time of a process, in kernel ticks."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else -1


def _named(name: str, pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _name(pid) == name]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        # The command's name, in parentheses, may have any characters; the fields after it may not.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
