"""JSON values: lines of JSON, decoded into a column of any type and checked in the same pass."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Union

import msgspec
import numpy as np
import pyarrow as pa

from penstock.snapshots.text_columns import TEXT, parse_cells

__all__ = ["JsonValues"]

_FLOAT: Final = Union[float, Literal["NaN", "Infinity", "-Infinity"]]  # noqa: UP007  # msgspec takes it at run time
_BOUNDS: Final = {bits: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}


class JsonValues:
    """Decoder of lines of JSON into a column of one field."""

    def __init__(self, field: pa.Field) -> None:
        self._kind = field.type
        self._decoder = msgspec.json.Decoder(_python_type(field))

    def decode(self, lines: Any, count: int) -> pa.Array:
        """Decode `count` values, one per line.

        Raises ValueError or pa.ArrowException when a value does not fit, or when there are more or fewer values.
        """
        values = self._decoder.decode_lines(lines)
        if len(values) != count:
            raise ValueError("there is not exactly one JSON value in each line")
        return _column(values, self._kind)


def _python_type(field: pa.Field) -> Any:
    kind = _present_type(field.type)
    return kind | None if field.nullable and not pa.types.is_null(field.type) else kind


def _present_type(kind: pa.DataType) -> Any:
    is_a = pa.types
    if is_a.is_null(kind):
        return None
    if is_a.is_boolean(kind):
        return bool
    if is_a.is_unsigned_integer(kind):
        most = 2**kind.bit_width - 1
        return Annotated[int, msgspec.Meta(ge=0, **({"le": most} if most < 2**63 else {}))]
    if is_a.is_integer(kind) or is_a.is_duration(kind):
        low, high = _BOUNDS[kind.bit_width]
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    if is_a.is_floating(kind):
        return _FLOAT
    if is_a.is_struct(kind):
        return _row_type(kind)
    if is_a.is_map(kind):
        key, value = _python_type(kind.key_field), _python_type(kind.item_field)
        pairs = list[tuple[key, value]]  # type: ignore[valid-type]  # the type is made at run time
        return dict[str, value] | pairs if key is str else pairs  # type: ignore[valid-type]  # the type is made at run time
    if is_a.is_nested(kind):
        return list[_python_type(kind.value_field)]  # type: ignore[misc]  # the type is made at run time
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return bytes
    return str


def _row_type(kind: pa.DataType) -> Any:
    """Return a class with a field for each field of the struct; nullable fields may be omitted."""
    places = {f"f{place}": field for place, field in enumerate(kind)}
    fields = [
        (place, _python_type(field), None) if field.nullable else (place, _python_type(field))
        for place, field in places.items()
    ]
    return msgspec.defstruct(
        "Row",
        fields,
        rename={place: field.name for place, field in places.items()},
        forbid_unknown_fields=True,
        kw_only=True,
        # Rows live for one call; decoding a million of them is twice as fast without garbage collection.
        gc=False,
    )


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    is_a = pa.types
    if is_a.is_struct(kind):
        return _struct_column(values, kind)
    if is_a.is_map(kind):
        return _map_column(values, kind)
    if is_a.is_nested(kind):
        return _list_column(values, kind)
    if is_a.is_floating(kind):
        return _float_column(values, kind)
    if is_a.is_duration(kind):
        return pa.array(values, pa.int64()).view(kind)
    if is_a.is_decimal(kind) or is_a.is_temporal(kind):
        return parse_cells(pa.array(values, TEXT), kind)
    return pa.array(values, kind)


def _missing(values: Sequence[Any]) -> pa.Array | None:
    mask = [value is None for value in values]
    return pa.array(mask, pa.bool_()) if True in mask else None


def _struct_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    mask = _missing(values)
    columns = []
    for place, field in enumerate(kind):
        name = f"f{place}"
        if mask is None:
            inner = list(map(operator.attrgetter(name), values))
        else:
            inner = [getattr(value, name, None) for value in values]
        columns.append(_column(inner, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _float_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        wide = pa.array(values, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # The decoder accepts only numbers and the names of NaN and the infinities, which float() knows.
        wide = pa.array(
            [float(v) if isinstance(v, str) else v for v in values], pa.float64(), from_pandas=False
        )
    if kind == pa.float64():
        return wide
    narrow = wide.cast(kind, safe=False)
    lost = np.isinf(narrow.fill_null(0).to_numpy()) & ~np.isinf(wide.fill_null(0).to_numpy())
    if lost.any():
        raise ValueError(f"too large for {kind}")
    return narrow


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    return offsets


def _list_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    mask = _missing(values)
    inner = _column([item for value in values if value is not None for item in value], kind.value_type)
    large = pa.types.is_large_list(kind)
    offsets = pa.array(_offsets(values), pa.int64() if large else pa.int32())
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(offsets, inner, type=kind, mask=mask)


def _map_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    keys: list[Any] = []
    items: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            keys += value.keys()
            items += value.values()
        elif value is not None:
            for key, item in value:
                keys.append(key)
                items.append(item)
    offsets = pa.array(_offsets(values), pa.int32())
    mask = _missing(values)
    return pa.MapArray.from_arrays(
        offsets, _column(keys, kind.key_type), _column(items, kind.item_type), type=kind, mask=mask
    )
