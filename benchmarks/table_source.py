"""A table of PostgreSQL as a source beside psycopg, which reads the same rows with a cursor, in turns on one server.

Both end with each row on disk: penstock in its journal, psycopg as JSON lines that the server makes, synced as often.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import RECORDS_PER_POLL, PostgresBinding
from penstock.databases.row_json import RowShape
from penstock.databases.table_receiver import TableReceiver
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalLog, JournalWriter

READING: Final = record_type("id BIGINT, celsius DOUBLE, room STRING, at TIMESTAMP")
_FETCHED: Final = 1000


def make_table(url: str, rows: int) -> str:
    """Make a table of rows, and return its name."""
    table = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url) as connection:
        run: Any = connection.execute
        run(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, celsius float8, room text, at timestamptz)")
        run(
            f"INSERT INTO {table} (celsius, room, at) SELECT 20 + n % 1000 / 7.0, 'room ' || n % 100, "
            f"timestamptz '2026-01-01Z' + n * interval '1 ms' FROM generate_series(1, {rows}) AS n"
        )
        run(f"ANALYZE {table}")
    return table


def penstock_s(url: str, table: str, folder: Path) -> float:
    """Return how many seconds the receiver takes for all rows."""
    parts = urllib.parse.urlsplit(url)
    uri = f"postgresql://{parts.netloc}{parts.path}/{table}?poll_by=id"
    binding = parse_binding("rows", uri, "data")
    assert isinstance(binding, PostgresBinding)
    begun_s = time.perf_counter()
    with TableReceiver(binding, RowShape(READING.schema), JournalWriter(folder), bounded=True) as receiving:
        receiving.wait_for_end(threading.Event())
        return time.perf_counter() - begun_s


def psycopg_s(url: str, table: str, path: Path) -> float:
    """Return how many seconds the client takes for all rows."""
    begun_s, count = time.perf_counter(), 0
    with psycopg.connect(url) as connection, connection.cursor("rows") as cursor, path.open("wb") as file:
        query: Any = f"SELECT row_to_json(t)::text FROM {table} AS t ORDER BY id"
        cursor.execute(query)
        while rows := cursor.fetchmany(_FETCHED):
            file.write("".join(f"{row[0]}\n" for row in rows).encode())
            count += len(rows)
            if count % RECORDS_PER_POLL == 0:
                file.flush()
                os.fdatasync(file.fileno())
    return time.perf_counter() - begun_s


def journaled(folder: Path) -> int:
    """Return how many records a journal has."""
    log = JournalLog(folder)
    splits = log.splits(0, log.latest(0, limited=False), 1)
    return sum(len(chunk.raw) for chunk in log.read(splits, READING) if chunk.raw is not None)


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a database: postgresql://USER:PASS@HOST:PORT/DATABASE")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    table = make_table(options.url, options.rows)
    rates: list[dict[str, float]] = []
    try:
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                own = options.rows / penstock_s(options.url, table, Path(folder, "journal"))
                if journaled(Path(folder, "journal")) != options.rows:
                    raise SystemExit("The journal has not all rows.")
                plain = options.rows / psycopg_s(options.url, table, Path(folder, "lines"))
            rates.append({"penstock": own, "psycopg": plain})
            note(f"round {number + 1} of {options.rounds}: penstock {own:,.0f}/s, psycopg {plain:,.0f}/s")
    finally:
        with psycopg.connect(options.url) as connection:
            connection.execute(f"DROP TABLE {table}")  # type: ignore[call-overload,unused-ignore]
    medians = {name: statistics.median(rate[name] for rate in rates) for name in rates[0]}
    ratio = statistics.median(rate["penstock"] / rate["psycopg"] for rate in rates)
    print_table(
        "Rows per second",
        ["penstock", "psycopg", "ratio"],
        [[f"{medians['penstock']:,.0f}", f"{medians['psycopg']:,.0f}", f"{ratio:.2f}"]],
    )
    print_json({"table_source": {"rows": options.rows, "rows_per_s": medians, "ratio": ratio}})


if __name__ == "__main__":
    main()
