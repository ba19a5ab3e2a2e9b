"""Operators: arithmetic and comparison of typed values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.casts import round_decimals, widen
from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Constant, Node
from penstock.expressions.value_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    MAX_DIGITS,
    TIMESTAMP,
    common_type,
    decimal_of_integer,
    is_number,
)

__all__ = ["arithmetic", "comparison", "integer_division", "is_in", "same", "same_type"]

_DURATION: Final = pa.duration("us")
_CHECKED: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_PLAIN: Final = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_COMPARED: Final = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def same_type(*nodes: Node) -> tuple[Node, ...] | None:
    """Return nodes widened to their common type, or None if they have none."""
    kind = nodes[0].type
    decimals = [node for node in nodes if pa.types.is_decimal(node.type)]
    floats = [node for node in nodes if pa.types.is_floating(node.type) and not _digits(node)]
    if decimals and not floats:
        nodes = tuple(_as_decimal(node) for node in nodes)
        kind = nodes[0].type
    for node in nodes[1:]:
        found = common_type(kind, node.type)
        if found is None:
            return None
        kind = found
    return tuple(widen(node, kind) for node in nodes)


def comparison(sign: str, left: Node, right: Node) -> Node | None:
    """Return a comparison, or None if the types cannot be compared."""
    both = same_type(left, right)
    if both is None:
        return None
    kind = both[0].type
    if pa.types.is_nested(kind) or (pa.types.is_boolean(kind) and sign not in ("=", "<>")):
        return None
    return Call(BOOLEAN, left.nullable or right.nullable, _COMPARED[sign], both)


def arithmetic(sign: str, left: Node, right: Node) -> Node | None:
    """Return a sum, difference, product, quotient or remainder, or None if the types have none."""
    nullable = left.nullable or right.nullable
    if not (is_number(left.type) and is_number(right.type)):
        return _with_nothing(sign, left, right) or _of_times(sign, left, right, nullable=nullable)
    both = same_type(left, right)
    assert both is not None
    kind = both[0].type
    if pa.types.is_decimal(kind):
        return _of_decimals(sign, _as_decimal(left), _as_decimal(right), nullable=nullable)
    if sign == "/":
        quotients = tuple(widen(node, DOUBLE) for node in both)
        return Call(DOUBLE, nullable, pc.divide_checked, quotients, may_fail=not _divides(right))
    if sign == "%":
        function = _float_remainder if pa.types.is_floating(kind) else _integer_remainder
        return Call(kind, nullable, function, both, may_fail=not _divides(right))
    if pa.types.is_floating(kind):
        return Call(kind, nullable, _PLAIN[sign], both)
    return Call(kind, nullable, _CHECKED[sign], both, may_fail=True)


def integer_division(left: Node, right: Node) -> Node | None:
    """Return the quotient of integers without its fraction, or None for other types."""
    if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
        return None
    both = (widen(left, BIGINT), widen(right, BIGINT))
    return Call(
        BIGINT, left.nullable or right.nullable, pc.divide_checked, both, may_fail=not _divides(right)
    )


def _divides(divisor: Node) -> bool:
    """Return whether any value can be divided by a node: it is a literal, neither 0 nor -1, which may overflow."""
    return isinstance(divisor, Constant) and divisor.value.is_valid and divisor.value.as_py() not in (0, -1)


def _with_nothing(sign: str, left: Node, right: Node) -> Node | None:
    """Return arithmetic with NULL, which has the type of the other side."""
    for nothing, other in ((left, right), (right, left)):
        if pa.types.is_null(nothing.type) and is_number(other.type):
            typed = widen(nothing, other.type)
            return arithmetic(sign, *((typed, other) if nothing is left else (other, typed)))
    return None


def _of_times(sign: str, left: Node, right: Node, *, nullable: bool) -> Node | None:
    if sign == "+" and left.type.equals(_DURATION):
        left, right = right, left
    if left.type.equals(DATE):
        left = widen(left, TIMESTAMP)
    if right.type.equals(DATE):
        right = widen(right, TIMESTAMP)
    if sign in ("+", "-") and right.type.equals(_DURATION) and left.type in (TIMESTAMP, _DURATION):
        return Call(left.type, nullable, _CHECKED[sign], (left, right), may_fail=True)
    if sign == "-" and left.type.equals(TIMESTAMP) and right.type.equals(TIMESTAMP):
        return Call(_DURATION, nullable, pc.subtract_checked, (left, right), may_fail=True)
    return None


# --- decimals ------------------------------------------------------------------------------------------------


def _digits(node: Node) -> str:
    return node.digits if isinstance(node, Constant) else ""


def _as_decimal(node: Node) -> Node:
    """Return an integer, or a literal with a point, as the smallest decimal; other nodes stay."""
    if isinstance(node, Constant) and node.value.is_valid:
        text = node.digits or (str(node.value.as_py()) if pa.types.is_integer(node.type) else "")
        if text:
            whole, _, fraction = text.lstrip("-").partition(".")
            kind = pa.decimal128(
                min(max(len(whole.lstrip("0")) + len(fraction), 1), MAX_DIGITS), len(fraction)
            )
            return Constant(kind, False, pc.cast(pa.scalar(text), kind))
    if pa.types.is_integer(node.type):
        return widen(node, decimal_of_integer(node.type))
    return node


def _of_decimals(sign: str, left: Node, right: Node, *, nullable: bool) -> Node | None:
    (whole, scale), (other_whole, other_scale) = _places(left.type), _places(right.type)
    if sign == "%":
        return None
    if sign == "/":
        exact_scale = max(6, scale + other_whole + other_scale + 1)
        exact = (whole + other_scale + exact_scale, exact_scale)
    elif sign == "*":
        exact = (whole + scale + other_whole + other_scale + 1, scale + other_scale)
    else:
        exact_scale = max(scale, other_scale)
        exact = (max(whole, other_whole) + exact_scale + 1, exact_scale)
    kind = _limit(*exact)
    if exact[0] > 76 and sign != "/":
        return None
    if sign != "/" and exact[0] <= MAX_DIGITS:
        return Call(kind, nullable, _PLAIN[sign], (left, right))
    function: Callable[..., Any] = functools.partial(_in_many_digits, sign=sign, kind=kind)
    if sign == "/":
        # One digit more than the result has, to round it.
        left_scale = max(scale, kind.scale + 1 - other_whole)
        if whole + other_scale + max(4, left_scale + other_whole + 1) > 76:
            return None
        function = functools.partial(_quotient, left_scale=left_scale, kind=kind)
    return Call(kind, nullable, function, (left, right), may_fail=True)


def _places(kind: pa.DataType) -> tuple[int, int]:
    return kind.precision - kind.scale, kind.scale


def _limit(precision: int, scale: int) -> pa.Decimal128Type:
    """Return the type of a result, which gives up digits after the point, down to six, to have 38 in all."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - (precision - scale), min(scale, 6)))


def _wide(value: Value) -> Value:
    return pc.cast(value, pa.decimal256(value.type.precision, value.type.scale))


def _in_many_digits(left: Value, right: Value, sign: str, kind: pa.DataType) -> Value:
    return round_decimals(_PLAIN[sign](_wide(left), _wide(right)), kind)


def _quotient(left: Value, right: Value, left_scale: int, kind: pa.DataType) -> Value:
    source = left.type
    wide = pc.cast(left, pa.decimal256(source.precision - source.scale + left_scale, left_scale))
    return round_decimals(pc.divide(wide, _wide(right)), kind)


# --- remainders ----------------------------------------------------------------------------------------------


def _integer_remainder(left: Value, right: Value) -> Value:
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))


def _float_remainder(left: Value, right: Value) -> Value:
    # Raises for a zero, like the other divisions.
    pc.divide_checked(left, right)
    kind = left.type
    length = (
        max(len(one) for one in (left, right) if isinstance(one, pa.Array)) if _any_array(left, right) else 1
    )
    arrays = [pa.repeat(one, length) if isinstance(one, pa.Scalar) else one for one in (left, right)]
    valid = pc.and_(arrays[0].is_valid(), arrays[1].is_valid())
    numbers = [one.to_numpy(zero_copy_only=False) for one in arrays]
    with np.errstate(invalid="ignore"):
        found = pc.if_else(valid, pa.array(np.fmod(*numbers), kind), pa.scalar(None, kind))
    return found if _any_array(left, right) else found[0]


def _any_array(*values: Value) -> bool:
    return any(isinstance(value, pa.Array) for value in values)


def same(left: Any, right: Any, *, negated: bool) -> Any:
    """Return whether values are the same, of which two nulls are."""
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    found = pc.or_(pc.coalesce(pc.equal(left, right), pa.scalar(False)), both_null)
    return pc.invert(found) if negated else found


def is_in(value: Any, *, values: pa.Array, has_null: bool) -> Any:
    """Return whether a value is in a list, null if that depends on a null."""
    found = pc.is_in(value, value_set=values)
    if isinstance(value, pa.Array) and not value.null_count and not has_null:
        return found
    unknown = pc.or_(pc.is_null(value), pc.and_(pc.invert(found), has_null))
    return pc.if_else(unknown, pa.scalar(None, BOOLEAN), found)
