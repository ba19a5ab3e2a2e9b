"""Hidden nulls: nulls in required fields inside a null value, which Parquet checks as well."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["without_hidden_nulls"]


def without_hidden_nulls(column: pa.Array) -> pa.Array:
    """Return the same values, with arbitrary values for required fields inside of null records."""
    if not _may_hide(column.type):
        return column
    if pa.types.is_struct(column.type):
        return _of_records(column)
    # Without an offset, so that the child arrays belong to this column only.
    whole = column.take(pa.array(np.arange(len(column))))
    mask = whole.is_null() if whole.null_count else None
    offsets = pa.array(whole.offsets.to_numpy(zero_copy_only=False))
    if pa.types.is_map(column.type):
        keys, items = without_hidden_nulls(whole.keys), without_hidden_nulls(whole.items)
        return pa.MapArray.from_arrays(offsets, keys, items, column.type, mask=mask)
    make = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    return make.from_arrays(offsets, without_hidden_nulls(whole.values), column.type, mask=mask)


def _may_hide(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(not field.nullable or _may_hide(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _may_hide(kind.key_type) or _may_hide(kind.item_type)
    return bool(pa.types.is_nested(kind) and _may_hide(kind.value_type))


def _of_records(column: pa.Array) -> pa.Array:
    children = [column.field(place) for place in range(column.type.num_fields)]
    mask = None
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        if not present.any():
            return pa.array([None] * len(column), column.type)
        # A null record gets the fields of the first record that is not null.
        places = np.where(present, np.arange(len(column)), np.flatnonzero(present)[0])
        children = [child.take(pa.array(places)) for child in children]
        mask = column.is_null()
    filled = [without_hidden_nulls(child) for child in children]
    return pa.StructArray.from_arrays(filled, fields=list(column.type), mask=mask)
