"""Call watch: end a worker in which a call of a model hangs, or takes too much memory, so that the job continues.

A call cannot be interrupted from Python. So a thread looks at the calls that take long; beyond the limits it suspends
the version, in a file that the repetition reads, and ends the process, as a crash would.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ExternalSystemError
from penstock.models.library_places import LibraryPlace
from penstock.models.suspensions import Suspension, suspend

__all__ = ["CallLimits", "CallWatch", "call_watch"]

_POLL_S: Final = 0.1
_STATUS: Final = 71
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class CallLimits:
    """The limits of a call: its time, and the memory by which the process grows meanwhile."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True)
class _Call:
    """A running call: how to suspend its version, when it began, and the memory of the process at that time."""

    library: LibraryPlace
    suspension: Suspension
    limits: CallLimits
    began_s: float
    memory_bytes: int = 0


class CallWatch:
    """Watches the calls of models in this process; `end` ends it, which a test may replace."""

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        self._end: Final = end or _end_process
        self._calls: Final[dict[int, _Call]] = {}
        self._has_calls: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def begin(self, library: LibraryPlace, suspension: Suspension, limits: CallLimits) -> None:
        """Watch a call of this thread, which begins now."""
        if self._pid != os.getpid():
            # Workers are forked, and threads are not.
            self._pid = os.getpid()
            self._calls.clear()
            self._thread = threading.Thread(target=self._watch, name="calls of models", daemon=True)
            self._thread.start()
        self._calls[threading.get_ident()] = _Call(library, suspension, limits, time.monotonic())
        if not self._has_calls.is_set():
            self._has_calls.set()

    def done(self) -> None:
        """Stop watching the call of this thread."""
        self._calls.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            self._has_calls.wait()
            time.sleep(_POLL_S)
            for thread, call in list(self._calls.items()):
                self._look_at(thread, call)
            if not self._calls:
                self._has_calls.clear()
                if self._calls:
                    self._has_calls.set()

    def _look_at(self, thread: int, call: _Call) -> None:
        """End the process if a call exceeds its limits. Most calls are over before anybody looks."""
        if time.monotonic() - call.began_s < _POLL_S:
            return
        now_bytes = _memory_bytes()
        if not call.memory_bytes:
            # Memory that it took before the first look does not count.
            if self._calls.get(thread) is call:
                self._calls[thread] = replace(call, memory_bytes=now_bytes)
            return
        taken_s = time.monotonic() - call.began_s
        reason = ""
        if taken_s > call.limits.time_s:
            reason = f"a call of it has not answered within {call.limits.time_s:g} s"
        elif now_bytes - call.memory_bytes > call.limits.memory_bytes:
            reason = f"a call of it took more than {call.limits.memory_bytes // _MIB:,} MiB of memory"
        if not reason or self._calls.get(thread) is not call:
            return
        try:
            suspend(call.library, msgspec.structs.replace(call.suspension, reason=reason))
        except (OSError, ExternalSystemError) as e:
            # The call still hangs at the next look.
            sys.stderr.write(f"A version of a model cannot be suspended yet: {e}\n")
            return
        self._end()


def _memory_bytes() -> int:
    """Return the memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _end_process() -> None:
    sys.stderr.write("penstock ends this worker, in which a model hangs or takes too much memory.\n")
    sys.stderr.flush()
    os._exit(_STATUS)


call_watch: Final = CallWatch()
"""The watch of this worker."""
