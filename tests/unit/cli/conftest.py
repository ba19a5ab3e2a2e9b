"""What tests of the command line share: a server to ask, which listens on a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_rest import ServedRest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServedRest]:
    """A server, and how the command line finds it."""
    made = ServedRest(tmp_path)
    yield made
    made.close()
