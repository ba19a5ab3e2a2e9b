"""Binding types: what a stream is bound to, once its URI is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

__all__ = [
    "BYTES_PER_BATCH",
    "LINE_FORMATS",
    "RECORDS_PER_BATCH",
    "UNACKNOWLEDGED",
    "Binding",
    "ConsoleBinding",
    "Delivery",
    "DiscardBinding",
    "FileFormat",
    "FilesBinding",
    "KafkaBinding",
    "MessageFormat",
    "Missing",
    "QueueBinding",
    "RabbitStreamBinding",
    "RabbitVirtualHost",
    "RateBinding",
    "Role",
    "SocketBinding",
    "Start",
]


Role: TypeAlias = Literal["data", "control", "sink"]
FileFormat: TypeAlias = Literal["jsonl", "csv", "parquet", "text"]
MessageFormat: TypeAlias = Literal["json", "protobuf", "bytes"]
Delivery: TypeAlias = Literal["at-least-once", "exactly-once"]
Start: TypeAlias = Literal["latest", "earliest"]
Missing: TypeAlias = Literal["fail", "skip"]
LINE_FORMATS: Final = ("jsonl", "text")
"""The formats of files in which a line is a record."""
RECORDS_PER_BATCH: Final = 2_000_000
"""The most records that a micro-batch reads of a topic, where its binding does not say otherwise."""
BYTES_PER_BATCH: Final = 256 << 20
"""The most bytes that a micro-batch reads of a folder, where its binding does not say otherwise."""
UNACKNOWLEDGED: Final = 1000


@dataclass(frozen=True)
class FilesBinding:
    """A directory of files. `directory` is absolute; whether it exists is the source's or sink's to check.

    `missing` says what becomes of a file that was found and is gone before it was read. A micro-batch reads at least
    one file, however large it is.
    """

    stream: str
    uri: str
    format: FileFormat
    directory: str
    max_files_per_batch: int | None = None
    missing: Missing = "fail"
    max_bytes_per_batch: int = BYTES_PER_BATCH


@dataclass(frozen=True)
class KafkaBinding:
    """A Kafka topic. `start` is None for sinks; `client` has client settings without the prefix `kafka.`.

    `max_records_per_batch` is None for a control stream whose binding gives none: what it holds at a start is then read
    before any data, in as many micro-batches as the usual limit needs. `max_bytes_per_batch` is kept by the mean size
    of the records that came.
    """

    stream: str
    uri: str
    servers: str
    topic: str
    format: MessageFormat = "json"
    start: Start | None = None
    max_records_per_batch: int | None = None
    delivery: Delivery = "at-least-once"
    create_topic: bool = False
    client: Mapping[str, str] = field(default_factory=dict)
    max_bytes_per_batch: int | None = None

    @property
    def is_paced(self) -> bool:
        """Whether the binding says how much of the topic goes into a micro-batch, where it is a control stream."""
        return self.max_records_per_batch is not None or self.max_bytes_per_batch is not None


@dataclass(frozen=True)
class SocketBinding:
    """A server that sends lines; penstock connects to it as a client."""

    stream: str
    uri: str
    host: str
    port: int


@dataclass(frozen=True)
class RabbitVirtualHost:
    """A virtual host of a RabbitMQ broker, and whom to log in as. `secure` says that the connection uses TLS."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    name: str
    secure: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class QueueBinding:
    """A RabbitMQ queue. `uri` has its password masked; `prefetch` is how many messages may be unacknowledged."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    queue: str
    format: MessageFormat = "json"
    prefetch: int = UNACKNOWLEDGED
    create: bool = False


@dataclass(frozen=True)
class RabbitStreamBinding:
    """A RabbitMQ stream, which is named `name` there. `uri` has its password masked."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    name: str
    format: MessageFormat = "json"
    start: Start = "latest"
    create: bool = False


@dataclass(frozen=True)
class ConsoleBinding:
    """Standard output of the process that runs the job."""

    stream: str
    uri: str


@dataclass(frozen=True)
class RateBinding:
    """Numbers that come at an even rate, in records per second."""

    stream: str
    uri: str
    rate: int


@dataclass(frozen=True)
class DiscardBinding:
    """Nowhere."""

    stream: str
    uri: str


Binding: TypeAlias = (
    FilesBinding
    | KafkaBinding
    | SocketBinding
    | QueueBinding
    | RabbitStreamBinding
    | ConsoleBinding
    | RateBinding
    | DiscardBinding
)
