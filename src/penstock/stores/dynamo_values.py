"""Dynamo values: columns of records as the attributes of items."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.types import python_values

__all__ = ["attributes", "item_bytes", "key_kind"]

Attribute: typing.TypeAlias = Mapping[str, Any]


def key_kind(kind: pa.DataType) -> str | None:
    """Return the type of attribute that can be a key for a field; None if it cannot.

    >>> key_kind(pa.int64()), key_kind(pa.string()), key_kind(pa.bool_())
    ('N', 'S', None)
    """
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return "N"
    if pa.types.is_binary(kind):
        return "B"
    return "S" if pa.types.is_string(kind) or pa.types.is_temporal(kind) else None


def attributes(column: pa.Array) -> Sequence[Attribute | None]:
    """Return each value as an attribute; None for null. Times are text as in JSON.

    >>> attributes(pa.array([20.5, None]))
    [{'N': '20.5'}, None]
    >>> attributes(pa.array([[1], []]))
    [{'L': [{'N': '1'}]}, {'L': []}]
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else _nested(value) for value in python_values(column)]
    if pa.types.is_boolean(kind):
        return _tagged("BOOL", column.to_pylist())
    if pa.types.is_binary(kind):
        return _tagged("B", column.to_pylist())
    if pa.types.is_string(kind):
        return _tagged("S", column.to_pylist())
    if pa.types.is_temporal(kind):
        return _tagged("S", msgspec.to_builtins(column.to_pylist()))
    return _tagged("N", pc.cast(column, pa.string()).to_pylist())


def item_bytes(item: Mapping[str, Attribute]) -> int:
    """Return how many bytes an item has at least: DynamoDB counts names, text and bytes so, and numbers for more.

    >>> item_bytes({"id": {"S": "é"}, "tags": {"L": [{"B": b"abc"}, {"N": "7"}]}})
    11
    """
    return sum(len(name.encode()) + _attribute_bytes(value) for name, value in item.items())


def _attribute_bytes(attribute: Attribute) -> int:
    ((tag, value),) = attribute.items()
    if tag == "S":
        return len(value.encode())
    if tag == "B":
        return len(value)
    if tag == "L":
        return sum(map(_attribute_bytes, value))
    return item_bytes(value) if tag == "M" else 0


def _tagged(tag: str, values: Sequence[Any]) -> list[Attribute | None]:
    return [None if value is None else {tag: value} for value in values]


def _number(value: Any) -> Attribute:
    return {"N": str(value)}


_KINDS: Final[dict[type, Callable[[Any], Attribute]]] = {
    type(None): lambda _: {"NULL": True},
    bool: lambda value: {"BOOL": value},
    int: _number,
    float: lambda value: {"N": repr(value)},
    str: lambda value: {"S": value},
    bytes: lambda value: {"B": value},
    list: lambda value: {"L": [_nested(one) for one in value]},
    dict: lambda value: {"M": {_name(name): _nested(one) for name, one in value.items()}},
}


def _name(name: Any) -> str:
    return name if isinstance(name, str) else str(msgspec.to_builtins(name))


def _nested(value: Any) -> Attribute:
    """Return a value that may have others in it."""
    found = _KINDS.get(type(value))
    if found is not None:
        return found(value)
    # Decimals are text there, as times are.
    plain = msgspec.to_builtins(value)
    return _KINDS[type(plain)](plain)
