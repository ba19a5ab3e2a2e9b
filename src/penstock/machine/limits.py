"""Limits: the share of this machine's cores and memory that a process may use, also in a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LOCAL_HEAP_MB", "Cores", "Memory", "cores", "memory"]

LOCAL_HEAP_MB: Final = 2048
"""The heap of the JVM of a job that runs on this machine, in MiB."""

_ROOT: Final = Path("/")
# In cgroup v1, no limit is a very large one.
_UNLIMITED: Final = 1 << 60


@dataclass(frozen=True)
class Cores:
    """The number of cores that a process may run on, and its quota in cores; None means no quota."""

    usable: int
    quota: float | None = None

    @property
    def at_once(self) -> float:
        """How many cores the process may keep busy."""
        return self.usable if self.quota is None else min(self.usable, self.quota)


@dataclass(frozen=True)
class Memory:
    """Memory in bytes: the limit, and what is free now."""

    total: int
    available: int


def cores(root: Path = _ROOT) -> Cores:
    """Return the cores that this process may use."""
    quotas = [found for folder in _control_groups(root) if (found := _quota(folder)) is not None]
    return Cores(len(os.sched_getaffinity(0)), min(quotas, default=None))


def memory(root: Path = _ROOT) -> Memory:
    """Return the memory that this process may use: the machine's, or the container's if that is less."""
    lines = (root / "proc" / "meminfo").read_text().splitlines()
    # Such as "MemTotal:       24117248 kB".
    known = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    found = Memory(known["MemTotal"], known["MemAvailable"])
    for folder in _control_groups(root):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= min(_UNLIMITED, found.total):
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        # The page cache counts as used, but is freed when memory is needed.
        free = limit - used + _inactive_files(folder)
        found = Memory(limit, max(0, min(free, limit, found.available)))
    return found


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, v1 or v2, each followed by its parents."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys" / "fs" / "cgroup"
    for line in lines:
        _, controllers, place = line.split(":", 2)
        names = controllers.split(",")
        if controllers and not {"cpu", "memory"} & set(names):
            continue
        top = base / controllers if controllers else base
        # In a container the path may be that of the host, and the container's own group is at the top.
        folder = top / place.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _quota(folder: Path) -> float | None:
    """Return the number of cores that a control group may use at a time, or None if it is not limited."""
    try:
        granted, period = (folder / "cpu.max").read_text().split()
        return None if granted == "max" else int(granted) / int(period)
    except (OSError, ValueError):
        pass
    older, length = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return older / length if older is not None and length and older > 0 else None


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if the file does not exist or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_files(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    known = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(known.get("total_inactive_file") or known.get("inactive_file") or 0)
