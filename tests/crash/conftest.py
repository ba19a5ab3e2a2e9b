"""Provides a folder in memory in which jobs live and crash."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from life import Life

_MEMORY = Path("/dev/shm")  # no file may reach a real disk


@pytest.fixture(scope="module")
def life() -> Iterator[Life]:
    """Provide the object that lives through jobs, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-crash-", dir=_MEMORY if _MEMORY.is_dir() else None))
    with Life(folder) as found:
        yield found
    shutil.rmtree(folder)
