"""Limits of control groups, versions 1 and 2, read from folders that resemble /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.machine.limits import Cores, Memory, cores, memory

MIB = 1 << 20
GROUPS = "sys/fs/cgroup"


def write(root: Path, **files: str) -> None:
    """Write files by path, with `__` for a slash."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Provide a machine with 8 GiB, 6 of them free, and no control groups."""
    write(
        tmp_path, **{"proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {6 << 20} kB\n"}
    )
    return tmp_path


def test_a_machine_without_control_groups_has_all(root: Path) -> None:
    """It counts the cores that this process may use."""
    assert memory(root) == Memory(8192 * MIB, 6144 * MIB)
    assert cores(root) == Cores(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("group", ["", "pods/one"])
def test_a_group_of_the_newer_kind_bounds_both(root: Path, group: str) -> None:
    """File cache is reclaimable, so it counts as free."""
    folder = f"{GROUPS}/{group}".rstrip("/")
    write(
        root,
        **{
            "proc/self/cgroup": f"0::/{group}\n",
            f"{folder}/memory.max": str(1000 * MIB),
            f"{folder}/memory.current": str(900 * MIB),
            f"{folder}/memory.stat": f"anon 1\nfile 2\ninactive_file {300 * MIB}\n",
            f"{folder}/cpu.max": "150000 100000\n",
        },
    )
    assert memory(root) == Memory(1000 * MIB, 400 * MIB)
    assert cores(root).quota == 1.5


def test_a_group_is_bound_by_those_around_it(root: Path) -> None:
    """The smallest limit of its ancestors applies."""
    write(
        root,
        **{
            "proc/self/cgroup": "0::/pods/one\n",
            f"{GROUPS}/pods/one/memory.max": "max\n",
            f"{GROUPS}/pods/one/cpu.max": "400000 100000\n",
            f"{GROUPS}/pods/memory.max": str(500 * MIB),
            f"{GROUPS}/pods/memory.current": str(100 * MIB),
            f"{GROUPS}/pods/cpu.max": "200000 100000\n",
            f"{GROUPS}/cpu.max": "max 100000\n",
        },
    )
    assert memory(root) == Memory(500 * MIB, 400 * MIB)
    assert cores(root).quota == 2


def test_groups_of_the_older_kind_have_a_folder_for_each_controller(root: Path) -> None:
    """A number near the maximum means no limit."""
    write(
        root,
        **{
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n3:pids:/box\n1:name=systemd:/\n",
            f"{GROUPS}/memory/box/memory.limit_in_bytes": str(700 * MIB),
            f"{GROUPS}/memory/box/memory.usage_in_bytes": str(600 * MIB),
            f"{GROUPS}/memory/box/memory.stat": f"inactive_file 5\ntotal_inactive_file {50 * MIB}\n",
            f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712",
            f"{GROUPS}/cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
            f"{GROUPS}/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            f"{GROUPS}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            f"{GROUPS}/cpu,cpuacct/cpu.cfs_period_us": "100000",
            f"{GROUPS}/pids/box/memory.max": "1",
        },
    )
    assert memory(root) == Memory(700 * MIB, 150 * MIB)
    assert cores(root).quota == 0.5


def test_this_machine_can_be_read() -> None:
    """This must work with any limits."""
    found = memory()
    assert 0 < found.available <= found.total
    assert cores().usable >= 1
