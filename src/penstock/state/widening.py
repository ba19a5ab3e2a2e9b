"""Widening: checks whether all values of a stored type fit a declared type, and converts columns to it."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["misfit", "widen"]


def misfit(declared: pa.DataType, found: pa.DataType) -> str:
    """Return why some values of the stored type do not fit the declared type; an empty text if all do."""
    if declared.equals(found):
        return ""
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        return _struct_misfit(declared, found)
    if pa.types.is_list(declared) and pa.types.is_list(found):
        return misfit(declared.value_type, found.value_type)
    if pa.types.is_map(declared) and pa.types.is_map(found):
        return misfit(declared.key_type, found.key_type) or misfit(declared.item_type, found.item_type)
    return "" if _widens(declared, found) else "not every value fits"


def _struct_misfit(declared: pa.DataType, found: pa.DataType) -> str:
    ours = {field.name: field for field in declared}
    theirs = {field.name: field for field in found}
    lost = [name for name in theirs if name not in ours]
    if lost:
        return f"the field {lost[0]!r} would be lost"
    for name, field in ours.items():
        if not field.nullable and (name not in theirs or theirs[name].nullable):
            return f"the field {name!r} must have a value, and what is stored may have none; make it optional"
    reasons = [misfit(field.type, theirs[name].type) for name, field in ours.items() if name in theirs]
    return next((reason for reason in reasons if reason), "")


def _widens(declared: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_integer(declared) and pa.types.is_integer(found):
        signed = pa.types.is_signed_integer
        if signed(declared) == signed(found):
            return bool(declared.bit_width >= found.bit_width)
        return bool(signed(declared) and declared.bit_width > found.bit_width)
    if pa.types.is_floating(declared):
        if pa.types.is_floating(found):
            return bool(declared.bit_width >= found.bit_width)
        # A float64 holds integers of up to 53 bits exactly.
        return bool(pa.types.is_integer(found) and declared.bit_width == 64 and found.bit_width <= 32)
    if pa.types.is_decimal(declared) and pa.types.is_decimal(found):
        whole = declared.precision - declared.scale >= found.precision - found.scale
        return bool(whole and declared.scale >= found.scale)
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(found):
        units = ("s", "ms", "us", "ns")
        return declared.tz == found.tz and units.index(declared.unit) >= units.index(found.unit)
    return False


def widen(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to a wider type; new fields of records are null. Raises ValueError if the type is not wider."""
    reason = misfit(kind, column.type)
    if reason:
        raise ValueError(reason)
    return _widen(column, kind)


def _widen(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        found = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        children = [
            _widen(found[field.name], field.type)
            if field.name in found
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        column = pa.concat_arrays([column])
        items = _widen(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, kind, mask=column.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(column.type):
        column = pa.concat_arrays([column])
        keys, items = _widen(column.keys, kind.key_type), widen(column.items, kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, kind, mask=column.is_null())
    return column.cast(kind)
