"""The priority of a process: let other processes have the cores first."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

__all__ = ["continue_yielding", "yield_cores", "yield_process", "yield_to_jobs"]

# The kernel gives such a thread a tenth of a core that others want as well.
_NICENESS: Final = 10
_LOWEST: Final = 19
# A quarter of a core that a job wants as well: somebody waits for the answer.
_OF_READERS: Final = 5
_SESSION_PRIORITY: Final = Path("/proc/self/autogroup")


def yield_cores(pid: int) -> None:
    """Lower the priority of all threads of a process, and so of the threads and processes that they start.

    On Linux every thread has a priority of its own. Elsewhere nothing happens.
    """
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        # A thread that has ended meanwhile needs no priority.
        with contextlib.suppress(ProcessLookupError):
            own = int(thread.name)
            # Only root may raise a priority again.
            os.setpriority(os.PRIO_PROCESS, own, max(os.getpriority(os.PRIO_PROCESS, own), _NICENESS))


def yield_process() -> None:
    """Give this process, and all that it starts, the lowest priority. Nobody may wait for it on a busy machine."""
    _lower(_LOWEST)


def yield_to_jobs() -> None:
    """Give this process, and all that it starts, a low priority, for a short work for which somebody waits."""
    _lower(_OF_READERS)


def _lower(niceness: int) -> None:
    """Lower the priority of this process.

    Linux counts the priority of a process within its session only, and shares the cores between sessions: so that of
    the session is lowered as well if this process has begun it.
    """
    # Only root may raise a priority again.
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), niceness))
    if os.getsid(0) == os.getpid() and _SESSION_PRIORITY.exists():
        # Some containers forbid it, and the kernel allows ten changes in a second on the whole machine.
        with contextlib.suppress(OSError):
            _SESSION_PRIORITY.write_text(str(niceness))


def continue_yielding() -> None:
    """Continue in a child process with a separate session and a low priority, as for `yield_to_jobs`.

    This process waits for the child, passes signals on to it, and exits as it does.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        yield_to_jobs()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
