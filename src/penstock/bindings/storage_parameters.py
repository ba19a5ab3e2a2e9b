"""Storage parameters: those of databases, key-value stores, lakes and object stores."""

from __future__ import annotations

from typing import Final

from penstock.bindings.parameter import ALL_ROLES, FILE_SCHEMES, SOURCE_ROLES, Parameter
from penstock.bindings.types import CACHE_ROWS, CACHE_S, LOOKUP_RETRY_S, POLL_S, RECORDS_PER_POLL, Role

__all__ = [
    "BUCKET_SCHEMES",
    "LAKE_SCHEMES",
    "OBJECT_SCHEMES",
    "POSTGRES_SCHEMES",
    "REDIS_SCHEMES",
    "S3_SCHEMES",
    "SEARCH_SCHEMES",
    "STORAGE_PARAMETERS",
]

LAKE_SCHEMES: Final = ("delta", "iceberg")
REDIS_SCHEMES: Final = ("redis", "rediss")
SEARCH_SCHEMES: Final = ("opensearch", "elasticsearch")
_CASSANDRA: Final = ("cassandra",)
_VERSIONED: Final = (*_CASSANDRA, *SEARCH_SCHEMES)
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
_OF_DATABASES: Final[tuple[Role, ...]] = (*ALL_ROLES, "lookup")
S3_SCHEMES: Final = ("s3", "s3a")
_WITH_S3: Final = (*S3_SCHEMES, "iceberg", "delta")
BUCKET_SCHEMES: Final = (*S3_SCHEMES, "gs", "az", "abfs")
OBJECT_SCHEMES: Final = (*BUCKET_SCHEMES, "hdfs")
_ENVIRONMENT: Final = "that of the environment (docs/object_stores.md)"

STORAGE_PARAMETERS: Final[tuple[Parameter, ...]] = (
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
        "id",
        SEARCH_SCHEMES,
        ("sink",),
        "text",
        "must be given",
        "The id of a document, with {field} for the value of a field; a later record replaces the document.",
    ),
    Parameter(
        "consistency",
        _CASSANDRA,
        ("sink",),
        (
            "local_quorum",
            "one",
            "two",
            "three",
            "quorum",
            "all",
            "each_quorum",
            "local_one",
        ),
        "local_quorum",
        "How many replicas must have a row before it counts as written.",
    ),
    Parameter(
        "datacenter", _CASSANDRA, ("sink",), "text", "that of the servers", "The data center that is asked."
    ),
    Parameter(
        "ttl_s",
        _CASSANDRA,
        ("sink",),
        "integer",
        "that of the table",
        "After how many seconds a row that is not written again expires.",
    ),
    Parameter(
        "writes_at_once",
        _CASSANDRA,
        ("sink",),
        "integer",
        "128",
        "How many writes of a task may be on their way.",
    ),
    Parameter(
        "retry_s",
        _VERSIONED,
        ("sink",),
        "integer",
        "60",
        "For how many seconds a write is repeated while servers write nothing at all; then the run ends.",
    ),
    Parameter(
        "password",
        _VERSIONED,
        ("sink",),
        "secret",
        "that of the URI",
        "The password of the user, best as a reference.",
    ),
    Parameter(
        "tls",
        _VERSIONED,
        ("sink",),
        ("true", "false"),
        "false, true with cafile or certfile",
        "Whether connections are encrypted.",
    ),
    Parameter(
        "cafile", _VERSIONED, ("sink",), "path", "those of the system", "The certificates to trust, in PEM."
    ),
    Parameter("certfile", _VERSIONED, ("sink",), "path", "none", "The certificate of the client, in PEM."),
    Parameter(
        "keyfile", _VERSIONED, ("sink",), "path", "none", "The key of the client's certificate, in PEM."
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
        "upsert_by",
        LAKE_SCHEMES,
        ("sink",),
        "fields",
        "none: each record is a row",
        "The fields that identify a row, which a later record replaces.",
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
        "poll_by",
        POSTGRES_SCHEMES,
        SOURCE_ROLES,
        "text",
        "none; it is needed",
        "The column, of integers or times, whose values grow from row to row. The rows are read in its order.",
    ),
    Parameter(
        "poll_s",
        POSTGRES_SCHEMES,
        SOURCE_ROLES,
        "integer",
        str(POLL_S),
        "After how many seconds the table is asked for new rows.",
    ),
    Parameter(
        "poll_delay_s",
        POSTGRES_SCHEMES,
        SOURCE_ROLES,
        "integer",
        "1 by a column of times",
        "By a column of times: how many seconds ago, by the server's clock, a row's time must be.",
    ),
    Parameter(
        "max_records_per_poll",
        POSTGRES_SCHEMES,
        SOURCE_ROLES,
        "integer",
        str(RECORDS_PER_POLL),
        "The maximum number of rows that one query takes. Further queries follow at once.",
    ),
    Parameter(
        "cache_s",
        POSTGRES_SCHEMES,
        ("lookup",),
        "integer",
        str(CACHE_S),
        "For how many seconds a task keeps what the table has for a key, also that it has nothing.",
    ),
    Parameter(
        "cache_rows",
        POSTGRES_SCHEMES,
        ("lookup",),
        "integer",
        str(CACHE_ROWS),
        "Of how many keys a task keeps that; those that were not needed for the longest time go first.",
    ),
    Parameter(
        "retry_s",
        POSTGRES_SCHEMES,
        ("lookup",),
        "integer",
        str(LOOKUP_RETRY_S),
        "For how many seconds a query is repeated while the server is away; then the run ends.",
    ),
    Parameter(
        "start",
        (*POSTGRES_SCHEMES, *LAKE_SCHEMES),
        SOURCE_ROLES,
        ("earliest", "latest"),
        "earliest",
        "Whether a job without a checkpoint reads the rows that the table has, or only those that come.",
    ),
    Parameter(
        "changed",
        LAKE_SCHEMES,
        SOURCE_ROLES,
        ("fail", "skip"),
        "fail",
        "Whether a commit that deletes or rewrites rows ends the run, or is left out.",
    ),
    Parameter(
        "partition_by",
        ("delta",),
        ("sink",),
        "fields",
        "those of the table; of a new one, none",
        "The fields that split the files of the table, so that readers skip those of other values.",
    ),
    Parameter(
        "partition_by",
        ("iceberg",),
        ("sink",),
        "text",
        "that of the table; of a new one, none",
        "Fields, or year(), month(), day(), hour() of a field, bucket(N,FIELD), truncate(N,FIELD), that split the "
        "files of the table.",
    ),
    Parameter(
        "catalog",
        ("iceberg",),
        ALL_ROLES,
        "text",
        "must be given",
        "The catalog of the table: a file of SQLite, postgresql://USER@HOST:PORT/DATABASE, or the address of a REST "
        "catalog.",
    ),
    Parameter(
        "catalog_name",
        ("iceberg",),
        ALL_ROLES,
        "text",
        "default",
        "The name of the catalog in a database, which may have several.",
    ),
    Parameter(
        "warehouse",
        ("iceberg",),
        ALL_ROLES,
        "text",
        "that of a REST catalog",
        "The folder, or s3://BUCKET/PREFIX, where new tables are; of a REST catalog, the name of the warehouse.",
    ),
    *(
        Parameter(name, ("iceberg",), ALL_ROLES, "secret", "none", meaning)
        for name, meaning in (
            ("password", "The password of the user of the database, best as a reference."),
            ("credential", "CLIENT_ID:CLIENT_SECRET for a REST catalog, best as a reference."),
            ("token", "The token for a REST catalog, best as a reference."),
        )
    ),
    Parameter(
        "create_table",
        ("delta", "iceberg"),
        ("sink",),
        ("true", "false"),
        "true",
        "Create the table when it does not exist, with a column for each field.",
    ),
    Parameter(
        "password",
        POSTGRES_SCHEMES,
        _OF_DATABASES,
        "secret",
        "that of the URI, or of libpq (PGPASSWORD, ~/.pgpass)",
        "The password of the user, best as a reference.",
    ),
    Parameter(
        "sslmode",
        POSTGRES_SCHEMES,
        _OF_DATABASES,
        ("disable", "prefer", "require", "verify-ca", "verify-full"),
        "prefer",
        "Whether the connection uses TLS, and whether the server's certificate is verified.",
    ),
    Parameter(
        "sslrootcert",
        POSTGRES_SCHEMES,
        _OF_DATABASES,
        "path",
        "that of libpq",
        "The certificates, in PEM, that the server's certificate is verified by; `system` for those of the system.",
    ),
    Parameter(
        "sslcert",
        POSTGRES_SCHEMES,
        _OF_DATABASES,
        "path",
        "that of libpq",
        "The certificate of the client, in PEM.",
    ),
    Parameter(
        "sslkey",
        POSTGRES_SCHEMES,
        _OF_DATABASES,
        "path",
        "that of libpq",
        "The key of the client's certificate.",
    ),
    Parameter("format", OBJECT_SCHEMES, ("sink",), FILE_SCHEMES, "must be given", "The form of the files."),
    Parameter(
        "format",
        OBJECT_SCHEMES,
        SOURCE_ROLES,
        (*FILE_SCHEMES, "text"),
        "must be given",
        "The form of the files.",
    ),
    Parameter(
        "names",
        OBJECT_SCHEMES,
        SOURCE_ROLES,
        ("any", "growing", "manifests"),
        "any",
        "How new objects are found: by a list of all, by a list of those after the last name, or by the manifests of "
        "a sink of penstock.",
    ),
    Parameter(
        "endpoint", _WITH_S3, ALL_ROLES, "text", _ENVIRONMENT, "The address of the store, if not Amazon's."
    ),
    Parameter("region", _WITH_S3, ALL_ROLES, "text", _ENVIRONMENT, "The region of the bucket."),
    *(
        Parameter(name, _WITH_S3, ALL_ROLES, "secret", _ENVIRONMENT, f"{what}, best as a reference.")
        for name, what in (
            ("access_key_id", "The id of the key"),
            ("secret_access_key", "The secret of the key"),
            ("session_token", "The token of a key for a session"),
        )
    ),
)
