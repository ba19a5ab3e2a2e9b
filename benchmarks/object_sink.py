"""The sink of object stores beside the plain client, with pyarrow, on the same rows and the same store, in turns.

The client is obstore, or hdfs-native for HDFS. Alone it puts all rows as one file, which is encoded in memory. The sink
writes blocks into a file on disk, puts that under a name with its digest, and creates the manifest. Endpoint and keys
come from the environment.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.plain_stores import open_plain_store
from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FileFormat, ObjectsBinding
from penstock.records.json_lines import JsonLines
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sinks.object_sink import ObjectSink

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
_BLOCK: Final = 50_000
_FORMATS: Final[tuple[FileFormat, ...]] = ("parquet", "csv", "jsonl")


def blocks_of(rows: int) -> list[pa.RecordBatch]:
    """Return rows in blocks."""
    random = np.random.default_rng(1)
    columns = [
        pa.array(random.permutation(rows)),
        pa.array(random.normal(20, 5, rows)),
        pa.array([f"room {number % 100}" for number in range(rows)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, rows, _BLOCK)]


def by_penstock(uri: str, file_format: FileFormat, blocks: Sequence[pa.RecordBatch]) -> float:
    """Write one micro-batch of one task and its manifest; return the seconds that takes."""
    binding = parse_binding("rows", f"{uri}/{uuid.uuid4().hex}?format={file_format}", "sink")
    assert isinstance(binding, ObjectsBinding)
    sink = ObjectSink(binding)
    with tempfile.TemporaryDirectory() as folder:
        sink.prepare("bench", folder)
        begun_s = time.perf_counter()
        task = sink.task(TaskContext(0, 0, 0, "bench"), READING)
        for block in blocks:
            task.write(block, None)
        sink.commit(0, [task.finish()])
        return time.perf_counter() - begun_s


def by_client(uri: str, file_format: FileFormat, blocks: Sequence[pa.RecordBatch]) -> float:
    """Put all rows as one object with the client alone; return the seconds that takes."""
    store, name = open_plain_store(uri), uuid.uuid4().hex
    # The sink's connection is open, too, when its task begins.
    store.put(f"{name}.first", b"")
    begun_s = time.perf_counter()
    out = io.BytesIO()
    table = pa.Table.from_batches(blocks)
    if file_format == "parquet":
        pq.write_table(table, out)
    elif file_format == "csv":
        pa.csv.write_csv(table, out)
    else:
        lines = JsonLines(READING)
        for block in blocks:
            out.write(lines.encode(block))
    out.seek(0)
    store.put(f"{name}.{file_format}", out)
    return time.perf_counter() - begun_s


def measure(uri: str, file_format: FileFormat, rows: int, rounds: int) -> dict[str, Any]:
    """Return the median rows per second of each, and the median of the ratios of a round."""
    blocks = blocks_of(rows)
    runs = [
        (rows / by_penstock(uri, file_format, blocks), rows / by_client(uri, file_format, blocks))
        for _ in range(rounds)
    ]
    found = {
        "penstock": statistics.median(own for own, _ in runs),
        "client": statistics.median(plain for _, plain in runs),
        "ratio": statistics.median(own / plain for own, plain in runs),
    }
    note(f"{file_format}: penstock {found['penstock']:,.0f}/s, client {found['client']:,.0f}/s")
    return found


def main() -> None:
    """Measure all formats, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", required=True, help="s3://BUCKET/PREFIX or hdfs://HOST:PORT/PREFIX")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    results = {name: measure(given.uri, name, given.rows, given.rounds) for name in _FORMATS}
    print_table(
        "Rows per second",
        ["format", "penstock", "client", "ratio"],
        [
            [name, f"{one['penstock']:,.0f}", f"{one['client']:,.0f}", f"{one['ratio']:.2f}"]
            for name, one in results.items()
        ],
        left=("format",),
    )
    print_json({"object_sink": results})


if __name__ == "__main__":
    main()
