"""Memory: the memory of processes on this machine, as reported by Linux."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["MemoryUse", "family_of", "resident_bytes"]

_PROC: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MemoryUse(msgspec.Struct, frozen=True):
    """The memory of a run at one moment.

    `driver_bytes`, `jvm_bytes` and `workers_bytes` are the resident sets of the driver, its JVM, and the JVM's Python
    processes; shared pages count in each. `gc_seconds` is the time that the JVM has spent on garbage collection.
    """

    driver_bytes: int = 0
    jvm_bytes: int = 0
    workers_bytes: int = 0
    heap_used_bytes: int = 0
    heap_max_bytes: int = 0
    gc_seconds: float = 0.0


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, including shared pages, or 0 if there is no such process."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def family_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process, sorted, without its own."""
    children: dict[int, list[int]] = {}
    for child in _processes():
        parent = _parent(child)
        if parent is not None:
            children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return sorted(found)


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    try:
        # The command's name, in parentheses, may contain anything; the fields after it do not.
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return None
