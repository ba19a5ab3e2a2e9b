"""A process that writes micro-batches to Cassandra or OpenSearch, as a job does: `versioned_writer.py URI
FOLDER`.

Each process takes over the checkpoint in the folder, and has a file beside it with the number of its next
micro-batch; the largest counts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
from store_writer import LINEAGE, batch_of, next_batch

from penstock.bindings.parse import parse_binding
from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.write_versions import WriteVersions
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

_RECORD = record_type("key BIGINT NOT NULL, number BIGINT")


def main(uri: str, folder: Path) -> None:
    """Write micro-batches for ever."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    ownership = Ownership.take(checkpoint)
    versions = WriteVersions(checkpoint, ownership)
    sink = open_sink(parse_binding("latest", uri, "sink"), _RECORD, None)
    sink.prepare(LINEAGE, "")
    while True:
        number = next_batch(folder)
        task = sink.task(TaskContext(number, 0, 0, LINEAGE, versions.next()), _RECORD)
        rows = batch_of(number)
        for first in range(0, len(rows), 5):
            task.write(pa.RecordBatch.from_pylist(rows[first : first + 5], _RECORD.schema), None)
        sink.commit(number, [task.finish()])
        ownership.check()
        new = folder / f"{os.getpid()}.new"
        new.write_text(str(number + 1))
        new.replace(new.with_suffix(".next"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
