"""Conformance kit: the requirements on connectors, tried on a real system; its result is a row of the table.

`check_sink` and `check_source` try everything and return a `Conformance`; `require` raises when a check has failed.
"""

from penstock.testing.connectors.conformance import Conformance, NonconformingError, Outcome
from penstock.testing.connectors.custom_connectors import open_custom_sink, open_custom_source
from penstock.testing.connectors.sink_checks import SINK_CHECKS, SinkUnderTest, StoredRecord, check_sink
from penstock.testing.connectors.source_checks import SOURCE_CHECKS, SourceUnderTest, check_source

__all__ = [
    "SINK_CHECKS",
    "SOURCE_CHECKS",
    "Conformance",
    "NonconformingError",
    "Outcome",
    "SinkUnderTest",
    "SourceUnderTest",
    "StoredRecord",
    "check_sink",
    "check_source",
    "open_custom_sink",
    "open_custom_source",
]
