"""A process that writes micro-batches to Redis, as a job's driver and tasks do: `store_writer.py URI FOLDER`.

Each process has a file in the folder with the number of its next micro-batch; the largest counts, as if they
shared a checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import RedisBinding
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import TaskContext
from penstock.stores.redis_sink import RedisSink

__all__ = ["KEYS", "LINEAGE", "batch_of", "expected_after", "next_batch"]

KEYS = 40
LINEAGE = "line"
_BLOCKS = 4
_RECORD = record_type("key BIGINT NOT NULL, number BIGINT")


def batch_of(number: int) -> list[dict[str, int]]:
    """Return the records of a micro-batch; some keys have several values."""
    return [
        {"key": (number * 7 + place) % KEYS, "number": number * 1000 + repeat * 100 + place}
        for repeat in range(_BLOCKS)
        for place in range(10)
    ]


def expected_after(batches: int) -> dict[int, int]:
    """Return the value of each key after so many micro-batches."""
    return {row["key"]: row["number"] for number in range(batches) for row in batch_of(number)}


def next_batch(folder: Path) -> int:
    """Return the number of the next micro-batch."""
    return max((int(file.read_text()) for file in folder.glob("*.next")), default=0)


def main(uri: str, folder: Path) -> None:
    """Write micro-batches for ever."""
    binding = parse_binding("latest", uri, "sink")
    assert isinstance(binding, RedisBinding)
    sink = RedisSink(binding, format_of("json", _RECORD), _RECORD)
    sink.prepare(LINEAGE, "")
    while True:
        number = next_batch(folder)
        task = sink.task(TaskContext(number, 0, 0, LINEAGE), _RECORD)
        rows = batch_of(number)
        for first in range(0, len(rows), 5):
            task.write(pa.RecordBatch.from_pylist(rows[first : first + 5], _RECORD.schema), None)
        sink.commit(number, [task.finish()])
        new = folder / f"{os.getpid()}.new"
        new.write_text(str(number + 1))
        new.replace(new.with_suffix(".next"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
