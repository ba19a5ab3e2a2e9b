"""Progress: each micro-batch is read once, whatever Spark tells in between."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.progress import ProgressReader


class Told:
    """What Spark has told of itself, as objects of its JVM: a micro-batch, or a look in vain before the next."""

    def __init__(self, number: int, at: int, *, in_vain: bool) -> None:
        phases = {"latestOffset": 1, "triggerExecution": 2} | ({} if in_vain else {"addBatch": 1})
        timestamp = f"2026-12-01T12:{at // 60:02}:{at % 60:02}.000Z"
        self._content: dict[str, Any] = {"batchId": number, "timestamp": timestamp, "durationMs": phases}

    def batchId(self) -> int:  # as Spark calls it
        number: int = self._content["batchId"]
        return number

    def timestamp(self) -> str:
        return str(self._content["timestamp"])

    def json(self) -> str:
        return json.dumps(self._content)


class Query:
    """A query that has told something."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.batches = 0
        self._jsq = SimpleNamespace(
            lastProgress=lambda: self.told[-1] if self.told else None,
            recentProgress=lambda: self.told[-100:],
        )

    def tell(self, *, in_vain: bool) -> None:
        self.told.append(Told(self.batches, len(self.told), in_vain=in_vain))
        self.batches += not in_vain


@given(st.lists(st.sampled_from(["batch", "in vain", "read"]), max_size=60))
def test_each_batch_is_read_once(happenings: list[str]) -> None:
    """In order, also the one behind a look in vain, which has its number; however seldom it is read."""
    query = Query()
    as_spark: Any = query
    reader = ProgressReader(as_spark)
    found = []
    for happening in [*happenings, "read"]:
        if happening == "read":
            found += [progress.batch_id for progress in reader.new()]
            assert found == list(range(query.batches))
            assert reader.new() == []
            assert (None if reader.batch is None else reader.batch.batch_id) == (found[-1] if found else None)
        else:
            query.tell(in_vain=happening == "in vain")
    if query.told:
        assert reader.newest is not None
        assert reader.newest.timestamp.second == (len(query.told) - 1) % 60
