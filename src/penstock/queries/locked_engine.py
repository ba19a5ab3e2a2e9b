"""Locked engine: answers a query over Arrow tables with DuckDB, which has no access to anything else."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import QueryError

__all__ = ["QueryLimits", "answer", "check", "quote"]

_CONFIGURATION: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "max_temp_directory_size": "0B",
    # Sums of floating-point numbers would depend on how threads share the rows.
    "threads": "1",
}
_BATCH_ROWS: Final = 10_000
_INTERRUPT_AGAIN_S: Final = 0.1
_PLACE: Final = re.compile(r"\n\nLINE (\d+): (.*)\n( *)\^")
_KIND: Final = re.compile(r"^[A-Za-z ]+ Error: ")


@dataclass(frozen=True)
class QueryLimits:
    """The limits of a query: memory in MiB, seconds, and rows of its result.

    Raises QueryError when one is not positive.
    """

    memory_mb: int = 1024
    seconds: float = 30.0
    rows: int = 100_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise QueryError(f"The limit {name} of a query is {value}; it must be positive.")


def answer(
    query: str, tables: Mapping[str, pa.Table], views: Mapping[str, str], limits: QueryLimits
) -> pa.Table:
    """Return the result of a query.

    `tables` are by their internal names. `views` are their SQL over these, by the name in the schema `state`. Raises
    QueryError.
    """
    with (
        _opened(query, tables, views, limits) as (duckdb, connection),
        _interrupted_after(limits.seconds, connection),
    ):
        return _result(duckdb, connection, query, limits)


def check(query: str, tables: Mapping[str, pa.Table], views: Mapping[str, str], limits: QueryLimits) -> None:
    """Raise the QueryError of a query that is wrong whatever the rows are, without running it.

    `tables` may be empty; only their columns count.
    """
    with _opened(query, tables, views, limits) as (duckdb, connection):
        _bind(duckdb, connection, query)


@contextmanager
def _opened(
    query: str, tables: Mapping[str, pa.Table], views: Mapping[str, str], limits: QueryLimits
) -> Iterator[tuple[Any, Any]]:
    """Open the engine for a query, which is a single SELECT; yield its module and the connection."""
    duckdb = _duckdb()
    configuration = {**_CONFIGURATION, "memory_limit": f"{limits.memory_mb}MiB"}
    with (
        duckdb.connect(":memory:", config=configuration) as connection,
        _as_query_errors(duckdb, limits),
    ):
        connection.execute(
            "SET python_enable_replacements = false; SET TimeZone = 'UTC'; CREATE SCHEMA state"
        )
        for name, table in tables.items():
            connection.register(name, table)
        for name, sql in views.items():
            connection.execute(f"CREATE VIEW state.{quote(name)} AS {sql}")
        connection.execute("SET lock_configuration = true")
        _check_statement(duckdb, connection, query)
        yield duckdb, connection


@contextmanager
def _interrupted_after(seconds: float, connection: Any) -> Iterator[None]:
    """Interrupt a query after some time, and again until it has ended.

    DuckDB forgets an interrupt that comes before a statement begins.
    """
    has_ended = threading.Event()

    def interrupt() -> None:
        wait_s = seconds
        while not has_ended.wait(wait_s):
            connection.interrupt()
            wait_s = _INTERRUPT_AGAIN_S

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def quote(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise QueryError(
            "Queries need DuckDB, which is not installed. Install it: pip install 'penstock[sql]'."
        ) from None
    return duckdb


def _check_statement(duckdb: Any, connection: Any, query: str) -> None:
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise QueryError(
            f"A query is a single SELECT; these are {len(statements)} statements. Run one at a time."
        )
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise QueryError(
            f"A query is a SELECT, and this is {statements[0].type.name}. Queries only read; commands change a job."
        )


def _bind(duckdb: Any, connection: Any, query: str) -> Any:
    """Return the relation of a query, which runs when its rows are read; None for a statement without rows."""
    try:
        return connection.sql(query)
    except (duckdb.BinderException, duckdb.CatalogException):
        # The error of a statement has the position; that of a relation does not.
        connection.execute(query)
        raise


def _result(duckdb: Any, connection: Any, query: str, limits: QueryLimits) -> pa.Table:
    relation = _bind(duckdb, connection, query)
    if relation is None:
        return pa.table({})
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > limits.rows:
            raise QueryError(
                f"The result has more than {limits.rows:,} rows. Aggregate, add LIMIT, or allow more rows."
            )
        batches.append(batch)
    found = pa.Table.from_batches(batches, schema=reader.schema)
    return _distinct_names(_plain_integers(found))


def _plain_integers(found: pa.Table) -> pa.Table:
    """Return a table in which integers of 128 bits, such as sums, are BIGINT where all of a column fit."""
    for number, field in enumerate(found.schema):
        if field.type.equals(pa.decimal128(38, 0)):
            try:
                column = found.column(number).cast(pa.int64())
            except pa.ArrowException:
                continue
            found = found.set_column(number, field.with_type(pa.int64()), column)
    return found


def _distinct_names(found: pa.Table) -> pa.Table:
    """Return a table whose columns have different names: a repeated one gets a number."""
    names: dict[str, None] = {}
    for name in found.column_names:
        number, distinct = 1, name
        while distinct in names:
            number += 1
            distinct = f"{name}_{number}"
        names[distinct] = None
    return found.rename_columns(list(names))


@contextmanager
def _as_query_errors(duckdb: Any, limits: QueryLimits) -> Iterator[None]:
    """Raise errors of DuckDB as sentences with the position in the query."""
    try:
        yield
    except duckdb.InterruptException:
        raise QueryError(
            f"The query took more than {limits.seconds:g} s. Ask for less, or allow more time."
        ) from None
    except duckdb.OutOfMemoryException:
        raise QueryError(
            f"The query needs more than {limits.memory_mb} MiB of memory. Ask for less, or allow more."
        ) from None
    except duckdb.PermissionException as e:
        raise QueryError(
            _sentence(str(e), "A query sees the state of the job, and no files or addresses.")
        ) from None
    except duckdb.Error as e:
        raise QueryError(_sentence(str(e))) from None
    except pa.ArrowException as e:
        # Errors of the engine while it streams the result.
        raise QueryError(_sentence(str(e))) from None


def _sentence(message: str, instead: str = "") -> str:
    """Return a message of DuckDB in the form of penstock's: the place at the end, then the line with a caret."""
    found = _PLACE.search(message)
    text = message[: found.start()] if found else message
    first = instead or " ".join(_KIND.sub("", line.strip()) for line in text.split("\n") if line.strip())
    sentence = first[:1].upper() + first[1:]
    sentence += "" if sentence.endswith((".", "!", "?")) else "."
    if found is None:
        return sentence
    number, line, spaces = found.groups()
    column = len(spaces) - len(f"LINE {number}: ")
    return f"{sentence} (at line {number}, column {column + 1})\n  {line}\n  {' ' * column}^"
