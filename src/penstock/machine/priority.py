"""The priority of a process: let others have the cores first where both want them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["call_yielding", "yield_cores"]

_Result = TypeVar("_Result")

# The kernel gives such a thread a tenth of a core that others want as well.
_NICENESS: Final = 10
_LOWEST: Final = 19


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


def call_yielding(function: Callable[[], _Result]) -> _Result:
    """Call a function in a thread with the lowest priority, and return its result."""
    with concurrent.futures.ThreadPoolExecutor(1, "yielding", _yield_thread) as pool:
        return pool.submit(function).result()


def _yield_thread() -> None:
    if Path("/proc/self/task").exists():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
