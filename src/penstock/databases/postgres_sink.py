"""PostgreSQL sink: the records of a micro-batch in a table, exactly once, in one transaction of each sink partition."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from penstock.bindings.types import PostgresBinding
from penstock.databases.copy_text import copy_text
from penstock.databases.postgres_connections import (
    as_external,
    end_earlier_sessions,
    open_connection,
    return_connection,
    take_connection,
)
from penstock.databases.postgres_table import GONE, ORDER, Statements, ensure_table, takes_nulls_as_equal
from penstock.databases.sink_progress import Committed, Refused, SinkProgress
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType, python_values
from penstock.sinks.base import RejectingTask, Rejection, SinkTask, TaskContext
from penstock.tables.changes import CHANGE, DELETE, change_codes

__all__ = ["PostgresSink"]

# A record as the bytes of a dead letter, which a table takes whole.
_MAX_BYTES: Final = 1 << 30
# Classes of errors: data, constraints, the condition of a view, limits such as that of an index, and PL/pgSQL.
_OF_RECORDS: Final = ("22", "23", "44", "54", "P0")


class PostgresSink:
    """A sink that adds each record to a table, or replaces the row that has the same key.

    A sink partition writes a micro-batch in one transaction, which also sets the number of the micro-batch in a table
    of penstock's. A task that runs again finds it there and writes nothing. Records that the table refuses (by a
    constraint, or a value outside the column's type) are rejected one by one.
    """

    exactly_once = True
    commits_in_tasks = True
    holds_locks = True

    def __init__(
        self, binding: PostgresBinding, record_type: RecordType, upsert_key: Sequence[str] | None = None
    ) -> None:
        self._binding: Final = binding
        self._takes_changes: Final = upsert_key is not None
        if upsert_key is not None and binding.upsert_by:
            raise BindingError(
                f"Sink {binding.stream!r} takes upserts, whose key is known; remove upsert_by from its URI."
            )
        if upsert_key is not None and not upsert_key:
            raise BindingError(
                f"Sink {binding.stream!r} takes the upserts of one row, which has no key in a table. Give the rows "
                'a key: sink_to(..., changes="upserts", key=["id"]).'
            )
        self._key: Final = tuple(upsert_key or binding.upsert_by)
        names = [name for name in record_type.field_names if not (self._takes_changes and name == CHANGE)]
        unknown = [name for name in self._key if name not in names]
        if unknown:
            raise BindingError(
                f"Sink {binding.stream!r}: upsert_by names {', '.join(unknown)}, but the records have only "
                f"{', '.join(names)}."
            )
        if self._key and {ORDER, GONE} & set(names):
            raise BindingError(
                f"Sink {binding.stream!r}: fields of rows that are replaced cannot be called {ORDER} or {GONE}."
            )
        self._schema: Final = pa.schema([record_type.schema.field(name) for name in names])
        self._statements: Final = Statements.of(binding, names, self._key)

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # the database keeps it
        """Return the newest micro-batch that the table has a part of."""
        with open_connection(self._binding, "penstock start") as connection, as_external(self._binding):
            return SinkProgress(self._binding, lineage).newest(connection)

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # the database keeps it
        """Check or create the table, and create that of the progress. Raises BindingError with the remedy."""
        binding = self._binding
        with open_connection(binding, "penstock start") as connection, as_external(binding):
            import psycopg

            try:
                ensure_table(connection, binding, self._schema, self._key)
                SinkProgress(binding, lineage).create(connection)
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as e:
                raise BindingError(
                    f"Sink {binding.stream!r}: the user {binding.client['user']} cannot prepare {binding.place} "
                    f"({e.diag.message_primary}). It needs CREATE in the schema {binding.schema} for the table "
                    "penstock_progress."
                ) from e

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task whose rows are visible when it has finished."""
        return _TableTask(self._binding, self._statements, context, takes_changes=self._takes_changes)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the tasks have made their rows visible."""


class _TableTask(RejectingTask):
    """A transaction that writes the records of one sink partition as they come."""

    def __init__(
        self, binding: PostgresBinding, statements: Statements, context: TaskContext, *, takes_changes: bool
    ) -> None:
        super().__init__()
        self._binding: Final = binding
        self._statements: Final = statements
        self._context: Final = context
        self._takes_changes: Final = takes_changes
        self._progress: Final = SinkProgress(binding, context.lineage)
        digest = xxhash.xxh3_64_hexdigest(f"{context.lineage}/{binding.stream}".encode())
        self._name: Final = f"penstock {context.partition} {digest} {binding.stream}"
        self._connection: Any = None
        self._before: Committed | None = None
        self._refused: Final[list[Refused]] = []
        self._equal_nulls = True
        self._writes = 0

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # rows have their key
        if not len(batch):
            return
        with as_external(self._binding):
            before = self._begin()
            if before.batch < self._context.batch_id:
                self._write(self._rows(batch))
                found = [one for one in self._refused if one.write == self._writes]
            else:
                found = [one for one in before.refused if one.write == self._writes]
        self._writes += 1
        self._rejections = [
            Rejection(one.row, one.reason, _as_json(batch.slice(one.row, 1)), _MAX_BYTES)
            for one in sorted(found, key=lambda one: one.row)
        ]

    def finish(self) -> bytes:
        if self._connection is None:
            return b""
        assert self._before is not None
        batch_id = self._context.batch_id
        with as_external(self._binding):
            if self._before.batch < batch_id:
                committed = Committed(batch_id, self._refused)
                if not self._progress.advance(self._connection, self._context.partition, committed):
                    raise ExternalSystemError(
                        f"Sink {self._binding.stream!r}: another attempt has written micro-batch {batch_id} to "
                        f"{self._binding.place} meanwhile. The micro-batch is repeated, and written no second time."
                    )
                self._connection.commit()
            else:
                self._connection.rollback()
        return_connection(self._binding, self._name, self._connection)
        self._connection = None
        return b""

    def abort(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _begin(self) -> Committed:
        """Begin the transaction, and return what the partition has committed before it."""
        if self._before is None:
            connection = self._connection = take_connection(self._binding, self._name)
            end_earlier_sessions(connection)
            self._before = self._progress.read(connection, self._context.partition)
            if self._before.batch < self._context.batch_id:
                # The refusal of a constraint must be known while its record is still at hand.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                if self._statements.key:
                    self._stage(connection)
        return self._before

    def _stage(self, connection: Any) -> None:
        """Make or renew the table of staged rows."""
        statements = self._statements
        # A kept connection may have one from before a change of the table, with types that refuse new values.
        if connection.execute(*statements.is_stale).fetchone()[0]:
            connection.execute(statements.unstage)
        connection.execute(statements.stage)
        self._equal_nulls = takes_nulls_as_equal(connection, self._binding, statements.key)

    def _write(self, rows: pa.RecordBatch) -> None:
        """Write rows. Those with a null in their key are refused where it would replace nothing."""
        has_null = np.zeros(len(rows), np.bool_)
        for name in self._statements.key:
            has_null |= rows.column(name).is_null().to_numpy(zero_copy_only=False)
        places = np.arange(len(rows))
        if has_null.any() and not self._equal_nulls:
            reason = (
                f"A field of its key {', '.join(self._statements.key)} is null, and {self._binding.place} takes "
                "nulls as different, so it would replace nothing."
            )
            self._refused.extend(Refused(self._writes, int(row), reason) for row in places[has_null])
            rows, places = rows.filter(pa.array(~has_null)), places[~has_null]
        if len(rows):
            self._add(rows, places, self._statements.apply(with_nulls=bool(has_null.any())))

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are copied."""
        columns = [batch.column(name) for name in self._statements.names]
        names = list(self._statements.names)
        if self._statements.key:
            gone = change_codes(batch) == DELETE if self._takes_changes else np.zeros(len(batch), np.bool_)
            columns += [pa.array(np.arange(len(batch))), pa.array(gone)]
            names += [ORDER, GONE]
        return pa.RecordBatch.from_arrays(columns, names)

    def _add(self, rows: pa.RecordBatch, places: np.ndarray, apply: Sequence[str]) -> None:
        """Write rows of some places in their block.

        When the table refuses some of them, find out which, and write the others.
        """
        import psycopg

        try:
            with self._connection.transaction():
                with self._connection.cursor().copy(self._statements.copy) as copy:
                    copy.write(copy_text(rows))
                for statement in apply if self._statements.key else ():
                    self._connection.execute(statement)
        except psycopg.Error as e:
            if not _is_of_record(e):
                raise
            if len(rows) == 1:
                self._refused.append(Refused(self._writes, int(places[0]), self._reason(e)))
                return
            half = len(rows) // 2
            self._add(rows.slice(0, half), places[:half], apply)
            self._add(rows.slice(half), places[half:], apply)

    def _reason(self, error: Any) -> str:
        detail = f" {error.diag.message_detail}" if error.diag.message_detail else ""
        return f"{self._binding.place} refuses the record: {error.diag.message_primary}.{detail}"


def _is_of_record(error: Any) -> bool:
    """Return whether a record is to blame for an error: its values, a constraint, a limit, or a trigger."""
    import psycopg

    code = error.sqlstate
    if code is None:
        return False
    if code[:2] in _OF_RECORDS:
        return True
    try:
        psycopg.errors.lookup(code)
    except KeyError:
        # It is not a code of the server: a trigger has chosen it.
        return True
    return False


def _as_json(row: pa.RecordBatch) -> bytes:
    """Return a row as JSON, for people; bytes are base64."""
    values = {name: python_values(row.column(name))[0] for name in row.schema.names}
    return msgspec.json.encode(values)
