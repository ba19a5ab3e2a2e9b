"""Record counts: how many records a window has is an integer, however its windows are computed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing.batch_runner import BatchRunner

NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Visit:
    page: str
    at: dt.datetime


@pytest.mark.parametrize("as_columns", [True, False])
def test_the_number_of_records_of_a_window_is_an_integer(as_columns: bool) -> None:
    """As columns and record by record; the other aggregates stay doubles, and no command chooses another."""
    job = ps.Job("shop", key_groups=2)
    visits = job.data_stream("visits", schema=Visit, event_time="at", watermarks=ps.Watermarks.bounded("0s"))
    windows: Any = visits.key_by("page").window(ps.TumblingWindows("1s"))
    if not as_columns:
        windows = windows.trigger(ps.CountTrigger(2))
    counts = windows.count("counts")
    counts.sink_to("out")
    assert counts.record_type.field("value").arrow_type == pa.int64()
    running = BatchRunner(job, parallelism=1)
    result = running.run({"visits": [("0", [Visit("tea", NOON), Visit("tea", NOON)])]})
    found = result.output("out")
    if as_columns:
        later = [Visit("tea", NOON + dt.timedelta(seconds=2))]
        found = running.run({"visits": [("0", later)]}).output("out")
    assert [(type(count.value), count.value) for count in found] == [(int, 2)]
