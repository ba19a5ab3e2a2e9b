"""Debian's packages for tests: installed where they are missing and that is possible."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

# Tests run in several processes. What one of them installs is not whole for the others until it is done, and Debian's
# tools refuse to work beside each other.
_LOCK = Path(tempfile.gettempdir()) / "penstock-tests-apt.lock"

_Found = TypeVar("_Found")


def find_or_install(find: Callable[[], _Found | None], package: str, what: str) -> _Found:
    """What is found of a package, which is installed if need be; where nobody may, the test is skipped."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find()
        if found is not None:
            return found
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            pytest.skip(f"{what} is not installed: apt-get install {package}")
        said = _install(package)
        found = find()
    if found is None:
        pytest.skip(f"{what} cannot be installed: {said}")
    return found


def _install(package: str) -> str:
    """Install a package; gives what is said of errors."""
    install = f"apt-get -qq update; apt-get -qq install -y --no-install-recommends {package}"
    installed = subprocess.run(
        ["sh", "-c", install],
        # Nobody is there to answer questions.
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    return installed.stderr.strip()[-300:]
