"""Casts: values as another type, implicitly where nothing is lost, or as CAST demands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Case, Constant, Node
from penstock.expressions.value_types import (
    DATE,
    NOTHING,
    STRING,
    TIMESTAMP,
    decimal_of_integer,
    is_number,
    is_text,
)

__all__ = ["cast", "round_decimals", "widen"]

_ZONE: Final = r"(?:Z|[+-]\d\d:?\d\d)$"


def widen(node: Node, kind: pa.DataType) -> Node:
    """Return a node with a type that `common_type` allows for it; it never fails but for decimals without room."""
    if node.type.equals(kind):
        return node
    if isinstance(node, Constant):
        value = pa.scalar(None, kind) if not node.value.is_valid else _constant(node, kind)
        return Constant(kind, node.nullable, value)
    if isinstance(node, Case) and node.type.equals(NOTHING):
        return Case(kind, True, node.conditions, tuple(widen(value, kind) for value in node.values))
    if pa.types.is_floating(kind):
        # Beyond 2^53 the nearest double counts, as in every other engine.
        return Call(kind, node.nullable, functools.partial(pc.cast, target_type=kind, safe=False), (node,))
    fails = pa.types.is_decimal(kind) or pa.types.is_unsigned_integer(node.type)
    return Call(kind, node.nullable, functools.partial(pc.cast, target_type=kind), (node,), fails)


def _constant(node: Constant, kind: pa.DataType) -> pa.Scalar:
    if node.digits and pa.types.is_decimal(kind):
        return pc.cast(pa.scalar(node.digits), kind)
    return pc.cast(node.value, kind, safe=not pa.types.is_floating(kind))


def cast(node: Node, kind: pa.DataType) -> Node | None:
    """Return a node with the values as CAST gives them, or None if there is no such cast."""
    if node.type.equals(kind):
        return node
    if pa.types.is_null(node.type):
        return widen(node, kind)
    found = _function(node.type, kind)
    if found is None:
        return None
    function, fails = found
    return Call(kind, node.nullable, function, (node,), fails)


def _function(source: pa.DataType, target: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    """Return the function of a cast, and whether it may fail."""
    plain = functools.partial(pc.cast, target_type=target)
    if is_text(source):
        return _of_text(target)
    if is_text(target):
        if pa.types.is_nested(source) or pa.types.is_duration(source):
            return None
        if source.equals(TIMESTAMP):
            return _time_to_text, False
        return plain, pa.types.is_binary(source)
    if is_number(source) and is_number(target):
        return _of_number(source, target)
    if (pa.types.is_boolean(source) and (pa.types.is_integer(target) or pa.types.is_floating(target))) or (
        pa.types.is_integer(source) and pa.types.is_boolean(target)
    ):
        return plain, False
    if source.equals(TIMESTAMP) and target.equals(DATE):
        return _day_of, False
    if source.equals(DATE) and target.equals(TIMESTAMP):
        return plain, True
    return None


def _of_text(target: pa.DataType) -> tuple[Callable[..., Any], bool] | None:
    if pa.types.is_binary(target):
        return functools.partial(pc.cast, target_type=target), False
    if target.equals(TIMESTAMP):
        return _text_to_time, True
    if is_number(target) or pa.types.is_boolean(target) or target.equals(DATE):
        return functools.partial(_text_to, kind=target), True
    return None


def _of_number(source: pa.DataType, target: pa.DataType) -> tuple[Callable[..., Any], bool]:
    if pa.types.is_floating(target):
        return functools.partial(pc.cast, target_type=target, safe=False), False
    if pa.types.is_integer(target) and not pa.types.is_integer(source):
        return functools.partial(_without_fraction, kind=target), True
    if pa.types.is_decimal(target) and pa.types.is_decimal(source) and target.scale < source.scale:
        return functools.partial(round_decimals, kind=target), True
    if pa.types.is_decimal(target) and pa.types.is_integer(source):
        return functools.partial(_integer_to_decimal, kind=target), True
    return functools.partial(pc.cast, target_type=target), True


def round_decimals(value: Value, kind: pa.DataType) -> Value:
    """Return decimals as a decimal type with a smaller scale, rounded half away from zero."""
    return pc.cast(pc.round(value, kind.scale, "half_towards_infinity"), kind)


def _integer_to_decimal(value: Value, kind: pa.DataType) -> Value:
    # Arrow only takes decimal types with room for any integer.
    return pc.cast(pc.cast(value, decimal_of_integer(value.type)), kind)


def _without_fraction(value: Value, kind: pa.DataType) -> Value:
    return pc.cast(pc.trunc(value), kind)


def _text_to(value: Value, kind: pa.DataType) -> Value:
    return pc.cast(pc.ascii_trim_whitespace(value), kind)


def _text_to_time(value: Value) -> Value:
    """Return texts as times. Without an offset from UTC they are in UTC."""
    text = pc.ascii_trim_whitespace(value)
    has_zone = pc.and_(pc.match_substring_regex(text, _ZONE), pc.greater(pc.binary_length(text), 10))
    return pc.cast(
        pc.if_else(has_zone, text, pc.binary_join_element_wise(_with_hour(text), "Z", "")), TIMESTAMP
    )


def _with_hour(text: Value) -> Value:
    """Return the text of a day with midnight added: Arrow takes no offset after a day alone."""
    is_day = pc.equal(pc.binary_length(text), 10)
    return pc.if_else(is_day, pc.binary_join_element_wise(text, " 00:00:00", ""), text)


def _time_to_text(value: Value) -> Value:
    """Return times as text in UTC, without a zone: 2024-01-31 10:00:00.000000."""
    return pc.cast(pc.cast(value, pa.timestamp("us")), STRING)


def _day_of(value: Value) -> Value:
    return pc.cast(pc.floor_temporal(value, unit="day"), DATE, safe=False)
