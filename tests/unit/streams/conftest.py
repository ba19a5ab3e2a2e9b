"""What tests of descriptions share: a job with a stream of each kind."""

from __future__ import annotations

import pytest
from described_streams import Streams


@pytest.fixture
def streams() -> Streams:
    """The streams of a new job."""
    return Streams()
