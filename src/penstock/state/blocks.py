"""Blocks: stored state as Arrow IPC streams, read as what is declared now."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import StateError

__all__ = ["EXPIRES", "as_bytes", "conformed"]

EXPIRES: Final = "@expires"
"""What the name of a column ends with that says when the values of a state expire."""


def as_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream, which any Arrow reader can open."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as the step declares them now: states that are new have no values yet."""
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(None)
    for field in rows.schema:
        if field.name not in schema.names:
            if field.name.removesuffix(EXPIRES) in schema.names:
                # The state is kept for ever from now on.
                continue
            raise StateError(
                f"The checkpoint holds the state {field.name!r} ({field.type}), which the step no longer declares. "
                "Declare it again, or start with a new checkpoint."
            )
        if not schema.field(field.name).type.equals(field.type):
            raise StateError(
                f"The step declares {field.name!r} as {schema.field(field.name).type}; the checkpoint holds "
                f"{field.type}. Restore the older job, or start with a new checkpoint."
            )
    found = rows.schema.names
    columns = [rows.column(f.name) if f.name in found else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
