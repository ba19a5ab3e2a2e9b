"""Cassandra tables: what the columns of a table take of the fields of records, and the statements that write them."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import BindingError
from penstock.records.types import RecordType, python_values

__all__ = ["Column", "TableShape", "fit_table", "values_of"]

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint", "varint")


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, its type in CQL, and whether it is static."""

    name: str
    kind: str
    is_static: bool = False


@dataclass(frozen=True)
class TableShape:
    """The columns of a table by name, and the names of those of its primary key, in their order."""

    place: str
    columns: Mapping[str, Column]
    key: Sequence[str]

    @classmethod
    def of(cls, place: str, metadata: Any) -> TableShape:
        """Return the shape of a table as the client knows it."""
        columns = {
            name: Column(name, str(column.cql_type), bool(column.is_static))
            for name, column in metadata.columns.items()
        }
        return cls(place, columns, [column.name for column in metadata.primary_key])


def fit_table(
    stream: str, shape: TableShape, record_type: RecordType, upsert_key: Sequence[str] | None
) -> dict[str, str]:
    """Return the type of the column of each field. Raises BindingError with everything that does not fit."""
    names = record_type.field_names
    wrong = [
        f"its primary key has the column {name}, which the records have not"
        for name in shape.key
        if name not in names
    ]
    for field in record_type.fields:
        column = shape.columns.get(field.name)
        if column is None:
            wrong.append(f"it has no column {field.name} ({_wanted(field.arrow_type)} would fit)")
        elif column.is_static:
            wrong.append(f"its column {field.name} is static, and a record is one row")
        elif not _takes(column.kind, field.arrow_type):
            wrong.append(
                f"its column {field.name} is {column.kind}, which does not take {field.arrow_type} "
                f"({_wanted(field.arrow_type)} would fit)"
            )
    if upsert_key is not None and set(upsert_key) != set(shape.key):
        wrong.append(
            f"its primary key is ({', '.join(shape.key)}), and the key of the upserts ({', '.join(upsert_key)})"
        )
    if wrong:
        raise BindingError(
            f"Sink {stream!r}: {shape.place} does not fit the records: {'; '.join(wrong)}. Change the table or the "
            "records."
        )
    return {name: shape.columns[name].kind for name in names}


def _fitting(kind: pa.DataType) -> tuple[str, ...]:
    """Return the types of columns that take a field, the best one first."""
    if pa.types.is_boolean(kind):
        return ("boolean",)
    if pa.types.is_signed_integer(kind):
        return _WHOLE[{8: 0, 16: 1, 32: 2, 64: 3}[kind.bit_width] :]
    if pa.types.is_float32(kind):
        return ("float", "double")
    if pa.types.is_float64(kind):
        return ("double",)
    if pa.types.is_decimal(kind):
        return ("decimal",)
    if pa.types.is_string(kind):
        return ("text", "ascii", "uuid", "timeuuid", "inet")
    if pa.types.is_binary(kind):
        return ("blob",)
    if pa.types.is_timestamp(kind):
        return ("timestamp",)
    return ("date",) if pa.types.is_date32(kind) else ()


def _takes(column: str, kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return column in _fitting(kind)
    if column == "text":
        return True
    bare = column.removeprefix("frozen<").removesuffix(">") if column.startswith("frozen<") else column
    collection, _, inner = bare.partition("<")
    parts = inner.removesuffix(">").split(", ")
    if pa.types.is_map(kind):
        found = collection == "map" and len(parts) == 2
        return found and parts[0] in _fitting(kind.key_type) and parts[1] in _fitting(kind.item_type)
    if not pa.types.is_list(kind) or len(parts) != 1 or parts[0] not in _fitting(kind.value_type):
        return False
    # A list that is not frozen has each element twice once it is written twice.
    return collection == "set" or column.startswith("frozen<list<")


def _wanted(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) and _fitting(kind.value_type):
        return f"frozen<list<{_fitting(kind.value_type)[0]}>>"
    return next(iter(_fitting(kind)), "text")


def values_of(column: pa.Array, kind: str) -> tuple[Sequence[Any], Mapping[int, str]]:
    """Return the values of a field as the client takes them for a column, and why rows do not fit."""
    if pa.types.is_nested(column.type):
        values = python_values(column)
        if kind == "text":
            encode = msgspec.json.Encoder().encode
            return [None if value is None else encode(value).decode() for value in values], {}
        return values, {row: _HAS_NULL for row, value in enumerate(values) if _has_null(value)}
    if pa.types.is_timestamp(column.type):
        # Cassandra has milliseconds, and the client takes them as integers.
        per_ms = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}[column.type.unit]
        numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // per_ms
        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(numbers, mask=nulls).to_pylist(), {}
    values = python_values(column)
    convert = _CONVERSIONS.get(kind)
    if convert is None or not pa.types.is_string(column.type):
        return values, {}
    return _converted(values, kind, convert)


# The servers take it in a frozen list, and then clients cannot read the row.
_HAS_NULL: Final = "it has a null in it, which a collection cannot have"


def _has_null(value: Any) -> bool:
    return value is not None and None in (value.values() if isinstance(value, dict) else value)


_CONVERSIONS: Final[dict[str, Callable[[str], Any]]] = {
    "uuid": uuid.UUID,
    "timeuuid": uuid.UUID,
    "inet": lambda text: str(ipaddress.ip_address(text)),
}


def _converted(
    values: Sequence[str | None], kind: str, convert: Callable[[str], Any]
) -> tuple[Sequence[Any], Mapping[int, str]]:
    found: list[Any] = []
    wrong: dict[int, str] = {}
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
        except ValueError:
            found.append(None)
            wrong[row] = f"{value!r} is not of type {kind}"
    return found, wrong
