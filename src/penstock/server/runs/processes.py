"""Processes: those of runs. Starts each only once, finds it again after a restart of the manager, and ends it.

A run is alive while its lock is held. The manager locks a file in the folder of the run, and the process inherits the
open file: the kernel holds the lock for as long as the process lives, whatever happens to the manager.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

import msgspec

from penstock.base.durable import write_atomically
from penstock.server.lifecycle.decisions import Driver, DriverState, End, EndKind

__all__ = [
    "ALIVE_VARIABLE",
    "BEGUN_FILE",
    "ENDED_FILE",
    "LAUNCH_FILE",
    "OUTPUT_FILE",
    "PROGRESS_FILE",
    "DriverStarted",
    "Ended",
    "EndedKind",
    "Processes",
    "can_launch",
    "cancel_launch",
    "end_session",
    "fail_unstarted",
    "is_alive",
    "job_environment",
    "kill_all",
    "observe",
    "process_of",
    "refuse",
    "started_process",
    "terminate",
]

LAUNCH_FILE: Final = "launch.json"
"""The launch of the process: the work that it should do."""
BEGUN_FILE: Final = "driver.json"
"""The identity of the process, which it writes first."""
PROGRESS_FILE: Final = "progress.json"
"""The progress of the job; written once its query has begun."""
ENDED_FILE: Final = "ended.json"
"""The final status of the run, which the process writes last."""
OUTPUT_FILE: Final = "output.log"
"""The output of the process."""

ALIVE_VARIABLE: Final = "PENSTOCK_ALIVE_FILE"
"""The environment variable with the descriptor of the file whose lock shows that the process is alive."""

_LOCK_FILE: Final = "alive.lock"
_CANCELED_FILE: Final = "canceled"
_OWN_VARIABLES: Final = "PENSTOCK_SERVER_"
_EXITS_WITHIN_S: Final = 1.0
_SESSION_FIELD: Final = 3
_START_FIELD: Final = 19


class DriverStarted(msgspec.Struct, frozen=True):
    """The unambiguous identity of a process: its id, its start in ticks since the boot `boot`, and its host."""

    pid: int
    started_ticks: int
    boot: str
    host: str


EndedKind: TypeAlias = Literal["finished", "stopped", "failed", "refused", "hindered"]


class Ended(msgspec.Struct, frozen=True):
    """The final status of a process: how its run ended, and why."""

    kind: EndedKind
    why: str


# The lock


@contextlib.contextmanager
def _lock(folder: Path, how: int) -> Iterator[int | None]:
    """Hold the lock of a run, and yield its open file; None if another process holds the lock."""
    file = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        yield None
        return
    try:
        yield file
    finally:
        # A process that has inherited the file keeps the lock.
        os.close(file)


def is_alive(folder: Path) -> bool:
    """Return whether the process of a run is alive."""
    if not (folder / _LOCK_FILE).exists():
        return False
    # Shared, so that two observers do not mistake each other for the process.
    with _lock(folder, fcntl.LOCK_SH) as file:
        return file is None


def can_launch(folder: Path) -> bool:
    """Return whether the process of a run has never started, and may still start."""
    return not any((folder / name).exists() for name in (BEGUN_FILE, ENDED_FILE, _CANCELED_FILE))


def cancel_launch(folder: Path) -> None:
    """Make sure that the process of a run never starts, unless it has started already."""
    _write_unless_launched(folder, _CANCELED_FILE, b"")


def refuse(folder: Path, why: str) -> None:
    """End a run whose process cannot be started. Does nothing if the process has started."""
    _write_unless_launched(folder, ENDED_FILE, msgspec.json.encode(Ended("refused", why)))


def fail_unstarted(folder: Path, why: str) -> None:
    """End a run whose process ended before it wrote its identity. Does nothing to other runs."""
    _write_unless_launched(folder, ENDED_FILE, msgspec.json.encode(Ended("failed", why)))


def _write_unless_launched(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock(folder, fcntl.LOCK_EX) as file:
        if file is not None and can_launch(folder):
            write_atomically(folder / name, content)


# Starting


class Processes:
    """The processes that this process has started, and must reap.

    `umask` is the umask of these processes; -1 means that of this one.
    """

    def __init__(self, umask: int = -1) -> None:
        self._umask: Final = umask
        self._started: dict[Path, subprocess.Popen[bytes]] = {}

    def launch(self, folder: Path, command: Sequence[str], launch: bytes, cwd: Path | None = None) -> bool:
        """Start the process of a run in its own session, unless it was started before. Returns whether it was started.

        The descriptor of the inherited lock file is in the environment. `launch` becomes the launch file in the folder.
        Raises OSError if the process cannot be started.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(folder, fcntl.LOCK_EX) as file:
            if file is None or not can_launch(folder):
                return False
            # Bindings may contain secrets, and so may the output of the job.
            with _private(folder / LAUNCH_FILE) as given:
                given.write(launch)
            with _private(folder / OUTPUT_FILE) as output:
                self._started[folder] = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=cwd,
                    env=_environment(file),
                    pass_fds=(file,),
                    umask=self._umask,
                    start_new_session=True,
                )
        return True

    def await_exit(self, folder: Path) -> None:
        """Wait until the ended process of a run can be reaped, if this process started it.

        The kernel releases its lock a moment earlier.
        """
        if folder in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started[folder].wait(_EXITS_WITHIN_S)

    def reap(self) -> dict[Path, int]:
        """Reap the processes that have ended since the last call. Returns exit codes by the folders of runs."""
        found = {
            folder: code for folder, started in self._started.items() if (code := started.poll()) is not None
        }
        for folder in found:
            del self._started[folder]
        return found


def _environment(file: int) -> dict[str, str]:
    """Return the environment of a run's process: that for jobs, and the descriptor of the lock file."""
    return {**job_environment(), ALIVE_VARIABLE: str(file)}


def job_environment() -> dict[str, str]:
    """Return the environment of the manager, without its own variables, which jobs must not see."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}


@contextlib.contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as opened:
        yield opened


# Observing


def observe(folder: Path) -> Driver:
    """Observe a run that has a folder."""
    if is_alive(folder):
        return Driver(DriverState.ALIVE, working=(folder / PROGRESS_FILE).exists())
    if (folder / ENDED_FILE).exists():
        ended = msgspec.json.decode((folder / ENDED_FILE).read_bytes(), type=Ended)
        return Driver(DriverState.ENDED, end=End(EndKind[ended.kind.upper()], ended.why))
    if (folder / BEGUN_FILE).exists():
        why = "Its process ended without a final status; it was killed, or the machine was restarted."
        return Driver(DriverState.ENDED, end=End(EndKind.KILLED, why))
    if (folder / _CANCELED_FILE).exists():
        return Driver(
            DriverState.ENDED, end=End(EndKind.VOIDED, "Its process was canceled before it started.")
        )
    return Driver(DriverState.UNLAUNCHED)


def started_process(folder: Path) -> DriverStarted | None:
    """Return the process of a run; None until it has written its identity."""
    try:
        return msgspec.json.decode((folder / BEGUN_FILE).read_bytes(), type=DriverStarted)
    except FileNotFoundError:
        return None


def process_of(pid: int) -> DriverStarted | None:
    """Return the living process with an id, or None."""
    fields = _stat(pid)
    if fields is None:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return DriverStarted(pid, int(fields[_START_FIELD]), boot, os.uname().nodename)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may contain anything; None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields


# Ending


def terminate(begun: DriverStarted) -> None:
    """Ask a process to end, if its id still belongs to the same process."""
    _signal(begun, signal.SIGTERM)


def kill_all(begun: DriverStarted) -> None:
    """Kill a process and all others in its session: Spark's JVM and the workers."""
    _signal(begun, signal.SIGKILL)
    leader = process_of(begun.pid)
    if leader is not None and leader.started_ticks != begun.started_ticks:
        # The id was reused, which is impossible while any process of the session lives: the session is gone.
        return
    _kill_session(begun)


def end_session() -> None:
    """Kill all other processes in this session, if this one leads it, and then this one."""
    begun = process_of(os.getpid())
    assert begun is not None
    if os.getsid(0) == begun.pid:
        _kill_session(begun)
    os.kill(begun.pid, signal.SIGKILL)


def _kill_session(leader: DriverStarted) -> None:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or (fields := _stat(int(entry.name))) is None:
            continue
        if int(entry.name) != os.getpid() and _is_of_session(leader, fields):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)


def _is_of_session(leader: DriverStarted, fields: list[str]) -> bool:
    return int(fields[_SESSION_FIELD]) == leader.pid and int(fields[_START_FIELD]) >= leader.started_ticks


def _signal(begun: DriverStarted, number: signal.Signals) -> None:
    """Send a signal to a process. A handle is opened first, so that its id cannot be reused after the comparison."""
    try:
        handle = os.pidfd_open(begun.pid)
    except ProcessLookupError:
        return
    try:
        found = process_of(begun.pid)
        if found is not None and (found.started_ticks, found.boot) == (begun.started_ticks, begun.boot):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
