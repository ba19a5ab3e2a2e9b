"""Lookups in a table of PostgreSQL beside psycopg, which finds the same rows for the same records, in turns.

Both take micro-batches of records as columns, ask for each key once, and end with the joined records as columns.
penstock also writes the rows that it took for a replay, synced. With `kept` neither asks for a key again that it
knows: penstock by its cache, psycopg by a dictionary.
"""
# ruff: noqa: S608  # no text in these statements comes from outside

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa

import penstock as ps
from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.databases.looked_up_table import PostgresLookup
from penstock.engine.lookup_run import rows_taken
from penstock.joins.lookup_source import forget_rows
from penstock.joins.table_lookup import TableLookup
from penstock.machine.postgresql_server import LocalPostgres
from penstock.models.kept_answers import SlotAnswers
from penstock.models.library_places import FolderPlace
from penstock.streams.graph import ProcessNode

_READING: Final = "room STRING, celsius DOUBLE"
_ROOMS: Final = "id STRING, floor INT, owner STRING"
_FIELDS: Final = ["room", "celsius", "floor", "owner"]

Lookup = Callable[[pa.RecordBatch], pa.RecordBatch]


@contextmanager
def made_table(url: str, rows: int) -> Iterator[str]:
    """Make a table of rooms, and yield its name."""
    table = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        run: Any = connection.execute
        run(f"CREATE TABLE {table} (id text PRIMARY KEY, floor int, owner text, note text)")
        run(
            f"INSERT INTO {table} SELECT 'room ' || n, n % 90, 'owner ' || n % 1000, repeat('x', 40) "
            f"FROM generate_series(1, {rows}) AS n"
        )
        run(f"VACUUM ANALYZE {table}")
        try:
            yield table
        finally:
            run(f"DROP TABLE {table}")


def readings(rows: int, keys: int, seed: int) -> pa.RecordBatch:
    """Return a micro-batch: each record in one of some rooms of the table, a few in none."""
    chance = np.random.default_rng(seed)
    rooms = [f"room {n}" for n in chance.integers(1, keys + keys // 100, rows)]
    return pa.RecordBatch.from_pydict({"room": rooms, "celsius": chance.random(rows)})


def of_penstock(url: str, table: str, folder: Path) -> Lookup:
    """Return the work of the step in a slot, with the rows that it writes for a replay."""
    job = ps.Job("rooms")
    stream = job.data_stream("readings", schema=_READING)
    rooms = job.lookup_table("rooms", schema=_ROOMS)
    stream.lookup_join("floors", rooms, on=("room", "id"), how="left", fields=_FIELDS)
    parts = urllib.parse.urlsplit(url)
    binding = parse_binding(
        "rooms", f"postgresql://{parts.netloc}{parts.path}/{table}?cache_s=3600", "lookup"
    )
    assert isinstance(binding, PostgresBinding)
    (node,) = (one for one in job.graph.nodes.values() if isinstance(one, ProcessNode))
    assert isinstance(node.function, TableLookup)
    source = PostgresLookup.of(binding, rooms.record_type.schema)
    forget_rows(source)
    step, now_ms = node.function.of(source), iter(range(1, 1 << 30))
    place = FolderPlace(str(folder))

    def look_up(batch: pa.RecordBatch) -> pa.RecordBatch:
        of_slot = SlotAnswers(place, "floors", (0,))
        answers = of_slot.at(next(now_ms))
        step.taken = None
        of = step.keys_of(batch)
        found = step.enriched(batch, of, rows_taken(step, answers, [of.keys])).batch
        of_slot.add(answers)
        of_slot.write()
        return found

    return look_up


def of_psycopg(connection: Any, table: str, *, kept: bool) -> Lookup:
    """Return the same with the client alone."""
    query = f"SELECT id, floor, owner FROM {table} WHERE id = ANY(%s)"
    known: dict[str, tuple[Any, ...] | None] = {}

    def look_up(batch: pa.RecordBatch) -> pa.RecordBatch:
        rooms = batch.column("room").to_pylist()
        unknown = [room for room in dict.fromkeys(rooms) if room not in known]
        if unknown:
            known.update(dict.fromkeys(unknown))
            known.update({row[0]: row[1:] for row in connection.execute(query, (unknown,))})
        nothing = (None, None)
        floors, owners = zip(*(known[room] or nothing for room in rooms), strict=True)
        if not kept:
            known.clear()
        columns = [*batch.columns, pa.array(floors, pa.int32()), pa.array(owners, pa.string())]
        return pa.RecordBatch.from_arrays(columns, _FIELDS)

    return look_up


def timed(look_up: Lookup, batches: list[pa.RecordBatch]) -> tuple[float, float, list[pa.RecordBatch]]:
    """Return the seconds and the processor seconds of this process for some micro-batches, and what they became."""
    begun_s, spent_s = time.perf_counter(), time.process_time()
    found = [look_up(batch) for batch in batches]
    return time.perf_counter() - begun_s, time.process_time() - spent_s, found


def one_round(
    options: argparse.Namespace, table: str, number: int, *, kept: bool
) -> dict[str, tuple[float, float]]:
    """Return the records per second of both, by the clock and by processor time, after one micro-batch to warm up."""
    batches = [
        readings(options.records, options.keys, 1000 * number + (0 if kept else one))
        for one in range(options.batches + 1)
    ]
    rates, results = {}, {}
    with tempfile.TemporaryDirectory() as folder, psycopg.connect(options.url, autocommit=True) as connection:
        contestants = {
            "penstock": of_penstock(options.url, table, Path(folder)),
            "psycopg": of_psycopg(connection, table, kept=kept),
        }
        for name, look_up in contestants.items():
            look_up(batches[0])
            clock_s, processor_s, results[name] = timed(look_up, batches[1:])
            records = options.records * options.batches
            rates[name] = (records / clock_s, records / processor_s)
    for own, plain in zip(*results.values(), strict=True):
        if own.to_pydict() != plain.to_pydict():
            raise SystemExit("They found different rows.")
    return rates


def main() -> None:
    """Measure both in turns, in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", help="a database: postgresql://USER:PASS@HOST:PORT/DATABASE; else a server is started"
    )
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table")
    parser.add_argument("--keys", type=int, default=20_000, help="how many of them records may have")
    parser.add_argument("--records", type=int, default=50_000, help="records of a micro-batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.url is not None:
        measure(options)
        return
    with LocalPostgres("bench") as server:
        options.url = server.url("postgres")
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Print the figures."""
    lines, result = [], {}
    with made_table(options.url, options.rows) as table:
        for kept in (False, True):
            rounds = []
            for number in range(options.rounds):
                rounds.append(one_round(options, table, number, kept=kept))
                shown = ", ".join(f"{name} {clock:,.0f}/s" for name, (clock, _) in rounds[-1].items())
                note(f"{'kept' if kept else 'asked'}, round {number + 1} of {options.rounds}: {shown}")
            medians = {
                name: [statistics.median(one[name][by] for one in rounds) for by in (0, 1)]
                for name in rounds[0]
            }
            ratios = [
                statistics.median(one["penstock"][by] / one["psycopg"][by] for one in rounds) for by in (0, 1)
            ]
            what = "rows kept" if kept else "rows asked for"
            rates = [f"{medians[name][0]:,.0f}" for name in ("penstock", "psycopg")]
            lines.append([what, *rates, *(f"{ratio:.2f}" for ratio in ratios)])
            result[what] = {"records_per_s": medians, "ratios": ratios}
    print_table("Records per second", ["", "penstock", "psycopg", "ratio", "by processor time"], lines)
    print_json({"table_lookup": {"records": options.records, **result}})


if __name__ == "__main__":
    main()
