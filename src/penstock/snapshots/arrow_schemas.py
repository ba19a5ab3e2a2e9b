"""Schemas: Arrow types as human-readable JSON, which decodes to exactly the same types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import SnapshotError

__all__ = ["Columns", "check_schema", "columns_of", "key_columns", "missing_row", "schema_of"]

Columns: TypeAlias = list[dict[str, Any]]
"""A schema as JSON: one object per column, with its name, type and nullability."""

_UNITS: Final = ("s", "ms", "us", "ns")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.duration(unit) for unit in _UNITS),
        *(pa.timestamp(unit) for unit in _UNITS),
    )
}
_PARAMETERS: Final[tuple[tuple[re.Pattern[str], Callable[..., pa.DataType]], ...]] = (
    (re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]"), pa.timestamp),
    (re.compile(r"decimal128\((\d+), (\d+)\)"), lambda p, s: pa.decimal128(int(p), int(s))),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda size: pa.binary(int(size))),
)
# JSON decoders match names byte by byte, so no character of a name may need an escape.
_NAME: Final = re.compile(r'[^\x00-\x1f"\\]+')


def check_schema(schema: pa.Schema, table: str) -> pa.Schema:
    """Return the schema without metadata. Raises SnapshotError if a snapshot cannot store it exactly."""
    if not len(schema):
        raise SnapshotError(f"The table {table!r} has no columns. Give it at least one.")
    _check_names([field.name for field in schema], table)
    for field in schema:
        for inner in _nested_fields(field):
            if pa.types.is_struct(inner.type):
                _check_names([child.name for child in inner.type], f"{table}: {field.name}")
    try:
        plain = schema_of(columns_of(schema))
    except _UnsupportedError as e:
        raise SnapshotError(
            f"The table {table!r} has a column of type {e}, which snapshots do not support. Convert the column first."
        ) from None
    assert plain.equals(schema, check_metadata=False), f"{schema} is not the same after JSON"
    return plain


def _check_names(names: Sequence[str], where: str) -> None:
    if not names:
        raise SnapshotError(f"{where!r} is a struct without fields. Give it at least one.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SnapshotError(f"{where!r} has two columns {twice[0]!r}. Rename one.")
    odd = [name for name in names if not _NAME.fullmatch(name)]
    if odd:
        raise SnapshotError(
            f"{where!r} has a column {odd[0]!r}. Names must not be empty or contain quotes, backslashes or control "
            "characters: rename it."
        )


def _nested_fields(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    for place in range(field.type.num_fields):
        yield from _nested_fields(field.type.field(place))


class _UnsupportedError(Exception):
    """A type that snapshots do not support."""


def columns_of(schema: pa.Schema) -> Columns:
    """Return a schema as JSON."""
    return [_column(field) for field in schema]


def _column(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, **_item(field)}


def _item(field: pa.Field) -> dict[str, Any]:
    return {"type": _type_json(field.type), "nullable": field.nullable}


def _type_json(kind: pa.DataType) -> Any:
    text = str(kind)
    if pa.types.is_decimal(kind) and kind.scale > kind.precision:
        raise _UnsupportedError(text)
    if text in _SIMPLE or any(pattern.fullmatch(text) for pattern, _ in _PARAMETERS):
        return text
    if pa.types.is_struct(kind):
        return {"struct": [_column(field) for field in kind]}
    if pa.types.is_list(kind):
        return {"list": _item(kind.value_field)}
    if pa.types.is_large_list(kind):
        return {"large_list": _item(kind.value_field)}
    if pa.types.is_map(kind):
        return {
            "map": {"keys": _type_json(kind.key_type), "values": _item(kind.item_field)},
            "sorted": kind.keys_sorted,
        }
    raise _UnsupportedError(text)


def schema_of(columns: Columns) -> pa.Schema:
    """Return the schema from the result of `columns_of`. Raises SnapshotError for anything else."""
    try:
        return pa.schema([_field(column["name"], column) for column in columns])
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as e:
        shown = msgspec.json.encode(columns).decode()
        raise SnapshotError(f"{shown[:200]} is not a schema of this version of penstock ({e}).") from e


def _field(name: str, column: dict[str, Any]) -> pa.Field:
    return pa.field(name, _type_of(column["type"]), nullable=column["nullable"])


def _type_of(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        for pattern, make in _PARAMETERS:
            if found := pattern.fullmatch(kind):
                return make(*found.groups())
        raise ValueError(f"the type {kind!r} is unknown")
    if "struct" in kind:
        return pa.struct([_field(column["name"], column) for column in kind["struct"]])
    if "list" in kind:
        return pa.list_(_field("item", kind["list"]))
    if "large_list" in kind:
        return pa.large_list(_field("item", kind["large_list"]))
    keys, values = kind["map"]["keys"], kind["map"]["values"]
    return pa.map_(_type_of(keys), _field("value", values), keys_sorted=kind["sorted"])


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the key columns: `key`, and those that begin with `key.`."""
    return tuple(name for name in schema.names if name == "key" or name.startswith("key."))


def missing_row(column: pa.Array, field: pa.Field) -> int | None:
    """Return the first row that has null, also inside its value, where the field does not allow it; or None."""
    if not field.nullable and column.null_count:
        return int(column.is_null().index(True).as_py())
    found = None
    if pa.types.is_struct(field.type):
        # Nothing is missing inside a null value.
        rows, inner = column.is_valid(), column.drop_null() if column.null_count else column
        children = [(inner.field(place), field.type.field(place)) for place in range(field.type.num_fields)]
        rows_found = [missing_row(child, child_field) for child, child_field in children]
        found = min((row for row in rows_found if row is not None), default=None)
        if found is not None and column.null_count:
            found = int(rows.to_numpy(zero_copy_only=False).nonzero()[0][found])
    elif pa.types.is_nested(field.type) and not all(inner.nullable for inner in _below(field)):
        # Rare enough to check row by row.
        found = next((row for row in range(len(column)) if _missing_below(column[row], field)), None)
    return found


def _below(field: pa.Field) -> list[pa.Field]:
    """Return the fields that may be null inside a list or map; keys of a map are never null."""
    if pa.types.is_map(field.type):
        return [*_nested_fields(field.type.item_field), *list(_nested_fields(field.type.key_field))[1:]]
    return list(_nested_fields(field.type.value_field))


def _missing_below(value: pa.Scalar, field: pa.Field) -> bool:
    if not value.is_valid:
        return False
    values = value.values
    if pa.types.is_map(field.type):
        keys, items = values.field(0), values.field(1)
        return (
            missing_row(keys, field.type.key_field) is not None
            or missing_row(items, field.type.item_field) is not None
        )
    return missing_row(values, field.type.value_field) is not None
