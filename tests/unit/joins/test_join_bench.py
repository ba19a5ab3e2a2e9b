"""The benchmark of joins at small scale: the joins that it measures find their matches."""

from __future__ import annotations

import pytest
from benchmarks.joins import measured


@pytest.mark.parametrize("kind", ["interval", "as-of"])
def test_the_benchmark_joins_records(kind: str) -> None:
    """Most records of a key have matches within the interval, and a version soon after the start."""
    rate, emitted = measured(kind, 5_000, 100, 4)
    assert rate > 0
    assert emitted > 10_000
