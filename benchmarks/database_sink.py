"""The sink of PostgreSQL beside psycopg, which copies the same rows in one transaction, in turns on one server.

psycopg copies whole blocks of CSV that Arrow has made, and, as its manual shows, row by row. With a key it copies into
a temporary table, and inserts from there with ON CONFLICT.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv

from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_sink import PostgresSink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
_COLUMNS: Final = "sensor bigint NOT NULL, celsius double precision, room text"
_BLOCK: Final = 50_000


def blocks_of(rows: int) -> list[pa.RecordBatch]:
    """Return rows of distinct sensors, in blocks."""
    random = np.random.default_rng(1)
    columns = [
        pa.array(random.permutation(rows)),
        pa.array(random.normal(20, 5, rows)),
        pa.array([f"room {number % 100}" for number in range(rows)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, rows, _BLOCK)]


class Contestants:
    """What writes all blocks into a table of their own, and how long it takes."""

    def __init__(self, url: str, *, keyed: bool) -> None:
        self._url: Final = url
        self._keyed: Final = keyed

    def penstock(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The sink, in one task."""
        parts = urllib.parse.urlsplit(self._url)
        table = f"bench_{uuid.uuid4().hex[:12]}"
        query = "?create_table=true&upsert_by=sensor" if self._keyed else "?create_table=true"
        uri = f"postgresql://{parts.netloc}{parts.path}/{table}{query}"
        binding = parse_binding("rows", uri, "sink")
        assert isinstance(binding, PostgresBinding)
        sink = PostgresSink(binding, READING)
        sink.prepare(table, "")
        # The first task of a worker connects; later ones have the connection.
        first = sink.task(TaskContext(0, 0, 0, table), READING)
        first.write(blocks[0].slice(0, 1), None)
        first.finish()
        with psycopg.connect(self._url) as connection:
            connection.execute(f"TRUNCATE {table}")
        begun_s = time.perf_counter()
        task = sink.task(TaskContext(1, 0, 0, table), READING)
        for block in blocks:
            task.write(block, None)
        task.finish()
        return self._checked(table, time.perf_counter() - begun_s, blocks)

    def blocks(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client with blocks of CSV."""

        def send(copy: psycopg.Copy) -> None:
            options = pyarrow.csv.WriteOptions(include_header=False)
            for block in blocks:
                out = io.BytesIO()
                pyarrow.csv.write_csv(block, out, options)
                copy.write(out.getvalue())

        return self._plain(send, "(FORMAT csv)", blocks)

    def rows(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client row by row."""

        def send(copy: psycopg.Copy) -> None:
            for block in blocks:
                for row in zip(*(column.to_pylist() for column in block.columns), strict=True):
                    copy.write_row(row)

        return self._plain(send, "", blocks)

    def _plain(
        self, send: Callable[[psycopg.Copy], None], options: str, blocks: Sequence[pa.RecordBatch]
    ) -> float:
        table = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._url) as connection:
            run: Callable[[str], Any] = connection.execute
            run(f"CREATE TABLE {table} ({_COLUMNS}{', PRIMARY KEY (sensor)' if self._keyed else ''})")
            connection.commit()
            begun_s = time.perf_counter()
            target = table
            if self._keyed:
                target = "staged"
                run(f"CREATE TEMPORARY TABLE staged ({_COLUMNS}) ON COMMIT DROP")
            statement: Any = f"COPY {target} FROM STDIN {options}"
            with connection.cursor().copy(statement) as copy:
                send(copy)
            if self._keyed:
                run(
                    f"INSERT INTO {table} SELECT * FROM staged ON CONFLICT (sensor) DO UPDATE "
                    "SET celsius = EXCLUDED.celsius, room = EXCLUDED.room"
                )
            connection.commit()
            took_s = time.perf_counter() - begun_s
        return self._checked(table, took_s, blocks)

    def _checked(self, table: str, took_s: float, blocks: Sequence[pa.RecordBatch]) -> float:
        """Check that all rows are there, and drop the table."""
        with psycopg.connect(self._url) as connection:
            run: Callable[[str], Any] = connection.execute
            found = run(f"SELECT count(*) FROM {table}").fetchone()[0]
            run(f"DROP TABLE {table}")
        expected = sum(map(len, blocks))
        if found != expected:
            raise SystemExit(f"There are {found} of {expected} rows.")
        return took_s


def measure(url: str, rows: int, rounds: int, *, keyed: bool) -> dict[str, Any]:
    """Return rows per second of each contestant, and the medians of the ratios to psycopg's blocks of a round."""
    contestants = Contestants(url, keyed=keyed)
    blocks = blocks_of(rows)
    runs: list[dict[str, float]] = []
    for number in range(rounds):
        times = {
            "penstock": contestants.penstock(blocks),
            "psycopg, blocks": contestants.blocks(blocks),
            "psycopg, row by row": contestants.rows(blocks),
        }
        runs.append({name: rows / took_s for name, took_s in times.items()})
        note(
            f"round {number + 1} of {rounds}: {', '.join(f'{name} {rate:,.0f}/s' for name, rate in runs[-1].items())}"
        )
    return {
        "keyed": keyed,
        "rows": rows,
        "rows_per_s": {name: statistics.median(run[name] for run in runs) for name in runs[0]},
        "ratio": {
            name: statistics.median(run["penstock"] / run[name] for run in runs) for name in list(runs[0])[1:]
        },
    }


def main() -> None:
    """Measure rows that are added, and rows that are replaced by key."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a database: postgresql://USER:PASS@HOST:PORT/DATABASE")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = [measure(options.url, options.rows, options.rounds, keyed=keyed) for keyed in (False, True)]
    names = list(results[0]["rows_per_s"])
    table = [
        [
            "replaced by key" if result["keyed"] else "added",
            *(f"{result['rows_per_s'][name]:,.0f}" for name in names),
            *(f"{ratio:.2f}" for ratio in result["ratio"].values()),
        ]
        for result in results
    ]
    print_table(
        "Rows per second", ["rows", *names, *(f"to {name}" for name in names[1:])], table, left=("rows",)
    )
    print_json({"database_sink": results})


if __name__ == "__main__":
    main()
