"""Real servers for tests that emulate Kinesis and DynamoDB: Kinesalite and Dynalite, from npm into the cache."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import botocore.exceptions
import botocore.session
from botocore.config import Config
from npm_packages import npm_program

from penstock.machine.local_server import LocalServer, free_port, listens

__all__ = ["LOGIN", "DynamoServer", "KinesisServer"]

LOGIN: Final = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    "AWS_REGION": "eu-central-1",
}
_VERSIONS: Final = {"kinesalite": "3.3.3", "dynalite": "4.0.0"}
_MOMENT_MS: Final = "5"


class _AmazonServer(LocalServer):
    """A server that keeps its data on disk; a context manager. Its port stays the same over restarts."""

    def __init__(self, package: str, service: str, folder: Path, options: Sequence[str]) -> None:
        super().__init__(package, folder / f"{package}.log")
        self.port = free_port()
        self.environment: Mapping[str, str] | None = None
        # Both servers exit when a client is killed in the middle of a request.
        guard = folder / "guard.js"
        guard.write_text("process.on('uncaughtException', e => { if (e.code !== 'ECONNRESET') throw e })\n")
        self._command = [
            "node",
            "--require",
            str(guard),
            str(npm_program(package, _VERSIONS[package], "cli.js")),
            "--port",
            str(self.port),
            *options,
        ]
        self._command += ["--path", str(folder / f"{package}-data")]
        self.client: Any = botocore.session.Session().create_client(
            service,
            endpoint_url=self.endpoint,
            region_name=LOGIN["AWS_REGION"],
            aws_access_key_id=LOGIN["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=LOGIN["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}, read_timeout=20),
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it listens."""
        self.launch(self._command, lambda: listens(self.port), environment=self.environment)

    def kill(self) -> None:
        """Kill the server."""
        self.signal(signal.SIGKILL)

    def stand_still(self, still: bool) -> None:
        """Suspend the server, or let it continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if still else signal.SIGCONT)


class KinesisServer(_AmazonServer):
    """A Kinesalite server."""

    def __init__(self, folder: Path) -> None:
        moments = ("--createStreamMs", "--deleteStreamMs", "--updateStreamMs")
        options = [part for name in moments for part in (name, _MOMENT_MS)]
        super().__init__("kinesalite", "kinesis", folder, [*options, "--shardLimit", "1000"])

    def uri(self, name: str, query: str = "") -> str:
        return f"kinesis://{name}?endpoint={self.endpoint}&region=eu-central-1{query}"

    def create(self, name: str, shards: int = 1) -> str:
        """Create a stream; return its name."""
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.await_active(name)
        return name

    def await_active(self, name: str) -> None:
        deadline = time.monotonic() + 20
        while True:
            found = self.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
            if found["StreamStatus"] == "ACTIVE":
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def put(self, name: str, records: Sequence[tuple[str, bytes]]) -> None:
        """Put records, each a partition key and its data, in order."""
        for first in range(0, len(records), 500):
            part = [{"PartitionKey": key, "Data": data} for key, data in records[first : first + 500]]
            assert self.client.put_records(StreamName=name, Records=part)["FailedRecordCount"] == 0

    def split(self, name: str, shard: str) -> None:
        """Split a shard in the middle of its hash range."""
        (found,) = [one for one in self.shards(name) if one["ShardId"] == shard]
        low, high = (int(found["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        middle = str((low + high + 1) // 2)
        self.client.split_shard(StreamName=name, ShardToSplit=shard, NewStartingHashKey=middle)
        self.await_active(name)

    def merge(self, name: str, shard: str, other: str) -> None:
        """Merge two adjacent shards."""
        self.client.merge_shards(StreamName=name, ShardToMerge=shard, AdjacentShardToMerge=other)
        self.await_active(name)

    def shards(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.list_shards(StreamName=name)["Shards"]
        return found

    def open_shards(self, name: str) -> list[str]:
        """Return the open shards, ordered by their hash ranges."""
        found = [one for one in self.shards(name) if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return [
            one["ShardId"]
            for one in sorted(found, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))
        ]

    def records(self, name: str) -> list[tuple[str, bytes]]:
        """Return all records of a stream, shard by shard in order, each with its partition key."""
        found: list[tuple[str, bytes]] = []
        for shard in self.shards(name):
            asked = {"StreamName": name, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self.client.get_shard_iterator(**asked)["ShardIterator"]
            while iterator is not None:
                answer = self.client.get_records(ShardIterator=iterator)
                found += [(record["PartitionKey"], record["Data"]) for record in answer["Records"]]
                iterator = answer.get("NextShardIterator") if answer["Records"] else None
        return found


class DynamoServer(_AmazonServer):
    """A Dynalite server."""

    def __init__(self, folder: Path) -> None:
        super().__init__("dynalite", "dynamodb", folder, ["--createTableMs", _MOMENT_MS])

    def uri(self, table: str, query: str = "") -> str:
        return f"dynamodb://{table}?endpoint={self.endpoint}&region=eu-central-1{query}"

    def create(self, table: str, **keys: str) -> str:
        """Create a table with these key attributes, each with its type; return its name."""
        self.client.create_table(
            TableName=table,
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind in keys.items()
            ],
            KeySchema=[
                {"AttributeName": name, "KeyType": kind}
                for name, kind in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        deadline = time.monotonic() + 20
        while self.client.describe_table(TableName=table)["Table"]["TableStatus"] != "ACTIVE":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return table

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return all items of a table; none while the server is down."""
        found: list[dict[str, Any]] = []
        start: dict[str, Any] = {}
        while True:
            try:
                page = self.client.scan(TableName=table, ConsistentRead=True, **start)
            except botocore.exceptions.BotoCoreError:
                return []
            found += page["Items"]
            if "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
