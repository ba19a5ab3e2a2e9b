"""Part files: the same records give the same bytes, however they are divided into blocks."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bindings.types import FileFormat
from penstock.records.schemas import record_type
from penstock.sinks.part_files import part_writer

NUMBER = record_type("number BIGINT NOT NULL")


def written(file_format: FileFormat, lengths: Sequence[int]) -> bytes:
    """Return the file of the numbers from 0 on, written in blocks of these lengths."""
    file = io.BytesIO()
    writer = part_writer(file_format, file, NUMBER)
    first = 0
    for length in lengths:
        block = pa.array(range(first, first + length))
        writer.write(pa.RecordBatch.from_arrays([block], schema=NUMBER.schema))
        first += length
    writer.close()
    writer.close()
    return file.getvalue()


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_blocks_make_no_difference(file_format: FileFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet row groups have equal sizes, except the last."""
    monkeypatch.setattr("penstock.sinks.part_files._GROUP_ROWS", 1000)
    whole = written(file_format, [2500])
    assert written(file_format, [1, 998, 2, 1499]) == whole
    assert written(file_format, [125] * 20) == whole
    if file_format == "parquet":
        file = pq.ParquetFile(io.BytesIO(whole))
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert groups == [1000, 1000, 500]
        assert file.read()["number"].to_pylist() == list(range(2500))
