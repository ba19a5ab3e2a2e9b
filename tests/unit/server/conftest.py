"""What tests of the server share: the API, with a store of its own, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_support import RestPlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RestPlace]:
    """A home with a job that may be submitted, and the API over it; no manager looks after it."""
    made = RestPlace(tmp_path)
    yield made
    made.close()
