"""URI parameters: which exist, where each is allowed, and what it does."""

from __future__ import annotations

from typing import Final

from penstock.bindings.amazon_parameters import AMAZON_PARAMETERS
from penstock.bindings.parameter import ALL_ROLES, FILE_SCHEMES, SOURCE_ROLES, Parameter
from penstock.bindings.python_binding import OWN_RECORDS_PER_BATCH
from penstock.bindings.storage_parameters import (
    BUCKET_SCHEMES,
    LAKE_SCHEMES,
    OBJECT_SCHEMES,
    POSTGRES_SCHEMES,
    REDIS_SCHEMES,
    SEARCH_SCHEMES,
    STORAGE_PARAMETERS,
)
from penstock.bindings.types import (
    BYTES_PER_BATCH,
    EXPANDED_BYTES,
    JOURNAL_BYTES,
    RECORD_KEY,
    RECORDS_PER_BATCH,
    REQUEST_BYTES,
    UNACKNOWLEDGED,
    Role,
)

__all__ = [
    "ALL_ROLES",
    "BUCKET_SCHEMES",
    "FILE_SCHEMES",
    "MQTT_SCHEMES",
    "OBJECT_SCHEMES",
    "PARAMETERS",
    "POSTGRES_SCHEMES",
    "RABBIT_SCHEMES",
    "REDIS_SCHEMES",
    "REQUEST_PREFIXES",
    "SEARCH_SCHEMES",
    "SOURCE_ROLES",
    "WEB_SCHEMES",
    "parameters_of",
]


_READ_SCHEMES: Final = (*FILE_SCHEMES, "text")
RABBIT_SCHEMES: Final = ("amqp", "amqps", "rabbitmq-stream")
MQTT_SCHEMES: Final = ("mqtt", "mqtts")
_MESSAGE_SCHEMES: Final = ("kafka", *RABBIT_SCHEMES, *MQTT_SCHEMES)
WEB_SCHEMES: Final = ("http", "https")
REQUEST_PREFIXES: Final = ("header.", "query.")
"""The beginnings of parameters that name a part of a request, whose values may be references to secrets."""


PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter(
        "max_files_per_batch",
        (*_READ_SCHEMES, *LAKE_SCHEMES, *OBJECT_SCHEMES),
        SOURCE_ROLES,
        "integer",
        "no limit",
        "The maximum number of files that one batch reads.",
    ),
    Parameter(
        "max_bytes_per_batch",
        (*_READ_SCHEMES, *LAKE_SCHEMES, *OBJECT_SCHEMES),
        SOURCE_ROLES,
        "integer",
        str(BYTES_PER_BATCH),
        "The maximum bytes of files that one batch reads, but always one file; a file counts as at least 4096 bytes.",
    ),
    Parameter(
        "max_expanded_bytes",
        ("jsonl", "csv", "text", *OBJECT_SCHEMES),
        SOURCE_ROLES,
        "integer",
        str(EXPANDED_BYTES),
        "The maximum bytes that one compressed file may expand to; what comes after them is a dead letter.",
    ),
    Parameter(
        "delimiter",
        ("csv", *OBJECT_SCHEMES),
        SOURCE_ROLES,
        "character",
        "a comma",
        "What separates the values of a row.",
    ),
    Parameter(
        "quote",
        ("csv", *OBJECT_SCHEMES),
        SOURCE_ROLES,
        "character",
        "a double quote",
        "What encloses a value that contains the delimiter, a quote or a line end; none where values have no quotes.",
    ),
    Parameter(
        "header",
        ("csv", *OBJECT_SCHEMES),
        SOURCE_ROLES,
        ("true", "false"),
        "true",
        "Whether the first line names the columns. Without it, columns are the stream's fields in their order.",
    ),
    Parameter(
        "missing",
        (*_READ_SCHEMES, *OBJECT_SCHEMES, "kafka"),
        SOURCE_ROLES,
        ("fail", "skip"),
        "fail",
        "Whether a file, or records of a topic, that disappear before they are read end the run, or are skipped with a "
        "dead letter.",
    ),
    Parameter(
        "format",
        _MESSAGE_SCHEMES,
        ALL_ROLES,
        ("json", "protobuf", "bytes", "avro", "cloudevents"),
        "json",
        "The form of a message value: a JSON object, a protobuf message of the stream's schema, plain bytes, or Avro. "
        "Avro needs a registry; JSON and protobuf may have one. CloudEvents are JSON with attributes beside the data.",
    ),
    Parameter(
        "format",
        ("http-listen", *WEB_SCHEMES),
        ALL_ROLES,
        ("json", "cloudevents"),
        "json",
        "Whether requests have JSON records or CloudEvents, in the structured, batched or binary mode.",
    ),
    Parameter(
        "registry",
        _MESSAGE_SCHEMES,
        ALL_ROLES,
        "text",
        "none",
        "The URL of the schema registry, with Confluent's API, that has the schemas of the messages.",
    ),
    Parameter("registry_user", _MESSAGE_SCHEMES, ALL_ROLES, "text", "no login", "The user of the registry."),
    Parameter(
        "registry_password",
        _MESSAGE_SCHEMES,
        ALL_ROLES,
        "secret",
        "no login",
        "The password of that user, best as a reference.",
    ),
    Parameter(
        "subject",
        ("kafka", "amqp", "amqps", *MQTT_SCHEMES),
        ("sink",),
        "text",
        "TOPIC-value for kafka",
        "The subject under which a sink with registry= registers the schema of its records.",
    ),
    Parameter(
        "attributes",
        (*_MESSAGE_SCHEMES, "http-listen", *WEB_SCHEMES),
        ALL_ROLES,
        "fields with names",
        "none",
        "The fields that are attributes of CloudEvents, with the attribute after a colon if it has another name.",
    ),
    *(
        Parameter(
            f"event_{name}",
            ("kafka", "amqp", "amqps", *MQTT_SCHEMES, *WEB_SCHEMES),
            ("sink",),
            "text",
            "needed for format=cloudevents",
            f"The {name} of each CloudEvent, with {{field}} in it.",
        )
        for name in ("id", "source", "type")
    ),
    Parameter(
        "event_mode",
        ("kafka", *WEB_SCHEMES),
        ("sink",),
        ("structured", "binary"),
        "structured",
        "Whether the attributes of a CloudEvent are in its JSON, or headers of its message or request.",
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
        "missing",
        ("rabbitmq-stream",),
        SOURCE_ROLES,
        ("fail", "skip"),
        "fail",
        "Whether messages that the stream has deleted before they were read end the run, or are passed over with a "
        "warning.",
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
        "max_message_bytes",
        MQTT_SCHEMES,
        ("sink",),
        "integer",
        "no limit but that of the broker, if it tells one (MQTT 5)",
        "A record with a larger message becomes a dead letter: for brokers that end the connection instead.",
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
        "token",
        ("http-listen",),
        SOURCE_ROLES,
        "secret",
        "none: anybody may send",
        "The token that requests must have (Authorization: Bearer TOKEN), best as a reference.",
    ),
    Parameter(
        "certfile",
        ("http-listen",),
        SOURCE_ROLES,
        "path",
        "none: requests come without TLS",
        "The certificate of the server with those of its authorities, in PEM.",
    ),
    Parameter(
        "keyfile", ("http-listen",), SOURCE_ROLES, "path", "none", "The key of the certificate, in PEM."
    ),
    Parameter(
        "max_request_bytes",
        ("http-listen",),
        SOURCE_ROLES,
        "integer",
        str(REQUEST_BYTES),
        "The largest body of a request; a larger one is answered with 413.",
    ),
    Parameter(
        "max_journal_bytes",
        ("http-listen",),
        SOURCE_ROLES,
        "integer",
        str(JOURNAL_BYTES),
        "The size of the journal on disk above which requests are answered with 503 until the job has read more of it.",
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
        ALL_ROLES,
        ("true", "false"),
        "false",
        "Declare the queue (durable, a quorum queue) or the stream when it does not exist.",
    ),
    Parameter(
        "routing_key",
        ("amqp", "amqps"),
        ("sink",),
        "text",
        "none: the path names a queue",
        "The routing key of messages, with {field} for the value of a field. The path then names an exchange.",
    ),
    Parameter(
        "origin",
        ("amqp", "amqps"),
        ("sink",),
        ("true", "false"),
        "true where a record can be known again after a crash",
        "Whether a header, penstock-origin, and the message's id tell messages apart.",
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
        "The name of the session, if the broker requires a certain one.",
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
        "format",
        ("python",),
        SOURCE_ROLES,
        ("json", "protobuf", "bytes"),
        "json",
        "The form of records that the class gives as bytes or text.",
    ),
    Parameter(
        "max_records_per_batch",
        ("python",),
        SOURCE_ROLES,
        "integer",
        str(OWN_RECORDS_PER_BATCH),
        "The maximum positions of a partition that one batch reads of a log.",
    ),
    Parameter(
        "batch_field",
        ("spark",),
        ("sink",),
        "field",
        "none",
        "The column that gets the number of the micro-batch, so that readers can skip a repeated one.",
    ),
    *STORAGE_PARAMETERS,
    *AMAZON_PARAMETERS,
)
"""Every query parameter that penstock itself reads. Kafka URIs also take client settings."""


def parameters_of(scheme: str, role: Role) -> list[Parameter]:
    """Return the parameters that a URI of a scheme may have in a role."""
    return [p for p in PARAMETERS if scheme in p.schemes and role in p.roles]
