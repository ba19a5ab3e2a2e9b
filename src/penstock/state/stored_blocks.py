"""Blocks: stored state as Arrow IPC streams, read as what is declared now."""

from __future__ import annotations

from typing import Final, TypeAlias

import pyarrow as pa

from penstock.errors import StateError
from penstock.state.widening import converted

__all__ = ["EXPIRES", "RENAMED_FROM", "Content", "as_bytes", "conformed"]

EXPIRES: Final = "@expires"
"""What the name of a column ends with that says when the values of a state expire."""
RENAMED_FROM: Final = b"renamed_from"
"""In the metadata of a declared column: the name it had before."""

Content: TypeAlias = bytes | memoryview
"""What is stored under a name: a view where it is on disk, so that only what is looked at is read."""


def as_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream, which any Arrow reader can open."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as they are declared now: by their names or earlier names, widened, without what is no longer declared.

    States that are new have no values yet. Raises StateError when a stored value does not fit.
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
            columns.append(converted(column, field.type))
        except ValueError as e:
            raise StateError(
                f"{field.name!r} is declared as {field.type}, and {column.type} is stored: {e}. Restore the older job, "
                "or start with a new checkpoint."
            ) from e
    return pa.RecordBatch.from_arrays(columns, schema=schema)
