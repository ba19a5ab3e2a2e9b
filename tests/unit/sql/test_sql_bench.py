"""The benchmark of SQL: its queries have the results of DuckDB on the same files, as the benchmark compares them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.sql_speed import Checksum, Sizes, result_of, wanted_of, write_input
from benchmarks.sql_statements import QUERIES

import penstock as ps
from penstock.testing import JobHarness


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_the_rows_that_duckdb_has(tmp_path: Path, name: str) -> None:
    """Count and checksum are equal, whatever the order of rows; most of the input counts."""
    query = QUERIES[name]
    write_input(name, tmp_path, Sizes(keys=20, join_keys=20, rows_per_ms=1), 2_000)
    job = ps.Job(name)
    job.sql(query.penstock_file())
    run = JobHarness(job, parallelism=2)
    for source in query.sources:
        for file in sorted((tmp_path / source).glob("*.parquet")):
            run.send(source, *pq.read_table(file).to_pylist())
    run.finish()
    fields = [*query.names, *(["_change"] if query.changes else [])]
    records = [
        {field: getattr(getattr(record, field), "value", getattr(record, field)) for field in fields}
        for record in run.output("result")
    ]
    (tmp_path / "out").mkdir()
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "out" / "part.parquet")
    wanted = wanted_of(query, tmp_path)
    assert wanted.rows >= (20 if name == "tumble" else 200)
    assert result_of("penstock", query, tmp_path / "out") == wanted
    assert not run.dead_letters()


def test_a_checksum_depends_on_rows_and_not_on_their_order() -> None:
    """Equal rows count as often as they are there; values that change places are another row."""
    ones, twos = np.array([1, 1, 3]), np.array([2, 2, 4])
    found = Checksum.of([ones, twos])
    assert Checksum.of([ones[::-1].copy(), twos[::-1].copy()]) == found
    assert found.rows == 3
    for other in ([twos, ones], [ones[1:], twos[1:]], [ones, np.array([2, 4, 2])]):
        assert Checksum.of(other) != found
