"""Processes: run a contestant alone in its own process, and watch the resources that it and its descendants use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

__all__ = [
    "EXAMPLE",
    "Background",
    "ContestantError",
    "MemoryWatch",
    "Program",
    "Spent",
    "TreeUsage",
    "binding_options",
    "end_session",
    "family_of",
    "proportional_bytes",
    "python_process",
    "result_of",
    "run_module",
    "run_to_end",
]

_ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLE: Final = _ROOT / "examples" / "temperature_control"
_PATIENCE_S: Final = 20.0
_SAMPLE_S: Final = 0.25
_SAMPLE_REST: Final = 40
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ContestantError(RuntimeError):
    """The failure of a contestant's process; the message ends with its last output."""


def binding_options(bindings: Mapping[str, str]) -> list[str]:
    """Return bindings as options of `penstock run` and of `benchmarks.run_job`."""
    return [word for name, uri in bindings.items() for word in ("-D", f"{name}={uri}")]


def python_process(module: str, arguments: list[str], log: Path) -> subprocess.Popen[str]:
    """Start `python -m module` in the project's folder; standard error goes to the log file."""
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )


class Program:
    """Any command in a session of its own, whose output goes to a log file; a context manager that ends it.

    It is asked to end, and killed if it has not ended after `patience_s`.

    >>> with Program(["sleep", "60"], Path("sleep.log")) as program:  # doctest: +SKIP
    ...     program.check()

    """

    def __init__(self, command: Sequence[str], log: Path, patience_s: float = _PATIENCE_S) -> None:
        self._log: Final = log
        self._patience_s: Final = patience_s
        self.started_s: Final = time.time()
        with log.open("ab") as output:
            self._process: Final = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the command itself; its descendants have others."""
        return self._process.pid

    def check(self) -> None:
        """Raise ContestantError if it has ended, with its last output."""
        if self._process.poll() is not None:
            raise ContestantError(_failure(self._process, self._log))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._patience_s)
        end_session(self._process)


class Spent(NamedTuple):
    """What a command has taken: time, CPU time, and its peak of proportional MB."""

    seconds: float
    cpu_s: float
    memory_mb: int


def run_to_end(command: Sequence[str], log: Path) -> Spent:
    """Run a command in a session of its own, with its output in a log file. Raises ContestantError if it fails."""
    begun_s = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        with MemoryWatch(process.pid) as memory:
            process.wait()
            seconds = time.monotonic() - begun_s
    finally:
        end_session(process)
    if process.returncode != 0:
        raise ContestantError(_failure(process, log))
    return Spent(seconds, memory.cpu_s, memory.peak_mb)


def run_module(module: str, arguments: list[str], log: Path) -> tuple[dict[str, Any], int]:
    """Run `python -m module` to its end; return the JSON object in its last line, and its peak of resident MB."""
    process = python_process(module, arguments, log)
    try:
        with MemoryWatch(process.pid) as memory:
            output, _ = process.communicate()
    finally:
        end_session(process)
    return result_of(process, output, log), memory.peak_resident_mb


def result_of(process: subprocess.Popen[str], output: str, log: Path) -> dict[str, Any]:
    """Return the JSON object in the last line of an ended process's output."""
    lines = output.strip().splitlines()
    if process.returncode != 0 or not lines:
        raise ContestantError(_failure(process, log))
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _failure(process: subprocess.Popen[Any], log: Path) -> str:
    last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])
    command = " ".join(map(str, process.args)) if isinstance(process.args, list) else str(process.args)
    return f"{command} ended with {process.returncode}:\n{last}"


def end_session(process: subprocess.Popen[Any]) -> None:
    """End the JVM and the workers as well, if the process has left them behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Background(threading.Thread):
    """Work beside a block, which goes on until `ended` is set at the end of the block; a context manager."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended: Final = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


class MemoryWatch:
    """Samples the memory of a process and all its descendants (driver, JVM, workers) from /proc.

    A page that several processes share counts once in their proportional memory, divided among all that have it, and in
    each of them in their resident memory.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=watch, daemon=True)
            for watch in (self._watch_resident, self._watch_proportional)
        ]
        self._peak_resident = 0
        self._cpu_s = 0.0
        self._peak_proportional: dict[str, int] = {}

    @property
    def peak_mb(self) -> int:
        """The largest sum of the proportional memory of all processes."""
        return _rounded_mb(sum(self._peak_proportional.values()))

    @property
    def peak_resident_mb(self) -> int:
        """The largest sum of the resident memory of all processes."""
        return _rounded_mb(self._peak_resident)

    @property
    def cpu_s(self) -> float:
        """The CPU time of all processes, as it was last seen."""
        return self._cpu_s

    @property
    def peak_parts_mb(self) -> dict[str, int]:
        """The parts of the largest proportional memory: that of the process itself, the JVMs, and all others."""
        return {kind: _rounded_mb(size) for kind, size in self._peak_proportional.items()}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _watch_resident(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            usage = TreeUsage.of(self._pid)
            self._peak_resident = max(self._peak_resident, usage.memory_bytes)
            self._cpu_s = max(self._cpu_s, usage.cpu_s)

    def _watch_proportional(self) -> None:
        pause_s = _SAMPLE_S
        while not self._ended.wait(pause_s):
            begun_s = time.thread_time()
            found = proportional_bytes(self._pid)
            if sum(found.values()) > sum(self._peak_proportional.values()):
                self._peak_proportional = found
            # Linux looks at each page for it, which must not take from what is measured.
            pause_s = max(_SAMPLE_S, _SAMPLE_REST * (time.thread_time() - begun_s))


def proportional_bytes(root: int) -> dict[str, int]:
    """Return the proportional memory of a process and its descendants: of itself, of JVMs, and of all others."""
    found = {"driver": 0, "jvm": 0, "others": 0}
    for process in family_of(root):
        kind = "jvm" if process.name == "java" else "driver" if process.pid == root else "others"
        # A process may have ended meanwhile.
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found[kind] += int(line.split()[1]) << 10
    return found


def _rounded_mb(size: int) -> int:
    return (size + (1 << 19)) >> 20


@dataclass(frozen=True)
class TreeUsage:
    """The usage of a process and its descendants at one moment: resident memory and open files.

    `open_files` are those of the process that has most of them, the JVM of a job: others come and go. `cpu_s` is their
    CPU time since their start, including that of ended descendants.
    """

    memory_bytes: int
    open_files: int
    cpu_s: float

    @classmethod
    def of(cls, root: int) -> TreeUsage:
        """Return the usage of a process and its descendants, read from /proc."""
        family = family_of(root)
        return cls(
            sum(process.memory_bytes for process in family),
            max((_open_files(process.pid) for process in family), default=0),
            sum(process.cpu_s for process in family),
        )


def family_of(root: int) -> list[_Process]:
    """Return a process and its descendants that have not ended, read from /proc."""
    found = {process.pid: process for process in _processes()}
    family = [found[root]] if root in found else []
    for one in family:
        family += [process for process in found.values() if process.parent == one.pid]
    return family


def _open_files(pid: int) -> int:
    """Return the number of open files of a process; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # only their number is needed
    except OSError:
        return 0


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    memory_bytes: int
    cpu_s: float


def _processes() -> Iterator[_Process]:
    """Return every process; its CPU time includes that of its ended children."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                head, _, rest = Path(entry.path, "stat").read_text().rpartition(")")
                fields = rest.split()
                ticks = sum(map(int, fields[11:15]))
                yield _Process(
                    int(entry.name),
                    int(fields[1]),
                    head.partition("(")[2],
                    int(fields[21]) * _PAGE_BYTES,
                    ticks / _TICKS_PER_S,
                )
