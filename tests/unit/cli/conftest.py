"""Shared fixtures of the command-line tests: a server that listens on a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_rest import ServedRest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServedRest]:
    """Return a server, and configure the command line to find it."""
    made = ServedRest(tmp_path)
    yield made
    made.close()
