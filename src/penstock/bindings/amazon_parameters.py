"""Amazon parameters: those of streams of Kinesis and of tables of DynamoDB."""

from __future__ import annotations

from typing import Final

from penstock.bindings.amazon_types import POLL_MS
from penstock.bindings.parameter import ALL_ROLES, SOURCE_ROLES, Parameter
from penstock.bindings.types import JOURNAL_BYTES, Role

__all__ = ["AMAZON_PARAMETERS"]

_KINESIS: Final = ("kinesis",)
_DYNAMODB: Final = ("dynamodb",)
_ENVIRONMENT: Final = "that of the environment, of ~/.aws, or of the machine's role"
_SINK: Final[tuple[Role, ...]] = ("sink",)


def _place(schemes: tuple[str, ...], roles: tuple[Role, ...]) -> list[Parameter]:
    return [
        Parameter("region", schemes, roles, "text", _ENVIRONMENT, "The region of the service."),
        Parameter(
            "endpoint",
            schemes,
            roles,
            "text",
            "Amazon's for the region",
            "The address of the service, such as that of a VPC endpoint or of a server for tests.",
        ),
        Parameter("access_key_id", schemes, roles, "secret", _ENVIRONMENT, "The id of a key."),
        Parameter(
            "secret_access_key",
            schemes,
            roles,
            "secret",
            _ENVIRONMENT,
            "The secret of the key, as a reference only.",
        ),
        Parameter(
            "session_token",
            schemes,
            roles,
            "secret",
            _ENVIRONMENT,
            "The token of a key for a session, as a reference only.",
        ),
    ]


AMAZON_PARAMETERS: Final[tuple[Parameter, ...]] = (
    Parameter(
        "format",
        _KINESIS,
        ALL_ROLES,
        ("json", "protobuf", "bytes"),
        "json",
        "The form of a record's data: a JSON object, a protobuf message of the stream's schema, or plain bytes.",
    ),
    Parameter(
        "start",
        _KINESIS,
        SOURCE_ROLES,
        "text",
        "latest; for a control stream earliest",
        "Where a job without a checkpoint begins: earliest, latest, or a time such as 2026-01-31T08:00:00Z.",
    ),
    Parameter(
        "missing",
        _KINESIS,
        SOURCE_ROLES,
        ("fail", "skip"),
        "fail",
        "Whether the retention of the stream, where it may have deleted records before they were read, ends the run, "
        "or is passed over with a warning.",
    ),
    Parameter(
        "poll_ms",
        _KINESIS,
        SOURCE_ROLES,
        "integer",
        str(POLL_MS),
        "After how many milliseconds a shard that had nothing more is asked again, at least 200.",
    ),
    Parameter(
        "max_journal_bytes",
        _KINESIS,
        SOURCE_ROLES,
        "integer",
        str(JOURNAL_BYTES),
        "The size of the journal on disk above which no more is read until the job has caught up.",
    ),
    Parameter(
        "partition_key",
        _KINESIS,
        _SINK,
        "text",
        "the key of the record's step, else a number",
        "The partition key of records, with {field} for the value of a field.",
    ),
    Parameter(
        "order",
        _KINESIS,
        _SINK,
        ("key", "none"),
        "key",
        "Whether records of one partition key are kept in order, one of them in a request, or need not be.",
    ),
    Parameter(
        "origin",
        _KINESIS,
        _SINK,
        ("true", "false"),
        "false",
        "Whether a field, penstock_origin, tells records apart, so that a reader can leave out repetitions.",
    ),
    *_place(_KINESIS, ALL_ROLES),
    Parameter(
        "deletions",
        _DYNAMODB,
        _SINK,
        ("remove", "mark"),
        "remove",
        "Whether the item of a deleted row goes away, or stays for a day with its key and penstock_deleted, so that "
        "no late write of an older run can bring it back.",
    ),
    Parameter(
        "requests_at_once",
        _DYNAMODB,
        _SINK,
        "integer",
        "8",
        "How many requests of a task may be on their way.",
    ),
    *_place(_DYNAMODB, _SINK),
)
