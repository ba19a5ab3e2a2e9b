"""A real PostgreSQL for tests: on a free port, in a folder of its own."""

from __future__ import annotations

import uuid
from typing import Final

import psycopg
from debian import skipped_where_missing

from penstock.machine.postgresql_server import LocalPostgres

PASSWORD: Final = "s3cr3t"


class PostgresServer(LocalPostgres):
    """One server; a context manager. Each test uses its own schema."""

    def __init__(self) -> None:
        with skipped_where_missing():
            super().__init__(PASSWORD, ["max_prepared_transactions=4"])

    def new_schema(self) -> str:
        """Return the URL of an empty schema, which serves as a database and is much quicker to create."""
        name = f"schema_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[call-overload,unused-ignore]
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"
