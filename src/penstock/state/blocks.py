"""Blocks: stored state as Arrow IPC streams, read as what is declared now."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import StateError

__all__ = ["RENAMED_FROM", "as_bytes", "conformed", "converted"]

RENAMED_FROM: Final = b"renamed_from"
"""In the metadata of a declared column: the name it had before."""


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
        except pa.ArrowException as e:
            raise StateError(
                f"{field.name!r} is declared as {field.type}, and {column.type} is stored: {e}. Restore the older job, "
                "or start with a new checkpoint."
            ) from e
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as one of a wider type; fields of records that are new are null. pa.ArrowException when one is none."""
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        found = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        children = [
            converted(found[field.name], field.type)
            if field.name in found
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        column = pa.concat_arrays([column])
        items = converted(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, kind, mask=column.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(column.type):
        column = pa.concat_arrays([column])
        keys, items = converted(column.keys, kind.key_type), converted(column.items, kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, kind, mask=column.is_null())
    return column.cast(kind)
