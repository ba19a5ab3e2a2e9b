"""The jobs of the benchmark of tables: totals of groups, their first rows, their newest row, and moving sums."""

from __future__ import annotations

import penstock as ps

__all__ = ["COUNT", "READING", "newest", "over", "top", "totals"]

READING = "key BIGINT NOT NULL, place BIGINT NOT NULL, at BIGINT NOT NULL, value DOUBLE NOT NULL"
COUNT = 10


def _readings(name: str) -> tuple[ps.Job, ps.DataStream]:
    job = ps.Job(name)
    return job, job.data_stream(
        "readings", schema=READING, event_time="at", watermarks=ps.Watermarks.bounded("2s")
    )


totals, _grouped = _readings("totals")
_grouped.group_by("key").aggregate(
    "totals",
    {
        "count": ps.Aggregate.count(),
        "sum": ps.Aggregate.sum("value"),
        "mean": ps.Aggregate.avg("value"),
        "max": ps.Aggregate.max("value"),
    },
).sink_to("rows", changes="upserts")

top, _grouped = _readings("top")
_grouped.group_by("place").top("top", COUNT, order_by=["value DESC"]).sink_to("rows", changes="records")

newest, _grouped = _readings("newest")
_grouped.group_by("key").deduplicate("newest", keep="last").sink_to("rows", changes="records")

over, _grouped = _readings("over")
_grouped.group_by("key").over("over", {"sum": ps.Aggregate.sum("value")}, rows=COUNT - 1).sink_to("rows")
