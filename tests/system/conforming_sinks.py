"""Opens sinks for the conformance kit, by a URI, as a job does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.bindings.parse import parse_binding
from penstock.jobs.job_sinks import open_sink
from penstock.sinks.base import Sink
from penstock.testing.connectors import SinkUnderTest

__all__ = ["opening"]


def opening(uri: str, kind: Any = SinkUnderTest.record_type) -> Callable[[], Sink]:
    """Return a function that opens the sink of a URI for a kind of record."""
    binding = parse_binding("alerts", uri, "sink")
    return lambda: open_sink(binding, kind, None)
