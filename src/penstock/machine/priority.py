"""The priority of a process: let others have the cores first where both want them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["yield_cores"]

# The kernel gives such a thread a tenth of a core that others want as well.
_NICENESS: Final = 10


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
