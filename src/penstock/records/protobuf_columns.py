"""Protobuf columns: which fields of messages can be fields of records, and their columns as those of records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.exact_values import infinities
from penstock.records.nested_values import mixes_times
from penstock.records.small_columns import cast_column
from penstock.records.types import Field, python_values

__all__ = ["check_field", "fitted", "panics_as_errors", "with_default"]

_GROUP: Final = 10


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic of ptars as ValueError."""
    try:
        yield
    except BaseException as e:
        # The class of panics cannot be imported and is not an Exception, so no caller would treat it as a bad message.
        if type(e).__name__ != "PanicException":
            raise
        raise ValueError(f"the protobuf message cannot be converted ({e})") from None


def check_field(wire: Any, kind: pa.DataType, field: Field) -> None:
    """Raise SchemaError when the field of a message, by its descriptor and Arrow type, cannot be one of a record."""
    _check_groups(wire, ())
    if mixes_times(kind, field.arrow_type):
        raise SchemaError(
            f"The protobuf field {wire.full_name} is {kind}, and the record's is {field.arrow_type}. Give both the "
            "same type: a number does not say in which unit it is a time."
        )


def _check_groups(wire: Any, around: tuple[str, ...]) -> None:
    if wire.type == _GROUP:
        raise SchemaError(f"The protobuf field {wire.full_name} is a group, which cannot be read or written.")
    inner = wire.message_type
    if inner is not None and inner.full_name not in around:
        for one in inner.fields:
            _check_groups(one, (*around, inner.full_name))


def with_default(column: pa.Array, wire: Any) -> pa.Array:
    """Return a column with the default that a field declares, as proto2 allows, where messages omit it."""
    if not wire.has_default_value or not column.null_count:
        return column
    value = wire.default_value
    if wire.enum_type is not None:
        value = wire.enum_type.values_by_number[value].name
    return column.fill_null(pa.scalar(value, column.type))


def fitted(column: pa.Array, field: Field) -> pa.Array:
    """Return a column in the type of a field, the names within it matched as those of the fields themselves."""
    if pa.types.is_nested(column.type) and not _has_all(column.type, field.arrow_type):
        values = python_values(column)
        field.complete(values)
        return field.to_arrow(values, check=False)
    found = cast_column(column, field.arrow_type)
    if pa.types.is_float32(found.type) and infinities(found) > infinities(column):
        raise ValueError(f"field {field.name!r} has a number that is too large for 32 bits")
    return found


def _has_all(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a nested type has all the fields of another one, under the same names."""
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        return all(
            there.get_field_index(one.name) >= 0 and _has_all(there.field(one.name).type, one.type)
            for one in wanted
        )
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        return _has_all(there.value_type, wanted.value_type)
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return _has_all(there.item_type, wanted.item_type)
    return True
