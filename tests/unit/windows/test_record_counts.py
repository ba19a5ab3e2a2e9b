"""Record counts: the number of records in a window is an integer, however the window is computed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from domains import Visit

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


@pytest.mark.parametrize("as_columns", [True, False])
def test_the_number_of_records_of_a_window_is_an_integer(as_columns: bool) -> None:
    """It holds for columns and single records; other aggregates stay doubles, and no command selects another
    one.
    """
    job = ps.Job("shop", key_groups=2)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s"))
    windows: Any = visits.key_by("user").window(ps.TumblingWindows("1s"))
    if not as_columns:
        windows = windows.trigger(ps.CountTrigger(2))
    counts = windows.count("counts")
    counts.sink_to("out")
    assert counts.record_type.field("value").arrow_type == pa.int64()
    running = BatchRunner(job, parallelism=1)
    result = running.run({"visits": [("0", [Visit("a", 0), Visit("a", 0)])]})
    found = result.output("out")
    if as_columns:
        found = running.run({"visits": [("0", [Visit("a", 2000)])]}).output("out")
    assert [(type(count.value), count.value) for count in found] == [(int, 2)]
