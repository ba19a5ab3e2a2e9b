"""Blocks: stored state as Arrow IPC streams, converted to the current declaration when read."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import StateError
from penstock.state.widening import widen

__all__ = ["EXPIRES", "RENAMED_FROM", "Content", "Entries", "as_bytes", "conform"]

EXPIRES: Final = "@expires"
"""The suffix of the name of the column with a state's expiry times."""
RENAMED_FROM: Final = b"renamed_from"
"""The metadata key of a declared column for its earlier name."""

Content: TypeAlias = bytes | memoryview
"""The stored content of a name. On disk it is a view, so that only the parts that are used are read."""


class Entries(Protocol):
    """The storage of a step's state in one slot: bytes by name."""

    def get(self, name: str) -> Content | None:
        """Return the bytes of a name, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Set the bytes of a name."""

    def remove(self, name: str) -> None:
        """Remove a name."""


def as_bytes(batch: pa.RecordBatch) -> bytes:
    """Encode a batch as an Arrow IPC stream, which any Arrow reader can open."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to the current declaration: match names or earlier names, widen types, drop undeclared columns.

    New states have no values yet. Raises StateError if a stored type does not fit.
    """
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(None)
    columns = []
    for field in schema:
        before = (field.metadata or {}).get(RENAMED_FROM, b"").decode()
        name = field.name if field.name in rows.schema.names else before
        if name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(name)
        try:
            columns.append(widen(column, field.type))
        except ValueError as e:
            raise StateError(
                f"{field.name!r} is declared as {field.type}, and {column.type} is stored: {e}. Restore the older job, "
                "or start with a new checkpoint."
            ) from e
    return pa.RecordBatch.from_arrays(columns, schema=schema)
