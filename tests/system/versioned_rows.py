"""Rows for sinks of Cassandra and OpenSearch, written as a task of one micro-batch writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.bindings.types import Binding
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.sinks.base import RejectingTask, Rejection, Sink, TaskContext

READING = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
CHANGE = record_type("_change STRING NOT NULL, sensor BIGINT NOT NULL, celsius DOUBLE")


def started_sink(binding: Binding, kind: RecordType = READING, key: Sequence[str] | None = None) -> Sink:
    """Return the sink of a run that has just begun."""
    sink = open_sink(binding, kind, None, upsert_key=key)
    sink.prepare("line", "")
    return sink


def rows(kind: RecordType, *values: tuple[Any, ...]) -> pa.RecordBatch:
    """Return records with these values."""
    return pa.RecordBatch.from_pylist(
        [dict(zip(kind.field_names, row, strict=True)) for row in values], kind.schema
    )


def write(sink: Sink, version: int, *blocks: pa.RecordBatch) -> list[Rejection]:
    """Write a micro-batch of one sink partition, and return the rejected records."""
    task, rejected = sink.task(TaskContext(0, 0, 0, "line", version), READING), []
    assert isinstance(task, RejectingTask)
    for block in blocks:
        task.write(block, None)
        rejected += task.rejections()
    task.finish()
    return rejected
