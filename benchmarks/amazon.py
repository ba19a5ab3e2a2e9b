"""Kinesis and DynamoDB beside botocore alone doing the same work, in turns on one server.

The servers speak as Amazon's do, such as Kinesalite and Dynalite; streams and tables are made and deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import botocore.session
import numpy as np
import pyarrow as pa

from benchmarks.report import note, print_json, print_table
from penstock.bindings.amazon_types import KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.jobs.job_sinks import open_sink
from penstock.kinesis.kinesis_receiver import KinesisReceiver
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sources.journal import JournalLog, JournalWriter

READING: Final = record_type("sensor BIGINT NOT NULL, celsius DOUBLE, room STRING")
_BLOCK: Final = 50_000
_KEYS: Final = 5000
_LOGIN: Final = "access_key_id=env:AWS_ACCESS_KEY_ID&secret_access_key=env:AWS_SECRET_ACCESS_KEY"


def blocks_of(records: int) -> list[pa.RecordBatch]:
    """Return records of distinct sensors, in blocks."""
    random = np.random.default_rng(1)
    columns = [
        pa.array(random.permutation(records)),
        pa.array(random.normal(20, 5, records)),
        pa.array([f"room {number % _KEYS}" for number in range(records)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING.schema)
    return [batch.slice(first, _BLOCK) for first in range(0, records, _BLOCK)]


class Kinesis:
    """What reads and writes a stream of four shards, and how long it takes."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint: Final = endpoint
        self._client: Final = botocore.session.Session().create_client(
            "kinesis", endpoint_url=endpoint, region_name="eu-central-1"
        )

    @contextlib.contextmanager
    def stream(self) -> Iterator[str]:
        """A new stream."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._client.create_stream(StreamName=name, ShardCount=4)
        while (
            self._client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"]
            != "ACTIVE"
        ):
            time.sleep(0.05)
        yield name
        self._client.delete_stream(StreamName=name)

    def _uri(self, name: str, query: str) -> str:
        return f"kinesis://{name}?endpoint={self._endpoint}&region=eu-central-1&{_LOGIN}&{query}"

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The sink, in one task."""
        with self.stream() as name:
            uri = self._uri(name, "partition_key={room}")
            sink = open_sink(parse_binding("records", uri, "sink"), READING, None)
            sink.prepare("bench", "")
            begun_s = time.perf_counter()
            task = sink.task(TaskContext(1, 0, 0, "bench"), READING)
            for block in blocks:
                task.write(block, None)
            task.finish()
            return time.perf_counter() - begun_s

    def put(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client, with as many records in a request as Kinesis takes."""
        with self.stream() as name:
            begun_s = time.perf_counter()
            self._put(name, blocks)
            return time.perf_counter() - begun_s

    def _put(self, name: str, blocks: Sequence[pa.RecordBatch]) -> None:
        for block in blocks:
            rows = block.to_pylist()
            for first in range(0, len(rows), 500):
                part = [
                    {"Data": json.dumps(row).encode(), "PartitionKey": row["room"]}
                    for row in rows[first : first + 500]
                ]
                if self._client.put_records(StreamName=name, Records=part)["FailedRecordCount"]:
                    raise SystemExit("Some records were refused.")

    def source(self, name: str, records: int) -> float:
        """The receiver, into a journal on disk."""
        binding = parse_binding("records", self._uri(name, "start=earliest"), "data")
        if not isinstance(binding, KinesisBinding):
            raise TypeError(binding)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            begun_s = time.perf_counter()
            with KinesisReceiver(binding, place, JournalWriter(place), bounded=True) as receiver:
                receiver.wait_for_end(threading.Event())
            took_s = time.perf_counter() - begun_s
            log = JournalLog(place)
            splits = log.splits(0, log.latest(0, limited=False), 1)
            found = sum(len(chunk.offsets) for chunk in log.read(splits, READING))
        if found != records:
            raise SystemExit(f"There are {found} of {records} records.")
        return took_s

    def get(self, name: str, records: int) -> float:
        """The client, a thread for each shard, which only counts the records."""
        begun_s = time.perf_counter()
        shards = [shard["ShardId"] for shard in self._client.list_shards(StreamName=name)["Shards"]]
        with ThreadPoolExecutor(len(shards)) as pool:
            found = sum(pool.map(self._count, itertools.repeat(name), shards))
        if found != records:
            raise SystemExit(f"There are {found} of {records} records.")
        return time.perf_counter() - begun_s

    def _count(self, name: str, shard: str) -> int:
        asked = {"StreamName": name, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator, count = self._client.get_shard_iterator(**asked)["ShardIterator"], 0
        while True:
            answer = self._client.get_records(ShardIterator=iterator, Limit=10_000)
            if not answer["Records"]:
                return count
            iterator, count = answer["NextShardIterator"], count + len(answer["Records"])

    def measure_source(self, blocks: Sequence[pa.RecordBatch], rounds: int) -> dict[str, Any]:
        """Return records per second of both when they read one stream."""
        records = sum(map(len, blocks))
        with self.stream() as name:
            self._put(name, blocks)
            turns = {
                "penstock": lambda: self.source(name, records),
                "botocore": lambda: self.get(name, records),
            }
            return in_turns("Kinesis, source", turns, records, rounds)


class Dynamo:
    """What writes items of a table, and how long it takes."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint: Final = endpoint
        self._client: Final = botocore.session.Session().create_client(
            "dynamodb", endpoint_url=endpoint, region_name="eu-central-1"
        )

    @contextlib.contextmanager
    def table(self) -> Iterator[str]:
        """A new table."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "sensor", "AttributeType": "N"}],
            KeySchema=[{"AttributeName": "sensor", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self._client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        yield name
        self._client.delete_table(TableName=name)

    def sink(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The sink, in one task."""
        with self.table() as name, tempfile.TemporaryDirectory() as folder:
            uri = f"dynamodb://{name}?endpoint={self._endpoint}&region=eu-central-1&{_LOGIN}"
            sink = open_sink(parse_binding("records", uri, "sink"), READING, None)
            sink.prepare("bench", folder)
            begun_s = time.perf_counter()
            task = sink.task(TaskContext(1, 0, 0, "bench"), READING)
            for block in blocks:
                task.write(block, None)
            task.finish()
            return time.perf_counter() - begun_s

    def put(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client, with the same condition for each item, eight requests at once."""
        with self.table() as name, ThreadPoolExecutor(8) as pool:
            begun_s = time.perf_counter()
            for block in blocks:
                list(pool.map(self._put, itertools.repeat(name), map(item, block.to_pylist())))
            return time.perf_counter() - begun_s

    def _put(self, name: str, record: dict[str, Any]) -> None:
        self._client.put_item(
            TableName=name,
            Item={**record, "mark": {"S": "7"}},
            ConditionExpression="attribute_not_exists(#m) OR #m <= :m",
            ExpressionAttributeNames={"#m": "mark"},
            ExpressionAttributeValues={":m": {"S": "7"}},
        )

    def batches(self, blocks: Sequence[pa.RecordBatch]) -> float:
        """The client, with BatchWriteItem, which knows no conditions."""
        with self.table() as name, ThreadPoolExecutor(8) as pool:
            begun_s = time.perf_counter()
            for block in blocks:
                rows = block.to_pylist()
                parts = [rows[first : first + 25] for first in range(0, len(rows), 25)]
                list(pool.map(self._batch, itertools.repeat(name), parts))
            return time.perf_counter() - begun_s

    def _batch(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        requests = {name: [{"PutRequest": {"Item": item(row)}} for row in rows]}
        while requests:
            requests = self._client.batch_write_item(RequestItems=requests)["UnprocessedItems"]


def item(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record as an item."""
    return {
        "sensor": {"N": str(row["sensor"])},
        "celsius": {"N": str(row["celsius"])},
        "room": {"S": row["room"]},
    }


def in_turns(
    what: str, turns: Mapping[str, Callable[[], float]], records: int, rounds: int
) -> dict[str, Any]:
    """Return records per second of each, and the median of the ratios of a round."""
    runs: list[dict[str, float]] = []
    for number in range(rounds):
        runs.append({name: records / turn() for name, turn in turns.items()})
        rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in runs[-1].items())
        note(f"{what}, round {number + 1} of {rounds}: {rates}")
    return {
        "what": what,
        "records": records,
        "records_per_s": {name: statistics.median(run[name] for run in runs) for name in runs[0]},
        "ratio": statistics.median(run["penstock"] / run["botocore"] for run in runs),
    }


def main() -> None:
    """Measure the source and the sinks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinesis", required=True, help="the address of a server, http://HOST:PORT")
    parser.add_argument("--dynamodb", required=True, help="likewise")
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    blocks, few = blocks_of(options.records), blocks_of(options.records // 10)
    kinesis, dynamo = Kinesis(options.kinesis), Dynamo(options.dynamodb)
    records, rounds = options.records, options.rounds
    results = [
        kinesis.measure_source(blocks, rounds),
        in_turns(
            "Kinesis, sink",
            {"penstock": lambda: kinesis.sink(blocks), "botocore": lambda: kinesis.put(blocks)},
            records,
            rounds,
        ),
        in_turns(
            "DynamoDB, sink",
            {
                "penstock": lambda: dynamo.sink(few),
                "botocore": lambda: dynamo.put(few),
                "BatchWriteItem": lambda: dynamo.batches(few),
            },
            records // 10,
            rounds,
        ),
    ]
    table = [
        [
            result["what"],
            *(f"{result['records_per_s'][name]:,.0f}" for name in ("penstock", "botocore")),
            f"{result['ratio']:.2f}",
        ]
        for result in results
    ]
    print_table("Records per second", ["", "penstock", "botocore", "ratio"], table, left=("",))
    print_json({"amazon": results})


if __name__ == "__main__":
    main()
