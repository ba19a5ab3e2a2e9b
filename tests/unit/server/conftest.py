"""Shared fixtures of server tests: the API with its own store, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_support import RestPlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RestPlace]:
    """Return a home with a job that may be submitted, and its API, without a manager."""
    made = RestPlace(tmp_path)
    yield made
    made.close()
