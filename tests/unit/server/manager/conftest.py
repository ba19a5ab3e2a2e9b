"""Shared fixtures of manager tests: a home whose managers start small drivers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_driver
from managed_place import ManagedPlace

from penstock.server.manager import manager as manager_module


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedPlace]:
    """Return a home with one manager, which works when a test calls `look`."""
    monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
    made = ManagedPlace(tmp_path)
    yield made
    made.close()
