"""Debian packages: programs that are found on this machine, or installed where that is possible."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import ExternalSystemError

__all__ = ["find_or_install"]

# A package is incomplete for other processes until it is installed, and Debian's tools refuse to run at the same time.
_LOCK: Final = Path(tempfile.gettempdir()) / "penstock-apt.lock"

_Found = TypeVar("_Found")


def find_or_install(find: Callable[[], _Found | None], package: str, what: str) -> _Found:
    """Return what `find` finds of a package, which is installed if it is missing and the user is root on Debian.

    Raises ExternalSystemError where it is missing and cannot be installed.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find()
        if found is not None:
            return found
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise ExternalSystemError(f"{what} is not installed. Run: apt-get install {package}")
        said = _install(package)
        found = find()
    if found is None:
        raise ExternalSystemError(f"{what} cannot be installed: {said}")
    return found


def _install(package: str) -> str:
    """Install a package, and return the messages about errors."""
    install = f"apt-get -qq install -y --no-install-recommends {package}"
    # The lists of packages take a second of processor time to read anew; those that are there may do.
    installed = subprocess.run(
        ["sh", "-c", f"{install} 2> /dev/null || {{ apt-get -qq update; {install}; }}"],
        # There is no user to answer questions.
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    return installed.stderr.strip()[-300:]
