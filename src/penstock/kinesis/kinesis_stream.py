"""Kinesis streams: the requests that read a stream. All errors are those of penstock."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from penstock.amazon.service_clients import get_client
from penstock.amazon.service_errors import as_external, error_code, is_throttling, server_ms
from penstock.bindings.amazon_types import KinesisBinding
from penstock.errors import ExternalSystemError
from penstock.kinesis.shard_places import Shard, ShardPlace, shards_of

__all__ = ["MOST_RECORDS", "KinesisStream", "ShardRead", "check_stream"]

MOST_RECORDS: Final = 10_000
"""The most records that Kinesis returns at once."""

_HOUR_MS: Final = 3_600_000
# The server of a stream that is being made or changed answers, but may not know its shards yet.
_READABLE: Final = ("ACTIVE", "UPDATING")


@dataclass(frozen=True)
class ShardRead:
    """The answer to a request for the records of a shard.

    Each record is its sequence number and its data. `iterator` is where the next request starts; None after the last
    record of a shard that was split or merged. What arrived before `reached_ms` has been read. With `is_refused` the
    stream had too many requests, and with `is_stale` the iterator is too old; both bring nothing.
    """

    records: tuple[tuple[str, bytes], ...] = ()
    iterator: str | None = None
    at_tip: bool = False
    reached_ms: int = 0
    is_refused: bool = False
    is_stale: bool = False


class KinesisStream(AbstractContextManager["KinesisStream"]):
    """A stream that is there. Any thread may ask for records.

    Raises PlaceMissingError, BindingError or ExternalSystemError when it cannot be read.
    """

    def __init__(self, binding: KinesisBinding) -> None:
        self._binding: Final = binding
        self.now_ms = 0
        self.retention_ms = 0
        self.created_ms = 0
        self.shards: list[Shard] = []
        self.look()

    def __exit__(self, *error: object) -> None:
        """Do nothing: the client is kept."""

    @property
    def _client(self) -> Any:
        """The client, with the key that a file has by now."""
        return get_client(self._binding)

    def look(self) -> None:
        """Ask for the shards and the retention."""
        client = self._client
        with as_external(self._binding):
            answer = client.describe_stream_summary(StreamName=self._binding.name)
            summary = answer["StreamDescriptionSummary"]
            if summary["StreamStatus"] not in _READABLE:
                raise ExternalSystemError(
                    f"Stream {self._binding.stream!r}: {self._binding.where} is {summary['StreamStatus']}. Wait until "
                    "it is ACTIVE."
                )
            self.now_ms = server_ms(answer)
            self.retention_ms = summary["RetentionPeriodHours"] * _HOUR_MS
            self.created_ms = int(summary["StreamCreationTimestamp"].timestamp() * 1000)
            listed: list[Mapping[str, Any]] = []
            asked: dict[str, Any] = {"StreamName": self._binding.name}
            while asked:
                page = client.list_shards(**asked)
                listed += page["Shards"]
                asked = {"NextToken": page["NextToken"]} if page.get("NextToken") else {}
            self.shards = shards_of(listed)

    def iterator(self, shard: str, place: ShardPlace) -> str:
        """Return the iterator that continues a shard after a place."""
        if place.after:
            return self._iterator(shard, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=place.after)
        if place.since_ms:
            return self._iterator(shard, "AT_TIMESTAMP", Timestamp=place.since_ms / 1000)
        return self._iterator(shard, "TRIM_HORIZON")

    def newest(self, shard: str) -> str:
        """Return the iterator for records that come to a shard from now on."""
        return self._iterator(shard, "LATEST")

    def _iterator(self, shard: str, kind: str, **begin: Any) -> str:
        with as_external(self._binding):
            answer = self._client.get_shard_iterator(
                StreamName=self._binding.name, ShardId=shard, ShardIteratorType=kind, **begin
            )
        return str(answer["ShardIterator"])

    def read(self, iterator: str) -> ShardRead:
        """Return the records that follow."""
        import botocore.exceptions

        try:
            answer = self._client.get_records(ShardIterator=iterator, Limit=MOST_RECORDS)
        except botocore.exceptions.ClientError as e:
            if is_throttling(e):
                return ShardRead(iterator=iterator, is_refused=True)
            if error_code(e) == "ExpiredIteratorException":
                return ShardRead(is_stale=True)
            with as_external(self._binding):
                raise
        except botocore.exceptions.BotoCoreError:
            with as_external(self._binding):
                raise
        return _read(answer)

    def put(self, data: bytes, partition_key: str) -> None:
        """Put one record."""
        with as_external(self._binding):
            self._client.put_record(StreamName=self._binding.name, Data=data, PartitionKey=partition_key)


def _read(answer: Mapping[str, Any]) -> ShardRead:
    found = answer["Records"]
    behind_ms = answer.get("MillisBehindLatest", 0)
    iterator = answer.get("NextShardIterator")
    at_tip = behind_ms == 0 and len(found) < MOST_RECORDS
    reached_ms = int(found[-1]["ApproximateArrivalTimestamp"].timestamp() * 1000) if found else 0
    if iterator is not None and (at_tip or behind_ms):
        reached_ms = max(reached_ms, server_ms(answer) - behind_ms)
    return ShardRead(
        tuple((record["SequenceNumber"], record["Data"]) for record in found),
        iterator,
        at_tip,
        reached_ms,
    )


def check_stream(binding: KinesisBinding) -> KinesisStream:
    """Check that a stream can be read, and return it. Raises as a start does."""
    return KinesisStream(binding)
