"""Functions: the functions that expressions may call, by name, with the types that they take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.expressions import text_functions as text
from penstock.expressions.arguments import any_nullable, literal_of, require_argument
from penstock.expressions.casts import round_decimals, widen
from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Case, Constant, Node
from penstock.expressions.operators import arithmetic, comparison, same_type
from penstock.expressions.value_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    TIMESTAMP,
    sql_name,
)

__all__ = ["CHANGING", "FUNCTIONS", "Function"]

CHANGING: Final = frozenset(
    (
        "current_date",
        "current_time",
        "current_timestamp",
        "current_user",
        "getdate",
        "localtime",
        "localtimestamp",
        "monotonically_increasing_id",
        "now",
        "rand",
        "randn",
        "random",
        "unix_timestamp",
        "uuid",
    )
)
"""Functions of other engines whose values would differ in a replay."""

_UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")


@dataclass(frozen=True)
class Function:
    """A function: its usage, and `bind`, which makes its node. `bind` raises SchemaError for wrong arguments."""

    usage: str
    least: int
    most: int | None
    bind: Callable[..., Node]


# --- numbers -------------------------------------------------------------------------------------------------


def _to_double(function: Callable[..., Any], *, may_fail: bool = True) -> Callable[[Node], Node]:
    return lambda number: Call(
        DOUBLE, number.nullable, function, (widen(require_argument(number, "number"), DOUBLE),), may_fail
    )


def _abs(number: Node) -> Node:
    return Call(number.type, number.nullable, pc.abs_checked, (require_argument(number, "number"),), True)


def _whole(function: Callable[..., Any]) -> Callable[[Node], Node]:
    def bind(number: Node) -> Node:
        found = require_argument(number, "number")
        if pa.types.is_integer(found.type):
            return found
        rounding = functools.partial(_round_to_integer, function=function)
        return Call(BIGINT, number.nullable, rounding, (found,), True)

    return bind


def _round_to_integer(value: Value, function: Callable[..., Any]) -> Value:
    return pc.cast(function(value), BIGINT)


def _round(number: Node, places: Node | None = None) -> Node:
    found = require_argument(number, "number")
    digits = 0 if places is None else literal_of(places, "integer", 2)
    if not -18 <= digits <= 18:
        raise SchemaError("argument 2 must be -18 to 18")
    if pa.types.is_integer(found.type) and digits >= 0:
        return found
    if pa.types.is_decimal(found.type):
        scale = max(min(digits, found.type.scale), 0)
        kind = pa.decimal128(min(found.type.precision - found.type.scale + scale + 1, 38), scale)
        if digits >= found.type.scale:
            return found
        return Call(
            kind, found.nullable, functools.partial(_round_decimal, digits=digits, kind=kind), (found,), True
        )
    function = functools.partial(pc.round, ndigits=digits, round_mode="half_towards_infinity")
    return Call(found.type, found.nullable, function, (found,), True)


def _round_decimal(value: Value, digits: int, kind: pa.DataType) -> Value:
    return round_decimals(pc.round(value, digits, "half_towards_infinity"), kind)


def _power(base: Node, exponent: Node) -> Node:
    both = (
        widen(require_argument(base, "number"), DOUBLE),
        widen(require_argument(exponent, "number", 2), DOUBLE),
    )
    return Call(DOUBLE, any_nullable(base, exponent), pc.power, both)


def _atan2(y: Node, x: Node) -> Node:
    both = (widen(require_argument(y, "number"), DOUBLE), widen(require_argument(x, "number", 2), DOUBLE))
    return Call(DOUBLE, any_nullable(y, x), pc.atan2, both)


def _sign(number: Node) -> Node:
    found = widen(require_argument(number, "number"), DOUBLE)
    return Call(DOUBLE, number.nullable, pc.sign, (found,))


def _mod(left: Node, right: Node) -> Node:
    found = arithmetic("%", left, right)
    if found is None:
        raise SchemaError(f"{sql_name(left.type)} and {sql_name(right.type)} have no remainder")
    return found


def _extreme(function: Callable[..., Any]) -> Callable[..., Node]:
    def bind(*values: Node) -> Node:
        found = same_type(*values)
        if found is None or pa.types.is_nested(found[0].type) or pa.types.is_null(found[0].type):
            raise SchemaError("the arguments must be of one type that has an order")
        return Call(found[0].type, all(value.nullable for value in values), function, found)

    return bind


# --- null ----------------------------------------------------------------------------------------------------


def _one_type(*values: Node) -> tuple[Node, ...]:
    found = same_type(*values)
    if found is None:
        raise SchemaError(
            f"the arguments are of different types: {', '.join(sql_name(v.type) for v in values)}"
        )
    return found


def _coalesce(*values: Node) -> Node:
    found = _one_type(*values)
    nullable = all(value.nullable for value in values)
    if any(value.fails for value in found[1:]):
        conditions = tuple(Call(BOOLEAN, False, pc.is_valid, (value,)) for value in found[:-1])
        return Case(found[0].type, nullable, conditions, found)
    return Call(found[0].type, nullable, pc.coalesce, found)


def _nullif(value: Node, other: Node) -> Node:
    equal = comparison("=", value, other)
    if equal is None:
        raise SchemaError(f"{sql_name(value.type)} and {sql_name(other.type)} cannot be compared")
    return Case(value.type, True, (equal,), (Constant(value.type, True, pa.scalar(None, value.type)), value))


def _if(condition: Node, value: Node, otherwise: Node) -> Node:
    found = _one_type(value, otherwise)
    return Case(
        found[0].type, any_nullable(value, otherwise), (require_argument(condition, "boolean"),), found
    )


# --- time ----------------------------------------------------------------------------------------------------


def _part_of_time(function: Callable[..., Any], *, of_day: bool = False) -> Callable[[Node], Node]:
    def bind(time: Node) -> Node:
        found = require_argument(time, "date or timestamp")
        found = widen(found, TIMESTAMP) if of_day else found
        return Call(INT, time.nullable, functools.partial(_as_int, function=function), (found,))

    return bind


def _as_int(value: Value, function: Callable[..., Any]) -> Value:
    return pc.cast(function(value), INT)


def _day_of_week(value: Value) -> Value:
    return pc.day_of_week(value, count_from_zero=False, week_start=7)


def _date_trunc(unit: Node, time: Node) -> Node:
    name = str(literal_of(unit, "text", 1)).lower()
    if name not in _UNITS:
        raise SchemaError(f"{name!r} is not a unit; units are {', '.join(_UNITS)}")
    found = widen(require_argument(time, "date or timestamp", 2), TIMESTAMP)
    return Call(TIMESTAMP, time.nullable, functools.partial(pc.floor_temporal, unit=name), (found,), True)


def _unix_millis(time: Node) -> Node:
    found = widen(require_argument(time, "date or timestamp"), TIMESTAMP)
    return Call(BIGINT, time.nullable, _to_millis, (found,))


def _to_millis(value: Value) -> Value:
    # A conversion alone would move times before 1970 to a later millisecond.
    floored = pc.floor_temporal(value, unit="millisecond")
    return pc.cast(pc.cast(floored, pa.timestamp("ms", tz="UTC")), BIGINT)


def _timestamp_millis(millis: Node) -> Node:
    found = widen(require_argument(millis, "integer"), BIGINT)
    return Call(TIMESTAMP, millis.nullable, _from_millis, (found,), True)


def _from_millis(value: Value) -> Value:
    return pc.cast(pc.cast(value, pa.timestamp("ms", tz="UTC")), TIMESTAMP)


# --- nested --------------------------------------------------------------------------------------------------


def _size(value: Node) -> Node:
    found = require_argument(value, "array or map")
    return Call(INT, value.nullable, _length_of, (found,))


def _length_of(value: Value) -> Value:
    if pa.types.is_map(value.type):
        value = pc.cast(value, pa.list_(pa.struct([value.type.key_field, value.type.item_field])))
    return pc.list_value_length(value)


def _array(*values: Node) -> Node:
    found = _one_type(*values)
    kind = pa.list_(found[0].type)
    return Call(kind, False, functools.partial(_make_list, kind=kind), found)


def _make_list(*values: Value, kind: pa.DataType) -> Value:
    lengths = [len(value) for value in values if isinstance(value, pa.Array)]
    if not lengths:
        return pa.scalar([value.as_py() for value in values], kind)
    rows = lengths[0]
    columns = [pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value for value in values]
    places = np.arange(rows * len(columns)).reshape(len(columns), rows).T.ravel()
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * len(columns))
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(columns).take(pa.array(places)), type=kind)


def _array_contains(array: Node, value: Node) -> Node:
    found = require_argument(array, "array")
    item = Call(found.type.value_type, True, pc.list_flatten, (found,))
    both = same_type(item, value)
    if both is None or not both[0].type.equals(found.type.value_type) or not isinstance(value, Constant):
        raise SchemaError(f"argument 2 must be a literal {sql_name(found.type.value_type)}")
    return Call(BOOLEAN, array.nullable, _contains, (found, both[1]))


def _contains(array: Value, value: Value) -> Value:
    if isinstance(array, pa.Scalar):
        return _contains(pa.array([array.as_py()], array.type), value)[0]
    rows = pc.list_parent_indices(array).to_numpy()
    hits = pc.equal(pc.list_flatten(array), value).fill_null(False).to_numpy(zero_copy_only=False)
    found = np.zeros(len(array), bool)
    found[rows[hits]] = True
    return pc.if_else(array.is_valid(), pa.array(found), pa.scalar(None, BOOLEAN))


def _named_struct(*parts: Node) -> Node:
    if len(parts) % 2:
        raise SchemaError("it takes names and values in turns")
    names = [str(literal_of(name, "text", 2 * number + 1)) for number, name in enumerate(parts[::2])]
    values = parts[1::2]
    kind = pa.struct([pa.field(n, v.type) for n, v in zip(names, values, strict=True)])
    return Call(kind, False, functools.partial(pc.make_struct, field_names=names), values)


def _table(*entries: tuple[str, str, Callable[..., Node]]) -> dict[str, Function]:
    """Return the functions by name, with the numbers of arguments that their usage shows."""
    found: dict[str, Function] = {}
    for names, arguments, bind in entries:
        required = [one for one in arguments.split(", ") if one and not one.startswith("[") and one != "..."]
        many = arguments.endswith("...")
        optional = arguments.count("[")
        for name in names.split():
            most = None if many else len(required) + optional
            usage = f"{name}({arguments})".replace(", [", "[, ")
            found[name] = Function(usage, len(required), most, bind)
    return found


FUNCTIONS: Final = _table(
    ("abs", "number", _abs),
    ("acos", "number", _to_double(pc.acos_checked)),
    ("array", "value, ...", _array),
    ("array_contains", "array, literal", _array_contains),
    ("asin", "number", _to_double(pc.asin_checked)),
    ("atan", "number", _to_double(pc.atan, may_fail=False)),
    ("atan2", "y, x", _atan2),
    ("ceil ceiling", "number", _whole(pc.ceil)),
    ("coalesce", "value, ...", _coalesce),
    ("concat", "text, ...", text.concat),
    ("contains", "text, part", text.with_part(pc.match_substring)),
    ("cos", "number", _to_double(pc.cos_checked)),
    ("date_trunc", "unit, time", _date_trunc),
    ("day dayofmonth", "time", _part_of_time(pc.day)),
    ("dayofweek", "time", _part_of_time(_day_of_week)),
    ("dayofyear", "time", _part_of_time(pc.day_of_year)),
    ("ends_with endswith", "text, part", text.with_part(pc.ends_with)),
    ("exp", "number", _to_double(pc.exp, may_fail=False)),
    ("floor", "number", _whole(pc.floor)),
    ("greatest", "value, ...", _extreme(pc.max_element_wise)),
    ("hour", "time", _part_of_time(pc.hour, of_day=True)),
    ("if iff", "condition, value, otherwise", _if),
    ("ifnull nvl", "value, otherwise", _coalesce),
    ("least", "value, ...", _extreme(pc.min_element_wise)),
    ("left", "text, length", text.left),
    ("length char_length", "text", text.of_text(pc.utf8_length, INT)),
    ("ln log", "number", _to_double(pc.ln_checked)),
    ("log10", "number", _to_double(pc.log10_checked)),
    ("log2", "number", _to_double(pc.log2_checked)),
    ("lower lcase", "text", text.of_text(pc.utf8_lower)),
    ("lpad", "text, width, padding", text.bind_padding(pc.utf8_lpad)),
    ("ltrim", "text", text.of_text(pc.utf8_ltrim_whitespace)),
    ("minute", "time", _part_of_time(pc.minute, of_day=True)),
    ("mod", "number, divisor", _mod),
    ("month", "time", _part_of_time(pc.month)),
    ("named_struct", "name, value, ...", _named_struct),
    ("nullif", "value, other", _nullif),
    ("power pow", "base, exponent", _power),
    ("quarter", "time", _part_of_time(pc.quarter)),
    ("regexp_extract", "text, pattern", text.regexp_extract),
    ("regexp_like rlike", "text, pattern", text.regex),
    ("regexp_replace", "text, pattern, replacement", text.regexp_replace),
    ("replace", "text, old, new", text.replace),
    ("reverse", "text", text.of_text(pc.utf8_reverse)),
    ("right", "text, length", text.right),
    ("round", "number, [places]", _round),
    ("rpad", "text, width, padding", text.bind_padding(pc.utf8_rpad)),
    ("rtrim", "text", text.of_text(pc.utf8_rtrim_whitespace)),
    ("second", "time", _part_of_time(pc.second, of_day=True)),
    ("sign signum", "number", _sign),
    ("sin", "number", _to_double(pc.sin_checked)),
    ("size cardinality", "array", _size),
    ("split", "text, separator", text.split),
    ("sqrt", "number", _to_double(pc.sqrt_checked)),
    ("starts_with startswith", "text, part", text.with_part(pc.starts_with)),
    ("substring substr", "text, start, [length]", text.substring),
    ("tan", "number", _to_double(pc.tan_checked)),
    ("timestamp_millis", "milliseconds", _timestamp_millis),
    ("trim", "text", text.of_text(pc.utf8_trim_whitespace)),
    ("unix_millis", "time", _unix_millis),
    ("upper ucase", "text", text.of_text(pc.utf8_upper)),
    ("week weekofyear", "time", _part_of_time(pc.iso_week)),
    ("year", "time", _part_of_time(pc.year)),
)
"""All functions by name."""
