"""Programs from npm for tests, each installed once into the cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest
from debian import find_or_install

from penstock.machine.cache import cache_folder

__all__ = ["npm_program"]


def _node() -> Path | None:
    node = shutil.which("node")
    return Path(node) if node and shutil.which("npm") else None


def npm_program(package: str, version: str, script: str) -> Path:
    """Return the script of a package; skip the test where it cannot be installed."""
    folder = cache_folder() / f"{package}-{version}"
    find_or_install(_node, "nodejs npm", "Node.js")
    with (cache_folder() / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            install = [
                "npm",
                "install",
                "--prefix",
                str(folder),
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
            ]
            said = subprocess.run(
                [*install, f"{package}@{version}"], capture_output=True, text=True, check=False
            )
            if said.returncode:
                pytest.skip(f"{package} cannot be installed: {said.stderr[-300:]}")
            (folder / "whole").touch()
    return folder / "node_modules" / package / script
