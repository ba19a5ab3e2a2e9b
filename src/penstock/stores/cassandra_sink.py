"""Cassandra sink: each record as a row, idempotent by primary key; older writes change nothing, by their timestamps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.bindings.versioned_types import CassandraBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext, VersionedSink
from penstock.sinks.patience import Patience
from penstock.stores.cassandra_clients import as_external, get_session, is_passing, open_session
from penstock.stores.cassandra_requests import send_requests
from penstock.stores.cassandra_table import TableShape, fit_table, values_of
from penstock.stores.refused_rows import bodies_of
from penstock.tables.changes import DELETE, change_codes, row_type

__all__ = ["CassandraSink", "check_table"]

# Half of the segment of a commit log, by default.
_MAX_BYTES: Final = 16 << 20
_OF_TTL: Final = re.compile(r"ttl (is too large|of \d+ seconds)", re.IGNORECASE)


@dataclass(frozen=True)
class _Target:
    """What tasks write, and where: only plain values. `kinds` has the type of each column."""

    binding: CassandraBinding
    encoder: Encoder
    kinds: Mapping[str, str]
    key: tuple[str, ...]
    takes_changes: bool

    @property
    def insert(self) -> str:
        """The statement that writes a row: its columns, then the timestamp."""
        ttl = "" if self.binding.ttl_s is None else f" AND TTL {self.binding.ttl_s}"
        names, marks = ", ".join(map(_quoted, self.kinds)), ", ".join("?" * len(self.kinds))
        return f"INSERT INTO {self._table} ({names}) VALUES ({marks}) USING TIMESTAMP ?{ttl}"

    @property
    def delete(self) -> str:
        """The statement that deletes a row: the timestamp, then its key."""
        named = " AND ".join(f"{_quoted(name)} = ?" for name in self.key)
        return f"DELETE FROM {self._table} USING TIMESTAMP ? WHERE {named}"

    @property
    def _table(self) -> str:
        return f"{_quoted(self.binding.keyspace)}.{_quoted(self.binding.table)}"


class CassandraSink(VersionedSink):
    """A sink that writes each record as a row, and deletes what an upsert deletes.

    A write has the version of its micro-batch, and the number of the record in the task, as its timestamp. Of two
    writes Cassandra keeps the later one by that, whichever comes first. So a write may also be sent again at any time.
    """

    exactly_once = False
    commits_in_tasks = True

    def __init__(
        self,
        binding: CassandraBinding,
        encoder: Encoder,
        record_type: RecordType,
        upsert_key: Sequence[str] | None = None,
    ) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._rows: Final = record_type if upsert_key is None else row_type(record_type)
        self._upsert_key: Final = upsert_key
        self._target: _Target | None = None

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # later writes replace earlier ones
        """Return -1: rows that are there may be written again."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # the table keeps it
        """Check that the table takes the records. Raises BindingError with everything that does not fit."""
        shape = check_table(self._binding)
        kinds = fit_table(self._binding.stream, shape, self._rows, self._upsert_key)
        takes_changes = self._upsert_key is not None
        self._target = _Target(self._binding, self._encoder, kinds, tuple(shape.key), takes_changes)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task whose rows the servers have when they are written."""
        assert self._target is not None, "the sink was not prepared"
        return _RowTask(self._target, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the servers have the rows."""


def check_table(binding: CassandraBinding) -> TableShape:
    """Return the shape of the table. Raises BindingError if there is no table, and what a start raises."""
    with open_session(binding) as session:
        return _shape_of(binding, session)


def _shape_of(binding: CassandraBinding, session: Any) -> TableShape:
    keyspace = session.cluster.metadata.keyspaces.get(binding.keyspace)
    if keyspace is None:
        raise BindingError(
            f"Stream {binding.stream!r}: {binding.address} has no keyspace {binding.keyspace}. Create it, or correct "
            "the URI."
        )
    table = keyspace.tables.get(binding.table)
    if table is None:
        raise BindingError(
            f"Stream {binding.stream!r}: the keyspace {binding.keyspace} has no table {binding.table}. Create it with "
            "a column for each field, or correct the URI."
        )
    return TableShape.of(binding.place, table)


@dataclass(frozen=True)
class _Write:
    """A statement with its values, for a row of the block."""

    row: int
    statement: Any
    values: Sequence[Any]


class _RowTask(RejectingTask):
    """A task that writes the records of a block, many at once, and waits until the servers have them."""

    def __init__(self, target: _Target, context: TaskContext) -> None:
        super().__init__()
        assert context.version > 0, "rows need the version of their micro-batch"
        self._target: Final = target
        self._binding: Final = target.binding
        self._version = context.version
        self._session: Final = get_session(target.binding)
        self._is_checked = False
        with as_external(self._binding):
            # The client keeps what it has prepared.
            self._insert: Final = _prepared(self._session, target.insert)
            self._delete: Final = _prepared(self._session, target.delete) if target.takes_changes else None

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # the columns have them
        refused: dict[int, str] = {}
        self._is_checked = False
        self._check_key()
        writes = self._writes(batch, refused)
        self._version += len(batch)
        self._send(writes, refused)
        self._reject(
            refused, bodies_of(batch.select(list(self._target.kinds)), self._target.encoder), _MAX_BYTES
        )

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: written rows stay until they are written again."""

    def _writes(self, batch: pa.RecordBatch, refused: dict[int, str]) -> list[_Write]:
        """Return the writes of a block; leave out, and give the reason for, records that do not fit."""
        target, first = self._target, self._version
        columns = []
        for name, kind in target.kinds.items():
            values, wrong = values_of(batch.column(name), kind)
            columns.append(values)
            for row, reason in wrong.items():
                refused.setdefault(row, f"The field {name}: {reason}.")
        for name in target.key:
            if batch.column(name).null_count:
                for row in np.flatnonzero(batch.column(name).is_null()).tolist():
                    refused.setdefault(row, f"The field {name}, of the primary key, is null.")
        versions = range(first, first + len(batch))
        rows = list(zip(*columns, versions, strict=True))
        gone = change_codes(batch) == DELETE if target.takes_changes else np.zeros(len(batch), bool)
        if not gone.any() and not refused:
            return [_Write(row, self._insert, values) for row, values in enumerate(rows)]
        places = [list(target.kinds).index(name) for name in target.key]
        return [
            _Write(row, self._delete, (values[-1], *(values[place] for place in places)))
            if gone[row]
            else _Write(row, self._insert, values)
            for row, values in enumerate(rows)
            if row not in refused
        ]

    def _send(self, writes: Sequence[_Write], refused: dict[int, str]) -> None:
        """Write all, in any order, and again what servers could not write at once."""
        patience = Patience(self._binding.retry_s)
        while writes:
            failed, begun = send_requests(
                self._session,
                [(write.statement, write.values) for write in writes],
                self._binding.writes_at_once,
            )
            left = [
                write
                for number, write in enumerate(writes)
                if number >= begun
                or (number in failed and not self._is_refused(write, failed[number], refused))
            ]
            if not left:
                return
            error = next(error for error in failed.values() if is_passing(error))
            if not patience.rest(has_progressed=len(left) < len(writes)):
                with as_external(self._binding):
                    raise error
            writes = left

    def _is_refused(self, write: _Write, error: BaseException, refused: dict[int, str]) -> bool:
        """Return whether a write failed because of its record. Raises for what is wrong with the table or the login."""
        from cassandra import InvalidRequest

        if is_passing(error):
            return False
        if isinstance(error, InvalidRequest):
            self._require_same_table(error)
        # The client raises what Python raises for a value that a type does not have.
        if isinstance(
            error, InvalidRequest | TypeError | ValueError | OverflowError | ArithmeticError
        ) or type(error).__module__ in ("struct", "cassandra.marshal"):
            refused[write.row] = f"{self._binding.place} refuses it: {' '.join(str(error).split())}"
            return True
        with as_external(self._binding):
            raise error

    def _require_same_table(self, error: BaseException) -> None:
        """Raise unless a refusal is about a record: the time to live fits, and the table is as it was at the start."""
        binding, reason = self._binding, " ".join(str(error).split())
        if _OF_TTL.search(reason):
            raise BindingError(
                f"Sink {binding.stream!r}: {binding.place} does not take ttl_s={binding.ttl_s} ({reason}). Lower it in "
                "the URI."
            )
        if not self._is_checked:
            self._check_table(reason)

    def _check_key(self) -> None:
        """Look at what servers have told the client, which costs no request: with another key writes may succeed."""
        binding = self._binding
        keyspace = self._session.cluster.metadata.keyspaces.get(binding.keyspace)
        table = None if keyspace is None else keyspace.tables.get(binding.table)
        if table is not None and tuple(column.name for column in table.primary_key) != self._target.key:
            self._check_table("its primary key is another")

    def _check_table(self, reason: str) -> None:
        """Ask the servers for the table. Raises ExternalSystemError if it is not as it was at the start."""
        binding, target = self._binding, self._target
        with as_external(binding):
            self._session.cluster.refresh_table_metadata(
                binding.keyspace, binding.table, max_schema_agreement_wait=0
            )
        shape = _shape_of(binding, self._session)
        kinds = {name: shape.columns[name].kind for name in target.kinds if name in shape.columns}
        if kinds != target.kinds or tuple(shape.key) != target.key:
            raise ExternalSystemError(
                f"Sink {binding.stream!r}: {binding.place} has changed since the start of this run ({reason}). Start "
                "the job again, which checks the table; what was not committed is written again."
            )
        self._is_checked = True


def _prepared(session: Any, statement: str) -> Any:
    kept = session.__dict__.setdefault("_penstock_prepared", {})
    if statement not in kept:
        kept[statement] = session.prepare(statement)
        # Writes with a timestamp are the same however often they are sent.
        kept[statement].is_idempotent = True
    return kept[statement]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
