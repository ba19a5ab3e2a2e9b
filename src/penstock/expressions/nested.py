"""Nested values: the fields of a STRUCT, the items of an ARRAY and the values of a MAP."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.casts import widen
from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Constant, Node
from penstock.expressions.value_types import common_type

__all__ = ["element_of_array", "field_of_struct", "value_of_map"]


def field_of_struct(node: Node, name: str) -> Node | None:
    """Return the field of a struct, or None if it has none of that name."""
    if not pa.types.is_struct(node.type) or node.type.get_field_index(name) < 0:
        return None
    field = node.type.field(name)
    return Call(
        field.type, node.nullable or field.nullable, functools.partial(pc.struct_field, indices=name), (node,)
    )


def element_of_array(node: Node, index: Node) -> Node | None:
    """Return the item at a literal index from 0, null beyond the end; None for other types."""
    if (
        not pa.types.is_list(node.type)
        or not isinstance(index, Constant)
        or not pa.types.is_integer(index.type)
    ):
        return None
    at = index.value.as_py()
    if at is None or at < 0:
        return None
    return Call(node.type.value_type, True, functools.partial(_item, at=at), (node,))


def _item(array: Value, at: int) -> Value:
    if isinstance(array, pa.Scalar):
        return _item(pa.array([array.as_py()], array.type), at)[0]
    starts = array.offsets.to_numpy()
    places = starts[:-1] + at
    missing = (places >= starts[1:]) | array.is_null().to_numpy(zero_copy_only=False)
    return array.values.take(pa.array(np.where(missing, 0, places), pa.int64(), mask=missing))


def value_of_map(node: Node, key: Node) -> Node | None:
    """Return the value of a literal key, null if the map lacks it; None for other types."""
    if not pa.types.is_map(node.type) or not isinstance(key, Constant) or not key.value.is_valid:
        return None
    wanted = node.type.key_type
    kind = common_type(wanted, key.type)
    if kind is None or not (kind.equals(wanted) or pa.types.is_integer(wanted)):
        return None
    typed = widen(key, wanted)
    assert isinstance(typed, Constant)
    function = functools.partial(pc.map_lookup, query_key=typed.value, occurrence="last")
    return Call(node.type.item_type, True, function, (node,))
