"""Debian's packages for tests: installed where they are missing and that is possible."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

# Tests run in several processes, and Debian's tools refuse to work beside each other.
_LOCK = Path(tempfile.gettempdir()) / "penstock-tests-apt.lock"


def install_or_skip(package: str, what: str) -> str:
    """Install a package, or skip the test where nobody may; gives what the installation said of errors."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.skip(f"{what} is not installed: apt-get install {package}")
    install = f"apt-get -qq update; apt-get -qq install -y --no-install-recommends {package}"
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Nobody is there to answer questions.
        installed = subprocess.run(
            ["sh", "-c", install],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    return installed.stderr.strip()[-300:]
