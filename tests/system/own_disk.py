"""Runs penstock as on another machine: the folder in PENSTOCK_TEST_DISK is an empty disk private to this
process.

Its children share that disk. `--exec PROGRAM ARGUMENTS` runs another program in this way. `--join PROCESS`
runs penstock with the disk, and so on the machine, of a process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

__all__ = ["DISK", "can_have_own_disk"]

DISK: Final = "PENSTOCK_TEST_DISK"
_NEW_MOUNTS: Final = 0x00020000
_NEW_USERS: Final = 0x10000000
_system: Final = ctypes.CDLL(None, use_errno=True)


def can_have_own_disk() -> bool:
    """Return whether this system lets a process have private mounts."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _system.unshare(_NEW_USERS | _NEW_MOUNTS) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _join(process: str) -> None:
    working = Path.cwd()
    for kind, flag in (("user", _NEW_USERS), ("mnt", _NEW_MOUNTS)):
        opened = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
        if _system.setns(opened, flag) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(opened)
    os.chdir(working)


def _mount_own_disk(folder: str) -> None:
    user, group = os.getuid(), os.getgid()
    if _system.unshare(_NEW_USERS | _NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if _system.mount(b"disk", os.fsencode(folder), b"tmpfs", 0, b"mode=700") != 0:
        raise OSError(ctypes.get_errno(), "mount")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--join"]:
        _join(sys.argv[2])
        del sys.argv[1:3]
    else:
        _mount_own_disk(os.environ[DISK])
    if sys.argv[1:2] == ["--exec"]:
        os.chdir(os.environ[DISK])
        os.execv(sys.argv[2], sys.argv[2:])
    from penstock.cli.__main__ import main

    sys.argv[0] = "penstock"
    main()
