"""Floored times: nanoseconds become the microseconds that records hold, and a time never becomes a later one."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["floor_nanoseconds"]

_PER_MICROSECOND = 1000


def floor_nanoseconds(column: pa.Array) -> pa.Array:
    """Return a column with the microsecond in which each of its nanoseconds is, also within nested values.

    A conversion of Arrow drops digits, which moves times before 1970 to a later microsecond.

    >>> floor_nanoseconds(pa.array([-1, 1999], pa.timestamp("ns"))).cast(pa.int64()).to_pylist()
    [-1, 1]
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        numbers = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // _PER_MICROSECOND
        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(numbers, mask=nulls).view(pa.timestamp("us", kind.tz))
    if pa.types.is_struct(kind):
        return _with_children(column, [floor_nanoseconds(column.field(place)) for place in range(len(kind))])
    if pa.types.is_map(kind):
        entries = [floor_nanoseconds(column.keys), floor_nanoseconds(column.items)]
        if entries[0].type == kind.key_type and entries[1].type == kind.item_type:
            return column
        found = pa.map_(kind.key_field.with_type(entries[0].type), kind.item_field.with_type(entries[1].type))
        rows = pa.StructArray.from_arrays(entries, fields=[found.key_field, found.item_field])
        return _with_values(column, found, rows)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = floor_nanoseconds(column.values)
        if values.type == kind.value_type:
            return column
        one = kind.value_field.with_type(values.type)
        if pa.types.is_fixed_size_list(kind):
            return _with_values(column, pa.list_(one, kind.list_size), values)
        return _with_values(
            column, pa.large_list(one) if pa.types.is_large_list(kind) else pa.list_(one), values
        )
    return column


def _with_children(column: pa.Array, children: list[pa.Array]) -> pa.Array:
    fields = [field.with_type(child.type) for field, child in zip(column.type, children, strict=True)]
    if fields == list(column.type):
        return column
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def _with_values(column: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return lists with other values, in the places where a list, which may be a slice, has its own."""
    own = column.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(column), own, column.null_count, column.offset, [values])
