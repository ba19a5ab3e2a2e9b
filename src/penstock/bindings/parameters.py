"""URI parameters: which exist, where each is allowed, and what it does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from penstock.bindings.secrets import check_reference
from penstock.bindings.types import BYTES_PER_BATCH, RECORD_KEY, RECORDS_PER_BATCH, UNACKNOWLEDGED, Role

__all__ = [
    "ALL_ROLES",
    "CLIENT_SETTING",
    "FILE_SCHEMES",
    "JAVA_SETTINGS",
    "MQTT_SCHEMES",
    "OWN_SETTINGS",
    "PARAMETERS",
    "POSTGRES_SCHEMES",
    "RABBIT_SCHEMES",
    "REDIS_SCHEMES",
    "REQUEST_PREFIXES",
    "SOURCE_ROLES",
    "WEB_SCHEMES",
    "Parameter",
    "is_client_setting",
    "parameters_of",
]


SOURCE_ROLES: Final[tuple[Role, ...]] = ("data", "control")
ALL_ROLES: Final[tuple[Role, ...]] = ("data", "control", "sink")
FILE_SCHEMES: Final = ("jsonl", "csv", "parquet")
_READ_SCHEMES: Final = (*FILE_SCHEMES, "text")
RABBIT_SCHEMES: Final = ("amqp", "amqps", "rabbitmq-stream")
MQTT_SCHEMES: Final = ("mqtt", "mqtts")
REDIS_SCHEMES: Final = ("redis", "rediss")
WEB_SCHEMES: Final = ("http", "https")
REQUEST_PREFIXES: Final = ("header.", "query.")
"""The beginnings of parameters that name a part of a request, whose values may be references to secrets."""
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")


@dataclass(frozen=True)
class Parameter:
    """A query parameter of a URI: where it is allowed, its possible values, and what it does.

    `values` is "integer", "field" (the name of a field), "field or key" (likewise, or RECORD_KEY), "fields" (names),
    "fields with names" (each with another name behind a colon if that differs), "path", "text", "secret" (a value,
    `env:NAME` or `file:PATH`), or the allowed words. `default` describes what applies when it is left out.
    """

    name: str
    schemes: tuple[str, ...]
    roles: tuple[Role, ...]
    values: (
        tuple[str, ...]
        | Literal["integer", "field", "field or key", "fields", "fields with names", "path", "secret", "text"]
    )
    default: str
    meaning: str

    @property
    def form(self) -> str:
        """The written form: `name=a|b`, or `name=N` for an integer."""
        if isinstance(self.values, tuple):
            return f"{self.name}={'|'.join(self.values)}"
        return f"{self.name}={_FORMS[self.values]}"

    def parse(self, text: str) -> int | str | tuple[str, ...] | tuple[tuple[str, str], ...]:
        """Return the value of the parameter. Raises ValueError, which says what is wrong with it."""
        if self.values == "integer":
            if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
                raise ValueError(f"{self.name}={text!r} must be a whole number of at least 1")
            return int(text)
        if self.values == "field or key" and text == RECORD_KEY:
            return text
        if self.values in ("field", "field or key"):
            if not text.isidentifier():
                raise ValueError(f"{self.name}={text!r} must name one field")
            return text
        if self.values == "fields with names":
            return _names(self.name, text)
        if self.values == "fields":
            return _fields(self.name, text)
        if self.values == "secret":
            check_reference(self.name, text)
            return text
        if self.values in ("path", "text"):
            return text
        if text not in self.values:
            raise ValueError(f"{self.name}={text!r} must be one of {', '.join(self.values)}")
        return text


_FORMS: Final = {
    "integer": "N",
    "field": "FIELD",
    "field or key": f"FIELD|{RECORD_KEY}",
    "fields": "FIELD,...",
    "fields with names": "FIELD[:NAME],...",
    "path": "PATH",
    "text": "TEXT",
    "secret": "env:NAME|file:PATH|VALUE",
}


def _fields(parameter: str, text: str) -> tuple[str, ...]:
    """Return fields. Raises ValueError when one is not a name or is repeated."""
    found = tuple(text.split(","))
    if not all(map(str.isidentifier, found)) or len(set(found)) < len(found):
        raise ValueError(f"{parameter}={text!r} must name fields, each once")
    return found


def _names(parameter: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return fields, each with its other name. Raises ValueError when one of them is empty or there twice."""
    pairs = [part.partition(":") for part in text.split(",")]
    found = tuple((field, other if colon else field) for field, colon, other in pairs)
    if not all(field.isidentifier() and other for field, other in found):
        raise ValueError(f"{parameter}={text!r} must name fields, each perhaps with :NAME behind it")
    names = [other for _, other in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{parameter}={text!r} gives the same name twice")
    return found


PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter(
        "max_files_per_batch",
        _READ_SCHEMES,
        SOURCE_ROLES,
        "integer",
        "no limit",
        "The maximum number of files that one batch reads.",
    ),
    Parameter(
        "max_bytes_per_batch",
        _READ_SCHEMES,
        SOURCE_ROLES,
        "integer",
        str(BYTES_PER_BATCH),
        "The maximum bytes of files that one batch reads, but always one file; a file counts as at least 4096 bytes.",
    ),
    Parameter(
        "missing",
        (*_READ_SCHEMES, "kafka"),
        SOURCE_ROLES,
        ("fail", "skip"),
        "fail",
        "Whether a file, or records of a topic, that disappear before they are read end the run, or are skipped with a "
        "dead letter.",
    ),
    Parameter(
        "format",
        ("kafka", *RABBIT_SCHEMES, *MQTT_SCHEMES),
        ALL_ROLES,
        ("json", "protobuf", "bytes"),
        "json",
        "The form of a message value: a JSON object, a protobuf message of the stream's schema, or plain bytes.",
    ),
    Parameter(
        "start",
        ("kafka", "rabbitmq-stream"),
        SOURCE_ROLES,
        ("latest", "earliest"),
        "latest for data, earliest for control",
        "Where a job without a checkpoint starts to read.",
    ),
    Parameter(
        "max_records_per_batch",
        ("kafka",),
        SOURCE_ROLES,
        "integer",
        str(RECORDS_PER_BATCH),
        "The maximum records that one batch reads. Without it, a control stream is read before data at a start.",
    ),
    Parameter(
        "max_bytes_per_batch",
        ("kafka",),
        SOURCE_ROLES,
        "integer",
        f"{BYTES_PER_BATCH} for data without max_records_per_batch",
        "The approximate maximum bytes that one batch reads, by the mean size of the records so far.",
    ),
    Parameter(
        "delivery",
        ("kafka",),
        ("sink",),
        ("at-least-once", "exactly-once"),
        "at-least-once",
        "Whether a read_committed consumer may see a record again after a crash.",
    ),
    Parameter(
        "key",
        ("kafka",),
        ("sink",),
        "field",
        "the key of the record's step or message",
        "The field with the key of a message: text, bytes or an integer.",
    ),
    Parameter(
        "headers",
        ("kafka",),
        ("sink",),
        "fields with names",
        "none",
        "The fields that are headers of a message as well, each with the header's name if that differs.",
    ),
    Parameter(
        "origin",
        ("kafka",),
        ("sink",),
        ("true", "false"),
        "false",
        "Whether a header, penstock-origin, tells messages apart, so that a reader can leave out repetitions.",
    ),
    Parameter(
        "origin",
        WEB_SCHEMES,
        ("sink",),
        ("true", "false"),
        "true where a record can be known again after a crash",
        "Whether a header, Idempotency-Key, tells requests apart, so that the server can leave out repetitions.",
    ),
    Parameter(
        "origin",
        MQTT_SCHEMES,
        ("sink",),
        ("true", "false"),
        "true where a record can be known again after a crash",
        "Whether a user property (MQTT 5), penstock-origin, tells messages apart.",
    ),
    Parameter(
        "retain",
        MQTT_SCHEMES,
        ("sink",),
        ("true", "false"),
        "false",
        "Whether the broker keeps the last message of each topic for those who subscribe later.",
    ),
    Parameter(
        "records_per_request",
        WEB_SCHEMES,
        ("sink",),
        "integer",
        "1: the body is a record",
        "The maximum number of records in a request. With more than one the body is always an array of records.",
    ),
    Parameter(
        "requests_at_once",
        WEB_SCHEMES,
        ("sink",),
        "integer",
        "1",
        "How many requests of a task may be on their way. With more than one the order is not kept.",
    ),
    Parameter(
        "timeout_s",
        WEB_SCHEMES,
        ("sink",),
        "integer",
        "10",
        "For how many seconds an answer is awaited.",
    ),
    Parameter(
        "retry_s",
        WEB_SCHEMES,
        ("sink",),
        "integer",
        "60",
        "For how many seconds a request is repeated while the server is away or overloaded; then the run ends.",
    ),
    Parameter(
        "partitioner",
        ("kafka",),
        ("sink",),
        ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random"),
        "murmur2_random",
        "How the key chooses the partition; the default is that of Kafka's Java client.",
    ),
    Parameter(
        "partition_by",
        ("kafka",),
        ("sink",),
        "field or key",
        "the key of the message",
        "What chooses the partition instead of the message's key, as Kafka's Java client would by a key: a field, or "
        f"the key of the record's step or message ({RECORD_KEY}).",
    ),
    Parameter(
        "create_topic",
        ("kafka",),
        ALL_ROLES,
        ("true", "false"),
        "false",
        "Create the topic, with the broker's defaults, when it does not exist.",
    ),
    Parameter(
        "prefetch",
        ("amqp", "amqps", *MQTT_SCHEMES),
        SOURCE_ROLES,
        "integer",
        str(UNACKNOWLEDGED),
        "The maximum number of messages that the broker sends ahead of acknowledgements.",
    ),
    Parameter(
        "create",
        RABBIT_SCHEMES,
        SOURCE_ROLES,
        ("true", "false"),
        "false",
        "Declare the queue (durable, a quorum queue) or the stream when it does not exist.",
    ),
    Parameter(
        "protocol",
        MQTT_SCHEMES,
        ALL_ROLES,
        ("5", "3.1.1"),
        "5",
        "The version of MQTT that the broker speaks. With 3.1.1 retained messages come again with each connection.",
    ),
    Parameter(
        "client_id",
        MQTT_SCHEMES,
        SOURCE_ROLES,
        "text",
        "one for the checkpoint, the stream and the filter",
        "The name by which the broker knows the session, where its rules ask for a certain one.",
    ),
    Parameter(
        "password",
        (*RABBIT_SCHEMES, *MQTT_SCHEMES),
        ALL_ROLES,
        "secret",
        "that of the URI",
        "The password of the user, best as a reference.",
    ),
    Parameter(
        "cafile",
        ("mqtts",),
        ALL_ROLES,
        "path",
        "those of the system",
        "The certificates to trust, in PEM.",
    ),
    Parameter("certfile", ("mqtts",), ALL_ROLES, "path", "none", "The certificate of the client, in PEM."),
    Parameter(
        "keyfile", ("mqtts",), ALL_ROLES, "path", "none", "The key of the client's certificate, in PEM."
    ),
    Parameter(
        "type",
        REDIS_SCHEMES,
        ("sink",),
        ("hash", "json"),
        "hash",
        "What is under a key: a hash with the fields of the record, or the record as a string of JSON.",
    ),
    Parameter(
        "ttl_s",
        REDIS_SCHEMES,
        ("sink",),
        "integer",
        "never",
        "After how many seconds a key that is not written again expires.",
    ),
    Parameter(
        "password",
        REDIS_SCHEMES,
        ("sink",),
        "secret",
        "that of the URI",
        "The password of the user, best as a reference.",
    ),
    Parameter(
        "cafile", ("rediss",), ("sink",), "path", "those of the system", "The certificates to trust, in PEM."
    ),
    Parameter("certfile", ("rediss",), ("sink",), "path", "none", "The certificate of the client, in PEM."),
    Parameter(
        "keyfile", ("rediss",), ("sink",), "path", "none", "The key of the client's certificate, in PEM."
    ),
    Parameter(
        "upsert_by",
        POSTGRES_SCHEMES,
        ("sink",),
        "fields",
        "none: each record is a row",
        "The fields that identify a row, which a later record replaces. The table needs a unique index on them.",
    ),
    Parameter(
        "create_table",
        POSTGRES_SCHEMES,
        ("sink",),
        ("true", "false"),
        "false",
        "Create the table when it does not exist, with a column for each field.",
    ),
    Parameter(
        "partition_by",
        ("delta",),
        ("sink",),
        "fields",
        "those of the table; of a new one, none",
        "The fields by which the files of the table are apart, so that readers skip those of other values.",
    ),
    Parameter(
        "create_table",
        ("delta",),
        ("sink",),
        ("true", "false"),
        "true",
        "Create the table when it does not exist, with a column for each field.",
    ),
    Parameter(
        "password",
        POSTGRES_SCHEMES,
        ("sink",),
        "secret",
        "that of the URI, or of libpq (PGPASSWORD, ~/.pgpass)",
        "The password of the user, best as a reference.",
    ),
    Parameter(
        "sslmode",
        POSTGRES_SCHEMES,
        ("sink",),
        ("disable", "prefer", "require", "verify-ca", "verify-full"),
        "prefer",
        "Whether the connection uses TLS, and whether the server's certificate is verified.",
    ),
    Parameter(
        "sslrootcert",
        POSTGRES_SCHEMES,
        ("sink",),
        "path",
        "that of libpq",
        "The certificates, in PEM, that the server's certificate is verified by; `system` for those of the system.",
    ),
    Parameter(
        "sslcert",
        POSTGRES_SCHEMES,
        ("sink",),
        "path",
        "that of libpq",
        "The certificate of the client, in PEM.",
    ),
    Parameter(
        "sslkey", POSTGRES_SCHEMES, ("sink",), "path", "that of libpq", "The key of the client's certificate."
    ),
)
"""Every query parameter that penstock itself reads. Kafka URIs also take client settings."""

CLIENT_SETTING: Final = (
    "client settings: a name with a dot (fetch.max.bytes), or the prefix kafka. (kafka.acks)"
)

OWN_SETTINGS: Final = {
    "auto.offset.reset": "write start=latest|earliest instead",
    "bootstrap.servers": "write the servers before the topic",
    "enable.auto.commit": "the checkpoint keeps the offsets",
    "enable.auto.offset.store": "the checkpoint keeps the offsets",
    "enable.idempotence": "sinks are always idempotent",
    "group.id": "the checkpoint keeps the offsets",
    "interceptor.classes": "penstock reads and writes without interceptors",
    "key.deserializer": "keys stay bytes",
    "key.serializer": "keys stay bytes",
    "partitioner": "write partitioner=... without kafka. before it",
    "transactional.id": "write delivery=exactly-once instead",
    "value.deserializer": "write format=json|protobuf|bytes instead",
    "value.serializer": "write format=json|protobuf|bytes instead",
}
"""Client settings that would break penstock's guarantees, and what to do instead."""


JAVA_SETTINGS: Final = {
    "sasl.jaas.config": "write sasl.username=USER&sasl.password=env:NAME",
    "ssl.truststore.": "write ssl.ca.location=FILE, with certificates in PEM",
    "ssl.keystore.type": "write ssl.certificate.location=FILE and ssl.key.location=FILE, in PEM",
    "ssl.keystore.key": "write ssl.key.location=FILE, in PEM",
    "ssl.keystore.certificate.chain": "write ssl.certificate.location=FILE, in PEM",
}
"""Beginnings of settings that only Kafka's Java client has, and what librdkafka has instead."""


def parameters_of(scheme: str, role: Role) -> list[Parameter]:
    """Return the parameters that a URI of a scheme may have in a role."""
    return [p for p in PARAMETERS if scheme in p.schemes and role in p.roles]


def is_client_setting(name: str) -> bool:
    """Return whether a parameter is a setting of the Kafka client."""
    # A name without a dot is more likely a misspelt parameter than a setting, so such settings need the prefix.
    return "." in name.strip(".")
