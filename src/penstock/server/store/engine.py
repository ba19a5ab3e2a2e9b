"""Engine: opens a store by its URL, and migrates its tables to this version of penstock."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from penstock.errors import JobDefinitionError, StoreError

__all__ = ["connect", "reading", "sqlite_url", "writing"]

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_BUSY_MS: Final = 10_000
_CONNECT_S: Final = 10
# A suspended manager, or one whose machine is gone, must not hold locks forever.
_POSTGRESQL_SETTINGS: Final = {"idle_in_transaction_session_timeout": "4s", "lock_timeout": "10s"}
# Detect a database that vanishes silently.
_CONNECTION_OPTIONS: Final = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "penstock",
}
_MIGRATION_LOCK: Final = 0x70656E73746F636B
_WRITES: Final = "penstock_writes"
# Alembic has one context in a process.
_migrating: Final = threading.Lock()


def sqlite_url(path: Path) -> str:
    """Return the URL of a store in a file."""
    return f"sqlite:///{path}"


def connect(url: str) -> sa.Engine:
    """Create or migrate the tables of a store, and return an engine for it. Several processes may do so at once.

    The URL is `sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`. Raises JobDefinitionError for any
    other URL, StoreError if the store cannot be used.
    """
    engine = _engine(url)
    try:
        with writing(engine) as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config = Config()
            config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            config.attributes["connection"] = connection
            with _migrating:
                command.upgrade(config, "head")
    except CommandError as e:
        raise StoreError(
            f"The store {_masked_url(engine)} was created by another version of penstock ({e}). Use the newest version "
            "that has used it, or another store."
        ) from e
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that may write. On SQLite, it waits for other writers. Raises StoreError."""
    with (
        _raise_as_store_errors(engine),
        engine.connect().execution_options(**{_WRITES: True}) as connection,
        connection.begin(),
    ):
        yield connection


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that only reads. Raises StoreError."""
    with _raise_as_store_errors(engine), engine.begin() as connection:
        yield connection


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        parsed = None
    if parsed is not None and parsed.get_backend_name() == "sqlite" and parsed.database:
        return _sqlite(parsed)
    if parsed is not None and parsed.get_backend_name() == "postgresql" and parsed.database:
        return _postgresql(parsed)
    raise JobDefinitionError(
        "The URL of the store must be sqlite:///PATH, postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or "
        "s3://BUCKET/PREFIX."
    )


def _sqlite(url: sa.URL) -> sa.Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The store has bindings, which may contain secrets. SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as e:
        raise StoreError(
            f"The store {path} cannot be opened ({e.strerror}). Choose another place for it."
        ) from e
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"), connect_args={"timeout": _BUSY_MS / 1000}
    )

    def prepare(connection: Any, _: Any) -> None:
        # Transactions begin in `begin` below; Python's module would begin them too late.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {_BUSY_MS}",
            "journal_mode = WAL",
            # An acknowledged change must survive a power loss.
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    def begin(connection: sa.Connection) -> None:
        # A deferred transaction that reads before it writes would fail if another one wrote in between.
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", prepare)
    sa.event.listen(engine, "begin", begin)
    return engine


def _postgresql(url: sa.URL) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=_CONNECTION_OPTIONS
        )
    except ModuleNotFoundError as e:
        raise StoreError(
            "A store on PostgreSQL needs psycopg, which is not installed. Run pip install 'penstock[postgresql]'."
        ) from e

    def prepare(connection: Any, _: Any) -> None:
        for name, value in _POSTGRESQL_SETTINGS.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.commit()

    sa.event.listen(engine, "connect", prepare)
    return engine


def _masked_url(engine: sa.Engine) -> str:
    return engine.url.set(drivername=engine.dialect.name).render_as_string(hide_password=True)


@contextlib.contextmanager
def _raise_as_store_errors(engine: sa.Engine) -> Iterator[None]:
    """Raise database errors as StoreError, except violated constraints, which only the caller can interpret."""
    try:
        yield
    except sa.exc.IntegrityError:
        raise
    except sa.exc.DBAPIError as e:
        raise StoreError(
            f"The store {_masked_url(engine)} cannot be used: {str(e.orig).strip()}. Check what was "
            "done before you try again."
        ) from e
    except sa.exc.TimeoutError as e:
        raise StoreError(f"The store {_masked_url(engine)} is too busy: {e}. Try again.") from e
