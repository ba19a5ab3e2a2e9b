"""The benchmark of joins, in its small form: it measures joins that find what they should."""

from __future__ import annotations

import pytest
from benchmarks.joins import measured


@pytest.mark.parametrize("kind", ["interval", "as-of"])
def test_the_benchmark_joins_records(kind: str) -> None:
    """Most records of a key meet others within the interval, and have a version soon after the start."""
    rate, emitted = measured(kind, 5_000, 100, 4)
    assert rate > 0
    assert emitted > 10_000
