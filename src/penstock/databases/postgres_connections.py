"""Connections to PostgreSQL: opened with a name that tells a sink partition, kept in a worker, errors as sentences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.bindings.secrets import refused_login, resolve_settings
from penstock.bindings.types import PostgresBinding
from penstock.errors import BindingError, ExternalSystemError

__all__ = [
    "as_external",
    "as_looked_up",
    "as_unread",
    "end_earlier_sessions",
    "is_away",
    "open_connection",
    "return_connection",
    "take_connection",
]

_CONNECT_S: Final = 10
# A dead server or machine does not answer; the connection then fails after these.
_KEEPALIVE: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_MAX_NAME_BYTES: Final = 63

_kept: Final[dict[tuple[Any, ...], list[Any]]] = {}
_own_sessions: Final[set[int]] = set()


def open_connection(binding: PostgresBinding, name: str) -> Any:
    """Connect, with transactions that the caller ends.

    Raises BindingError when psycopg is missing or the login is refused, and ExternalSystemError when the server does
    not answer, or its password is in a file.
    """
    try:
        import psycopg
    except ImportError:
        raise BindingError(
            f"Stream {binding.stream!r}: PostgreSQL needs psycopg, which is not installed. Install it: "
            "pip install 'penstock[postgresql]'."
        ) from None
    settings: dict[str, Any] = {**_KEEPALIVE, **resolve_settings(binding.stream, binding.client)}
    try:
        connection = psycopg.connect(
            host=binding.host,
            port=binding.port,
            dbname=binding.database,
            application_name=name[:_MAX_NAME_BYTES],
            connect_timeout=_CONNECT_S,
            client_encoding="UTF8",
            **settings,
        )
    except psycopg.OperationalError as e:
        reason = " ".join(str(e).split())
        if _is_refused(reason):
            kind = refused_login(binding.client) if "authentication failed" in reason else BindingError
            raise kind(
                f"Stream {binding.stream!r}: {binding.host}:{binding.port} refuses the login ({reason}). Correct "
                "user, password, database or sslmode in the URI."
            ) from e
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the PostgreSQL server {binding.host}:{binding.port} does not answer "
            f"({reason}). Start the job again when it does."
        ) from e
    # Times without a zone are those of the records, in UTC, whatever the server's zone is.
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("SET DATESTYLE TO ISO")
    # In real time a transaction stays open for an interval, in which no record may come.
    connection.execute("SET idle_in_transaction_session_timeout TO 0")
    connection.commit()
    # A process that was forked from this one has none of these connections.
    _own_sessions.add(connection.info.backend_pid)
    return connection


def _is_refused(reason: str) -> bool:
    """Return whether the server has answered, and will answer the same again."""
    # Before a login psycopg has no codes, only these texts of the server.
    texts = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
    of_client = ("certificate", "fe_sendauth", "does not support SSL")
    return ("FATAL" in reason and any(text in reason for text in texts)) or any(
        text in reason for text in of_client
    )


def take_connection(binding: PostgresBinding, name: str) -> Any:
    """Return a connection that this process has kept for a sink partition and that still works, or a new one."""
    import psycopg

    kept = _kept.setdefault((os.getpid(), binding.uri, name), [])
    while kept:
        connection = kept.pop()
        try:
            connection.execute("SELECT 1")
        except psycopg.OperationalError:
            connection.close()
        else:
            return connection
    return open_connection(binding, name)


def return_connection(binding: PostgresBinding, name: str, connection: Any) -> None:
    """Keep a connection for the next task of its sink partition."""
    _kept.setdefault((os.getpid(), binding.uri, name), []).append(connection)


def end_earlier_sessions(connection: Any) -> None:
    """End the transactions that other processes have open for the same sink partition; their tasks were given up.

    One of them may stand still with locks that this one needs. In this process an earlier task may be committing.
    """
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE xact_start IS NOT NULL "
        "AND application_name = current_setting('application_name') AND usename = current_user "
        "AND datname = current_database() AND pid <> ALL (%s)",
        (list(_own_sessions),),
    )
    connection.commit()


def as_external(binding: PostgresBinding) -> AbstractContextManager[None]:
    """Turn an error of the server into one that says what to do. The micro-batch is then written again."""
    return _explained(binding, "Sink", "written", "What was not committed is written again.")


def as_unread(binding: PostgresBinding) -> AbstractContextManager[None]:
    """Turn an error of the server into one of a stream. The stream continues where it was."""
    return _explained(binding, "Stream", "read", "It continues from the last row in the journal.")


def as_looked_up(binding: PostgresBinding) -> AbstractContextManager[None]:
    """Turn an error of the server into one of a lookup table. The records of the micro-batch come again."""
    remedy = "Records are looked up again when the job continues."
    return _explained(binding, "Lookup table", "read", remedy)


@contextlib.contextmanager
def _explained(binding: PostgresBinding, kind: str, done: str, remedy: str) -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as e:
        code = f", {e.sqlstate}" if e.sqlstate else ""
        raise ExternalSystemError(
            f"{kind} {binding.stream!r}: {binding.place} cannot be {done} ({' '.join(str(e).split())}{code}). {remedy}"
        ) from e


def is_away(error: ExternalSystemError) -> bool:
    """Return whether the server does not answer, or not now, so that the same query may succeed later."""
    import psycopg

    return isinstance(error.__cause__, psycopg.OperationalError)
