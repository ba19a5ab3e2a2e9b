"""Objects of a store as a source beside the plain client and pyarrow, which read the same objects, in turns.

The client is obstore, or hdfs-native for HDFS. Alone it lists the prefix and makes Arrow columns of each object in
memory. penstock lists it, too, writes the list of objects by which a replay reads the same, copies each object to disk,
and gives each row its place; it reads as one task of a micro-batch. Lines of JSON become records on both sides, by
msgspec. Endpoint and keys come from the environment. Times are those of the processor, without that of the server.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.decoding_turns import measure, print_found
from benchmarks.object_sink import READING, blocks_of
from benchmarks.plain_stores import open_plain_store
from benchmarks.report import print_json
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FileFormat, ObjectsBinding
from penstock.records.json_lines import JsonLines
from penstock.records.wire_formats import JsonFormat
from penstock.sinks.object_sink import open_folder
from penstock.sources.object_log import ObjectLog

_OBJECTS: Final = 8
_FORMATS: Final[tuple[FileFormat, ...]] = ("parquet", "csv", "jsonl")


def encoded(table: pa.Table, file_format: FileFormat) -> bytes:
    """Return rows as a file."""
    out = io.BytesIO()
    if file_format == "parquet":
        pq.write_table(table, out)
    elif file_format == "csv":
        pa.csv.write_csv(table, out)
    else:
        lines = JsonLines(READING)
        for batch in table.to_batches():
            out.write(lines.encode(batch))
    return out.getvalue()


def contestants(uri: str, file_format: FileFormat, rows: int, folder: Path) -> dict[str, Callable[[], int]]:
    """Put objects below a new prefix, and return who reads them."""
    place = f"{uri}/{uuid.uuid4().hex}"
    store = open_plain_store(place)
    table, size = pa.Table.from_batches(blocks_of(rows)), -(-rows // _OBJECTS)
    for number, first in enumerate(range(0, rows, size)):
        content = encoded(table.slice(first, size), file_format)
        store.put(f"{number:03}.{file_format}", content)
    binding = parse_binding("rows", f"{place}?format={file_format}", "data")
    assert isinstance(binding, ObjectsBinding)
    logs, form = itertools.count(), JsonFormat(READING, allow_nan=False)

    def by_penstock() -> int:
        log = ObjectLog(binding, open_folder, folder / f"{next(logs)}.files")
        log.check()
        begin, found = log.beginning(), 0
        for chunk in log.read(log.splits(begin, log.latest(begin, limited=False), 1), READING):
            found += len(chunk.batch) if chunk.batch is not None else len(form.decode(chunk.raw).batch)
        return found

    def by_client() -> int:
        found = 0
        for path in store.paths():
            content = store.get(path)
            if file_format == "parquet":
                found += len(pq.read_table(pa.BufferReader(content)))
            elif file_format == "csv":
                found += len(pa.csv.read_csv(pa.BufferReader(content)))
            else:
                found += len(form.decode(pa.array(content.splitlines(), pa.binary())).batch)
        return found

    return {"penstock": by_penstock, f"{store.name} and pyarrow": by_client}


def measure_objects(uri: str, file_format: FileFormat, rows: int, rounds: int) -> dict[str, Any]:
    """Return what `decoding_turns.measure` finds."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(contestants(uri, file_format, rows, Path(folder)), rows, rounds)


def main() -> None:
    """Measure all formats, and print tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", required=True, help="s3://BUCKET/PREFIX or hdfs://HOST:PORT/PREFIX")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    results = {name: measure_objects(given.uri, name, given.rows, given.rounds) for name in _FORMATS}
    for name, found in results.items():
        print_found(f"Rows of {name} per second of processor time", found, "read by", "rows/s")
    print_json({"object_source": results})


if __name__ == "__main__":
    main()
