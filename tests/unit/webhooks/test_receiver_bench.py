"""The benchmark of requests to a job, in small: both servers take all records."""

from __future__ import annotations

from benchmarks.http_receiver import measure


def test_both_servers_take_all_records() -> None:
    """`measure` ends the benchmark otherwise."""
    found = measure(5, 10, 1)
    assert found["records"] == 400
    assert min(found["wall"].values()) > 0
