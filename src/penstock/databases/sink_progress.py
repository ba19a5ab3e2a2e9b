"""Sink progress: which micro-batch each partition of a sink has committed, in the database, beside the rows.

The row of a sink partition changes in the transaction that writes the micro-batch. So a task that runs again, even next
to an older attempt that is still alive, finds the micro-batch there and writes nothing. The row also has the rejected
records of that micro-batch, so that its replay rejects the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_table import quote

__all__ = ["Committed", "Refused", "SinkProgress"]

_TABLE: Final = "penstock_progress"


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """A record that the table refused: the number of the write, its row there, and the reason."""

    write: int
    row: int
    reason: str


@dataclass(frozen=True)
class Committed:
    """The newest micro-batch of a sink partition, and the records that the table refused."""

    batch: int
    refused: Sequence[Refused]


class SinkProgress:
    """The progress of the partitions of a sink, in a table beside that of the sink."""

    def __init__(self, binding: PostgresBinding, lineage: str) -> None:
        # As part of statements with parameters, where a percent sign has a meaning.
        self._table: Final = quote(binding.schema, _TABLE).replace("%", "%%")
        self._place: Final = (binding.schema, _TABLE)
        self._sink: Final = (lineage, binding.stream)

    def create(self, connection: Any) -> None:
        """Create the table unless it is there."""
        if self._exists(connection):
            return
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (lineage text, sink text, sink_partition integer, "
            "batch bigint NOT NULL, refused jsonb NOT NULL, PRIMARY KEY (lineage, sink, sink_partition))",
            (),
        )
        connection.commit()

    def newest(self, connection: Any) -> int:
        """Return the newest micro-batch that any partition has committed; -1 if none has."""
        if not self._exists(connection):
            return -1
        found = connection.execute(
            f"SELECT max(batch) FROM {self._table} WHERE (lineage, sink) = (%s, %s)", self._sink
        ).fetchone()
        return -1 if found[0] is None else int(found[0])

    def read(self, connection: Any, partition: int) -> Committed:
        """Return the newest commit of a partition."""
        found = connection.execute(
            f"SELECT batch, refused::text FROM {self._table} "
            "WHERE (lineage, sink, sink_partition) = (%s, %s, %s)",
            (*self._sink, partition),
        ).fetchone()
        if found is None:
            return Committed(-1, ())
        return Committed(int(found[0]), msgspec.json.decode(found[1], type=list[Refused]))

    def advance(self, connection: Any, partition: int, committed: Committed) -> bool:
        """Set the newest commit of a partition, within a transaction; return False if it had that or a newer one."""
        refused = msgspec.json.encode(committed.refused).decode()
        done = connection.execute(
            f"INSERT INTO {self._table} AS t (lineage, sink, sink_partition, batch, refused) "
            "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (lineage, sink, sink_partition) DO UPDATE "
            "SET batch = EXCLUDED.batch, refused = EXCLUDED.refused WHERE t.batch < EXCLUDED.batch",
            (*self._sink, partition, committed.batch, refused),
        )
        return bool(done.rowcount)

    def _exists(self, connection: Any) -> bool:
        found = connection.execute(
            "SELECT 1 FROM information_schema.tables WHERE (table_schema, table_name) = (%s, %s)", self._place
        ).fetchone()
        return found is not None
