"""Binding types: the parsed bindings of streams to places outside the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from penstock.bindings.amazon_types import DynamoBinding, KinesisBinding
from penstock.bindings.lake_types import DeltaBinding, IcebergBinding
from penstock.bindings.message_settings import EventBinding, MessageSettings, RegistryBinding
from penstock.bindings.python_binding import PythonBinding
from penstock.bindings.redis_binding import RedisBinding
from penstock.bindings.spark_binding import SparkBinding
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding

__all__ = [
    "BYTES_PER_BATCH",
    "CACHE_ROWS",
    "CACHE_S",
    "EXPANDED_BYTES",
    "JOURNAL_BYTES",
    "LINE_FORMATS",
    "LOOKUP_RETRY_S",
    "PATTERN_MARK",
    "PLAIN_CSV",
    "POLL_S",
    "RECORDS_PER_BATCH",
    "RECORDS_PER_POLL",
    "RECORD_KEY",
    "REQUEST_BYTES",
    "UNACKNOWLEDGED",
    "Binding",
    "ConsoleBinding",
    "CsvDialect",
    "Delivery",
    "DeltaBinding",
    "DiscardBinding",
    "EventBinding",
    "ExchangeBinding",
    "FileFormat",
    "FilesBinding",
    "HttpListenBinding",
    "IcebergBinding",
    "KafkaBinding",
    "MessageFormat",
    "Missing",
    "MqttBinding",
    "ObjectsBinding",
    "PostgresBinding",
    "PythonBinding",
    "QueueBinding",
    "RabbitStreamBinding",
    "RabbitVirtualHost",
    "RateBinding",
    "RedisBinding",
    "RegistryBinding",
    "Role",
    "SocketBinding",
    "SparkBinding",
    "Start",
    "WebhookBinding",
]


Role: TypeAlias = Literal["data", "control", "sink", "lookup"]
FileFormat: TypeAlias = Literal["jsonl", "csv", "parquet", "text"]
MessageFormat: TypeAlias = Literal["json", "protobuf", "bytes", "avro", "cloudevents"]
Delivery: TypeAlias = Literal["at-least-once", "exactly-once"]
Start: TypeAlias = Literal["latest", "earliest"]
Missing: TypeAlias = Literal["fail", "skip"]
LINE_FORMATS: Final = ("jsonl", "text")
"""The file formats in which each line is a record."""
RECORDS_PER_BATCH: Final = 2_000_000
"""The most records that a micro-batch reads from a topic, unless its binding says otherwise."""
BYTES_PER_BATCH: Final = 256 << 20
"""The most bytes that a micro-batch reads from a folder, unless its binding says otherwise."""
REQUEST_BYTES: Final = 8 << 20
"""The largest body of a request that an HTTP receiver takes, unless its binding says otherwise."""
JOURNAL_BYTES: Final = 1 << 30
"""The size of its journal from which an HTTP receiver takes nothing, unless its binding says otherwise."""
EXPANDED_BYTES: Final = 16 << 30
"""The most bytes that a compressed file may expand to, unless its binding says otherwise."""
UNACKNOWLEDGED: Final = 1000
POLL_S: Final = 1
CACHE_S: Final = 60
CACHE_ROWS: Final = 100_000
LOOKUP_RETRY_S: Final = 60
RECORDS_PER_POLL: Final = 10_000
RECORD_KEY: Final = "record-key"
"""What stands for the key that a record comes with, where a field could stand. No field can have that name."""
PATTERN_MARK: Final = "~"
"""The mark before a pattern of topics. No topic has it in its name."""
_OWN_TOPICS: Final = "__"


@dataclass(frozen=True)
class CsvDialect:
    """How the rows of CSV files are written. An empty `quote` says that values have no quotes."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True


PLAIN_CSV: Final = CsvDialect()
"""Commas, double quotes and a header."""


@dataclass(frozen=True)
class FilesBinding:
    """A directory of files. `directory` is absolute; the source or sink checks whether it exists.

    `missing` says what happens when a file that was found disappears before it is read. A micro-batch reads at least
    one file, however large it is.
    """

    stream: str
    uri: str
    format: FileFormat
    directory: str
    max_files_per_batch: int | None = None
    missing: Missing = "fail"
    max_bytes_per_batch: int = BYTES_PER_BATCH
    max_expanded_bytes: int = EXPANDED_BYTES
    dialect: CsvDialect = PLAIN_CSV


@dataclass(frozen=True)
class KafkaBinding(MessageSettings):
    """A Kafka topic, or for a source, `~` with a pattern, a regular expression for the whole names of topics.

    `start` is None for sinks; `client` has client settings without the prefix `kafka.`.

    `max_records_per_batch` is None for a control stream whose binding sets none: at a start its backlog is then read
    before any data, in as many micro-batches as the default limit needs. `max_bytes_per_batch` is applied by the mean
    size of the records so far. `missing` says what happens when brokers delete records before they are read.

    Of a sink, `key_field` is the field with the key of a message, if that is not the record's own, `header_fields` are
    fields that become headers, each with the header's name, `partition_by` is the field that chooses the partition
    instead of the key, or RECORD_KEY, and `origin` says whether a header tells messages apart.
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
    missing: Missing = "fail"
    key_field: str | None = None
    header_fields: tuple[tuple[str, str], ...] = ()
    partitioner: str = "murmur2_random"
    partition_by: str | None = None
    origin: bool = False

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern of the topics to read; None if the binding names one topic."""
        return re.compile(self.topic[1:]) if self.topic.startswith(PATTERN_MARK) else None

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        pattern = self.pattern
        return f"the topic {self.topic!r}" if pattern is None else f"what matches {pattern.pattern!r}"

    def reads(self, topic: str) -> bool:
        """Return whether a source with this binding reads a topic.

        Topics whose names begin with two underscores are Kafka's own. Only a pattern that begins so reads them.
        """
        pattern = self.pattern
        if pattern is None:
            return topic == self.topic
        is_hidden = topic.startswith(_OWN_TOPICS) and not pattern.pattern.startswith(_OWN_TOPICS)
        return not is_hidden and pattern.fullmatch(topic) is not None

    @property
    def is_paced(self) -> bool:
        """Whether the binding of a control stream limits how much of the topic goes into a micro-batch."""
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
    """A virtual host of a RabbitMQ broker, and the login. With `secure` the connection uses TLS.

    The password may be a reference.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    name: str
    secure: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class QueueBinding(MessageSettings):
    """A RabbitMQ queue. `uri` has its password masked; `prefetch` is how many messages may be unacknowledged."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    queue: str
    format: MessageFormat = "json"
    prefetch: int = UNACKNOWLEDGED
    create: bool = False


@dataclass(frozen=True)
class RabbitStreamBinding(MessageSettings):
    """A RabbitMQ stream; `name` is its name on the broker. `uri` has its password masked."""

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    name: str
    format: MessageFormat = "json"
    start: Start = "latest"
    create: bool = False
    missing: Missing = "fail"


@dataclass(frozen=True)
class MqttBinding(MessageSettings):
    """The topics of an MQTT broker that match a filter, or for a sink, a topic with `{field}` in some levels.

    `uri` has its password masked; `login` has it, or a reference to it. Without a `client_id` the job chooses one for
    its checkpoint. `prefetch` is how many messages may be unacknowledged. `origin` is None where it depends on whether
    a record can be known again after a crash. The certificates are files in PEM. A sink sends no message
    whose body has more than `max_message_bytes`.
    """

    stream: str
    uri: str
    host: str
    port: int
    topic: str
    user: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    secure: bool = False
    format: MessageFormat = "json"
    protocol: Literal["5", "3.1.1"] = "5"
    client_id: str | None = None
    prefetch: int = UNACKNOWLEDGED
    origin: bool | None = None
    retain: bool = False
    max_message_bytes: int | None = None
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def is_one_topic(self) -> bool:
        """Whether the filter is the name of a topic, without wildcards."""
        return "+" not in self.topic and "#" not in self.topic


@dataclass(frozen=True)
class PostgresBinding:
    """A table of a PostgreSQL database. `uri` has its password masked.

    `client` has settings of libpq, such as `sslmode`; the password may be a reference. For a sink, `upsert_by` are the
    fields that identify a row which a later record replaces; without them each record becomes a row. A source reads the
    rows in the order of the column `poll_by`, asks for new ones every `poll_s`, and takes `max_records_per_poll` at
    once; by a column of times only those older than `poll_delay_s`, or without it than a second. Of a lookup table a
    task keeps up to `cache_rows` rows for `cache_s`, and asks again for `retry_s` while the server is away.
    """

    stream: str
    uri: str
    host: str
    port: int
    database: str
    schema: str
    table: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    upsert_by: tuple[str, ...] = ()
    create_table: bool = False
    poll_by: str | None = None
    poll_s: int = POLL_S
    poll_delay_s: int | None = None
    max_records_per_poll: int = RECORDS_PER_POLL
    start: Start = "earliest"
    cache_s: int = CACHE_S
    cache_rows: int = CACHE_ROWS
    retry_s: int = LOOKUP_RETRY_S

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        return f"the table {self.schema}.{self.table} of the database {self.database!r} on {self.host}:{self.port}"


@dataclass(frozen=True)
class ObjectsBinding:
    """A prefix of a bucket of an object store, for files. `uri` has secrets masked.

    `client` has environment variables of S3 that override those of the process; the values may be references. A
    source reads files as `reading` says, and finds new ones as `names` says: by any name, by names that grow, or by the
    manifests of a sink.
    """

    stream: str
    uri: str
    scheme: str
    bucket: str
    prefix: str
    format: FileFormat
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: Literal["any", "growing", "manifests"] = "any"
    reading: FilesBinding | None = None

    @property
    def place(self) -> str:
        """The URI without parameters."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class WebhookBinding(MessageSettings):
    """A server that takes records by POST. `uri` has secrets masked; `url` has neither a query nor a login.

    `headers` and `query` are parts of each request, whose values may be references. `origin` is None where it depends
    on whether a record can be known again after a crash.
    """

    stream: str
    uri: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: MessageFormat = "json"
    records_per_request: int = 1
    requests_at_once: int = 1
    timeout_s: int = 10
    retry_s: int = 60
    origin: bool | None = None


@dataclass(frozen=True)
class ConsoleBinding:
    """Standard output of the process that runs the job."""

    stream: str
    uri: str


@dataclass(frozen=True)
class RateBinding:
    """Numbers that arrive at an even rate, in records per second."""

    stream: str
    uri: str
    rate: int


@dataclass(frozen=True)
class DiscardBinding:
    """Nowhere: records are dropped."""

    stream: str
    uri: str


@dataclass(frozen=True)
class ExchangeBinding(MessageSettings):
    """An exchange of RabbitMQ to publish to, with a routing key that may have `{field}` in it.

    The exchange without a name routes to the queue that the key names, which `create` declares. `uri` has its password
    masked. `origin` is None where it depends on whether a record can be known again after a crash.
    """

    stream: str
    uri: str
    virtual_host: RabbitVirtualHost
    exchange: str
    routing_key: str
    format: MessageFormat = "json"
    create: bool = False
    origin: bool | None = None


@dataclass(frozen=True)
class HttpListenBinding(MessageSettings):
    """An address where the job takes records by POST. `uri` has secrets masked; `login` has the token, or a reference.

    With a certificate and its key, files in PEM, it takes them by HTTPS.
    """

    stream: str
    uri: str
    host: str
    port: int
    path: str
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    certfile: str | None = None
    keyfile: str | None = None
    max_request_bytes: int = REQUEST_BYTES
    max_journal_bytes: int = JOURNAL_BYTES
    format: MessageFormat = "json"


Binding: TypeAlias = (
    FilesBinding
    | KafkaBinding
    | SocketBinding
    | QueueBinding
    | RabbitStreamBinding
    | MqttBinding
    | ObjectsBinding
    | PostgresBinding
    | DeltaBinding
    | IcebergBinding
    | WebhookBinding
    | ConsoleBinding
    | RateBinding
    | SparkBinding
    | RedisBinding
    | CassandraBinding
    | OpenSearchBinding
    | ExchangeBinding
    | HttpListenBinding
    | PythonBinding
    | KinesisBinding
    | DynamoBinding
    | DiscardBinding
)
