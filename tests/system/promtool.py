"""Prometheus' tool, which checks and tests rules: the installed one, or that of Debian's package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest

__all__ = ["find_promtool", "promtool"]


def promtool(tool: str, *arguments: str | Path, stdin: BinaryIO | None = None) -> str:
    """Run the tool, check that it succeeds, and return its output."""
    command = [tool, *map(str, arguments)]
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def find_promtool(folder: Path) -> str:
    """Return the tool's path. If it is not installed, it is extracted from Debian's package, else the test is
    skipped.
    """
    found = shutil.which("promtool")
    if found is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    # Installing the package would also start its server.
    fetch = "apt-get -qq download prometheus || (apt-get -qq update && apt-get -qq download prometheus)"
    done = subprocess.run(
        ["sh", "-c", f"({fetch}) && dpkg -x prometheus_*.deb ."],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    tool = folder / "usr" / "bin" / "promtool"
    if not tool.exists():
        pytest.skip(f"promtool cannot be fetched: {done.stderr.strip()[-300:]}")
    return str(tool)
