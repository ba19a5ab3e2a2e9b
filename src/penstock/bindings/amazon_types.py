"""Amazon types: the bindings of streams to Kinesis and DynamoDB, or to servers with the same protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

__all__ = [
    "POLL_MS",
    "AmazonPlace",
    "Deletions",
    "DynamoBinding",
    "KinesisBinding",
    "KinesisOrder",
]

KinesisOrder: TypeAlias = Literal["key", "none"]
Deletions: TypeAlias = Literal["remove", "mark"]
POLL_MS: Final = 500
"""How many milliseconds after a request that has found nothing more a shard is asked again."""


@dataclass(frozen=True)
class AmazonPlace:
    """The address of a service, and the login. Amazon's own settings and identities decide on None and empty fields.

    `login` has the id and the secret of a key; the values may be references.
    """

    region: str | None = None
    endpoint: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.endpoint or (f"the region {self.region}" if self.region else "its region")


@dataclass(frozen=True)
class KinesisBinding:
    """A stream of Kinesis. `uri` has secrets masked.

    A source begins at `start`: "earliest", "latest", or a time in milliseconds since 1970. `missing` says what happens
    when Kinesis deletes records before they are read. Of a sink, `{field}` in `partition_key` is the value of a field;
    without one the key is that of the record's step.
    """

    stream: str
    uri: str
    name: str
    place: AmazonPlace = field(default_factory=AmazonPlace)
    format: Literal["json", "protobuf", "bytes"] = "json"
    start: Literal["earliest", "latest"] | int = "latest"
    missing: Literal["fail", "skip"] = "fail"
    poll_ms: int = POLL_MS
    max_journal_bytes: int = 1 << 30
    partition_key: str | None = None
    order: KinesisOrder = "key"
    origin: bool = False

    @property
    def where(self) -> str:
        """The place of the binding, for messages."""
        return f"the Kinesis stream {self.name!r} at {self.place}"


@dataclass(frozen=True)
class DynamoBinding:
    """A table of DynamoDB. `uri` has secrets masked.

    `deletions` says whether an item that a record deletes goes away, or stays for a day with its key and a mark.
    """

    stream: str
    uri: str
    table: str
    place: AmazonPlace = field(default_factory=AmazonPlace)
    deletions: Deletions = "remove"
    requests_at_once: int = 8

    @property
    def where(self) -> str:
        """The place of the binding, for messages."""
        return f"the DynamoDB table {self.table!r} at {self.place}"
