"""The sink of Redis beside a plain pipeline of redis-py that writes the same records, in turns on one server."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import redis

from benchmarks.report import note, print_json, print_table
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import RedisBinding
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
_BLOCK: Final = 50_000
_COMMANDS: Final = 1000


def blocks_of(records: int) -> list[pa.RecordBatch]:
    """Return records of distinct sensors, in blocks."""
    random = np.random.default_rng(1)
    columns = [
        pa.array(random.permutation(records)),
        pa.array(random.normal(20, 5, records)),
        pa.array([f"room {number % 100}" for number in range(records)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, records, _BLOCK)]


class Contestants:
    """What writes all blocks into an empty database, and how long it takes."""

    def __init__(self, url: str, kind: str) -> None:
        self._url: Final = url
        self._kind: Final = kind
        self._client: Final = redis.Redis.from_url(url)

    def penstock(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The sink, in one task."""
        parts = urllib.parse.urlsplit(self._url)
        uri = f"redis://{parts.netloc}{parts.path or '/0'}/bench:{{sensor}}?type={self._kind}"
        binding = parse_binding("records", uri, "sink")
        assert isinstance(binding, RedisBinding)
        self._client.flushdb()
        sink = open_sink(binding, READING, None)
        lineage = uuid.uuid4().hex
        sink.prepare(lineage, "")
        begun_s = time.perf_counter()
        task = sink.task(TaskContext(1, 0, 0, lineage), READING)
        for block in blocks:
            task.write(block, None)
        task.finish()
        # The fence is a key, too.
        return self._checked(time.perf_counter() - begun_s, sum(map(len, blocks)) + 1)

    def pipeline(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client, with as many commands at once as is usual."""
        self._client.flushdb()
        write = self._put_hash if self._kind == "hash" else self._put_text
        begun_s = time.perf_counter()
        pipeline = self._client.pipeline(transaction=False)
        for block in blocks:
            for number, record in enumerate(block.to_pylist(), 1):
                write(pipeline, record)
                if number % _COMMANDS == 0:
                    pipeline.execute()
            pipeline.execute()
        return self._checked(time.perf_counter() - begun_s, sum(map(len, blocks)))

    @staticmethod
    def _put_hash(pipeline: Any, record: dict[str, Any]) -> None:
        pipeline.hset(f"bench:{record['sensor']}", mapping=record)

    @staticmethod
    def _put_text(pipeline: Any, record: dict[str, Any]) -> None:
        pipeline.set(f"bench:{record['sensor']}", json.dumps(record))

    def _checked(self, took_s: float, expected: int) -> float:
        found = self._client.dbsize()
        if found != expected:
            raise SystemExit(f"There are {found} of {expected} keys.")
        return took_s


def measure(url: str, kind: str, records: int, rounds: int) -> dict[str, Any]:
    """Return records per second of both, and the median of the ratios of a round."""
    contestants = Contestants(url, kind)
    blocks = blocks_of(records)
    runs: list[dict[str, float]] = []
    for number in range(rounds):
        turns: dict[str, Callable[[Sequence[pa.RecordBatch]], float]] = {
            "penstock": contestants.penstock,
            "redis-py": contestants.pipeline,
        }
        runs.append({name: records / turn(blocks) for name, turn in turns.items()})
        rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in runs[-1].items())
        note(f"round {number + 1} of {rounds}: {rates}")
    return {
        "type": kind,
        "records": records,
        "records_per_s": {name: statistics.median(run[name] for run in runs) for name in runs[0]},
        "ratio": statistics.median(run["penstock"] / run["redis-py"] for run in runs),
    }


def main() -> None:
    """Measure hashes and strings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", required=True, help="a database, which is emptied: redis://[:PASSWORD@]HOST:PORT/DATABASE"
    )
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = [measure(options.url, kind, options.records, options.rounds) for kind in ("hash", "json")]
    table = [
        [
            result["type"],
            *(f"{result['records_per_s'][name]:,.0f}" for name in ("penstock", "redis-py")),
            f"{result['ratio']:.2f}",
        ]
        for result in results
    ]
    print_table("Records per second", ["type", "penstock", "redis-py", "ratio"], table, left=("type",))
    print_json({"store_sink": results})


if __name__ == "__main__":
    main()
