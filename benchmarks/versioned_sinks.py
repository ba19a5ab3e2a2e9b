"""The sinks of Cassandra and OpenSearch beside their plain clients with the same records, in turns on one server."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import httpx
import pyarrow as pa
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args

from benchmarks.report import note, print_json, print_table
from benchmarks.store_sink import READING, blocks_of
from penstock.bindings.parse import parse_binding
from penstock.jobs.job_sinks import open_sink
from penstock.sinks.base import TaskContext

_AT_ONCE: Final = 128
_BULK: Final = 2_000
_WAIT_S: Final = 600


def written_by_penstock(uri: str, blocks: Sequence[pa.RecordBatch]) -> float:
    """Write all blocks with the sink, in one task; return how long it takes."""
    sink = open_sink(parse_binding("records", uri, "sink"), READING, None)
    sink.prepare("bench", "")
    # Workers keep their clients, and connecting is no part of this.
    task = sink.task(TaskContext(1, 0, 0, "bench", time.time_ns() // 1000), READING)
    begun_s = time.perf_counter()
    for block in blocks:
        task.write(block, None)
    task.finish()
    return time.perf_counter() - begun_s


class Rows:
    """A table of Cassandra, which is emptied before each turn."""

    plain_name = "cassandra-driver"

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._session: Final = Cluster([host], port=int(port)).connect()
        self._session.default_timeout = _WAIT_S
        self._session.execute(
            "CREATE KEYSPACE IF NOT EXISTS penstock_bench WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        self._session.execute(
            "CREATE TABLE IF NOT EXISTS penstock_bench.rows (sensor bigint PRIMARY KEY, celsius double, room text)"
        )
        self.uri: Final = f"cassandra://{server}/penstock_bench/rows?writes_at_once={_AT_ONCE}"

    def empty(self) -> None:
        """Remove all rows."""
        self._session.execute("TRUNCATE penstock_bench.rows")

    def plain(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """Write all blocks with the client, as many at once."""
        statement = "INSERT INTO penstock_bench.rows (sensor, celsius, room) VALUES (?, ?, ?)"
        prepared = self._session.prepare(statement)
        begun_s = time.perf_counter()
        for block in blocks:
            rows = [tuple(record.values()) for record in block.to_pylist()]
            execute_concurrent_with_args(self._session, prepared, rows, concurrency=_AT_ONCE)
        return time.perf_counter() - begun_s


class Documents:
    """An index of OpenSearch, which is removed before each turn."""

    plain_name = "httpx"

    def __init__(self, server: str) -> None:
        self._client: Final = httpx.Client(base_url=f"http://{server}", timeout=_WAIT_S)
        self.uri: Final = f"opensearch://{server}/penstock_bench?id={{sensor}}"

    def empty(self) -> None:
        """Remove the index, and make it anew."""
        self._client.delete("/penstock_bench")
        self._client.put("/penstock_bench").raise_for_status()

    def plain(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """Write all blocks in bulk requests of the same size, with Python's JSON."""
        begun_s = time.perf_counter()
        for block in blocks:
            records = block.to_pylist()
            for first in range(0, len(records), _BULK):
                lines: list[str] = []
                for record in records[first : first + _BULK]:
                    action = {"index": {"_index": "penstock_bench", "_id": str(record["sensor"])}}
                    lines += [json.dumps(action), json.dumps(record)]
                answer = self._client.post(
                    "/_bulk",
                    content="\n".join([*lines, ""]),
                    headers={"Content-Type": "application/x-ndjson"},
                )
                if answer.json()["errors"]:
                    raise SystemExit("The server refuses documents.")
        return time.perf_counter() - begun_s


def measure(store: Rows | Documents, records: int, rounds: int) -> dict[str, Any]:
    """Return records per second of both, and the median of the ratios of a round, also by processor time.

    That is the time of this process alone, without the server.
    """
    blocks = blocks_of(records)
    runs: list[tuple[float, float]] = []
    spent: list[float] = []
    for number in range(rounds):
        store.empty()
        begun_s = time.process_time()
        own = records / written_by_penstock(store.uri, blocks)
        own_s = time.process_time() - begun_s
        store.empty()
        begun_s = time.process_time()
        plain = records / store.plain(blocks)
        spent.append((time.process_time() - begun_s) / own_s)
        runs.append((own, plain))
        note(f"round {number + 1} of {rounds}: penstock {own:,.0f}/s, {store.plain_name} {plain:,.0f}/s")
    return {
        "store": type(store).__name__,
        "client": store.plain_name,
        "records": records,
        "penstock": statistics.median(own for own, _ in runs),
        "plain": statistics.median(plain for _, plain in runs),
        "ratio": statistics.median(own / plain for own, plain in runs),
        "ratio_by_processor_time": statistics.median(spent),
    }


def main() -> None:
    """Measure the stores that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cassandra", help="HOST:PORT of a server; the keyspace penstock_bench is made")
    parser.add_argument("--opensearch", help="HOST:PORT of a server; the index penstock_bench is made")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    stores: list[Rows | Documents] = [Rows(options.cassandra)] if options.cassandra else []
    stores += [Documents(options.opensearch)] if options.opensearch else []
    results = [measure(store, options.records, options.rounds) for store in stores]
    table = [
        [
            found["client"],
            *(f"{found[name]:,.0f}" for name in ("penstock", "plain")),
            *(f"{found[name]:.2f}" for name in ("ratio", "ratio_by_processor_time")),
        ]
        for found in results
    ]
    headings = ["client", "penstock", "alone", "ratio", "by processor time"]
    print_table("Records per second", headings, table, left=("client",))
    print_json({"versioned_sinks": results})


if __name__ == "__main__":
    main()
