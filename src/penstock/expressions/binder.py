"""Binder: checks a parsed expression against a record type, and turns it into typed nodes."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.errors import ExpressionError, SchemaError
from penstock.expressions.casts import cast, widen
from penstock.expressions.evaluation import Rows
from penstock.expressions.joined_records import resolve_names
from penstock.expressions.nested import element_of_array, field_of_struct, value_of_map
from penstock.expressions.nodes import Call, Case, Constant, FieldValue, Logic, Node, Parameter, Try
from penstock.expressions.operators import (
    arithmetic,
    comparison,
    integer_division,
    is_in,
    same,
    same_type,
)
from penstock.expressions.sql_functions import CHANGING, FUNCTIONS, Function
from penstock.expressions.sql_text import SqlText
from penstock.expressions.value_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NOTHING,
    STRING,
    TIMESTAMP,
    is_text,
    sql_name,
    type_of_sql,
)
from penstock.records.types import RecordType

__all__ = ["MAX_DEPTH", "Binder"]

MAX_DEPTH: Final = 64

_ARITHMETIC: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
}
_COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_UNIT_US: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
_ONE_ROW: Final = pa.RecordBatch.from_arrays([pa.nulls(1)], ["nothing"])


class Binder:
    """Turns the parts of one text into nodes. Raises ExpressionError at the first that does not fit."""

    def __init__(
        self,
        text: SqlText,
        records: RecordType,
        parameters: Mapping[str, pa.DataType],
        functions: Mapping[str, Function],
    ) -> None:
        self._text: Final = text
        self._functions: Final = functions
        self._records: Final = records
        self._parameters: Final = parameters
        self._used: Final[dict[str, None]] = {}
        self._near = 0
        self._depth = 0

    @property
    def used_parameters(self) -> tuple[str, ...]:
        """The parameters that the expressions use so far."""
        return tuple(self._used)

    def bind(self, part: exp.Expression) -> Node:
        """Return the node of a part of the text. A part that is the same for all records becomes a constant."""
        before, self._near = self._near, self._text.position(part, otherwise=self._near)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(part, f"The expression is nested more than {MAX_DEPTH} levels deep; split it.")
        node = self._folded(self._node(part), part)
        self._depth -= 1
        self._near = before
        return node

    def _error(self, part: exp.Expression, reason: str) -> ExpressionError:
        return self._text.error(self._text.position(part, otherwise=self._near), reason)

    def _folded(self, node: Node, part: exp.Expression) -> Node:
        if isinstance(node, Constant) or not node.is_constant:
            return node
        failures: dict[int, str] = {}
        try:
            value = node.evaluate(Rows(_ONE_ROW, {}, failures))
        except pa.ArrowException as e:
            raise self._error(part, f"This has no value: {e}.") from None
        if failures:
            raise self._error(part, f"This has no value: {failures[0]}.")
        if isinstance(value, pa.Array):
            value = value[0]
        return Constant(node.type, not value.is_valid, value)

    def _node(self, part: exp.Expression) -> Node:
        kind: type[exp.Expression] = type(part)
        if kind in _ARITHMETIC:
            return self._arithmetic(part, _ARITHMETIC[kind])
        if kind in _COMPARISONS:
            return self._comparison(part, part.this, part.expression, _COMPARISONS[kind])
        method = self._methods.get(kind)
        if method is None:
            raise self._error(part, f"{_name_of(part)} is not supported in expressions.")
        return method(self, part)

    # -- names and literals --

    def _column(self, part: exp.Expression) -> Node:
        names, ambiguous = resolve_names(self._records, [one.name for one in part.parts])  # type: ignore[attr-defined]  # the parts of a dotted name are identifiers
        if part.find(exp.Star):
            raise self._error(part, "'*' stands only alone in select, for all fields.")
        known = self._records.field_names
        if ambiguous:
            raise self._error(part, ambiguous)
        if names[0] not in known:
            lower = names[0].lower()
            if lower in CHANGING and not part.this.args.get("quoted"):
                raise self._error(part, _changing(lower))
            close = difflib.get_close_matches(names[0], known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(known)}."
            raise self._error(part, f"There is no field {names[0]!r}; {hint}")
        field = self._records.field(names[0])
        node: Node = FieldValue(field.arrow_type, field.nullable, field.name)
        for name in names[1:]:
            node = self._member(part, node, name)
        return node

    def _member(self, part: exp.Expression, node: Node, name: str) -> Node:
        found = field_of_struct(node, name)
        if found is None:
            if not pa.types.is_struct(node.type):
                raise self._error(
                    part, f"{sql_name(node.type)} has no field {name!r}; only a STRUCT has fields."
                )
            names = ", ".join(one.name for one in node.type)
            raise self._error(
                part, f"There is no field {name!r} in {sql_name(node.type)}; its fields are {names}."
            )
        return found

    def _dot(self, part: exp.Expression) -> Node:
        if not isinstance(part.expression, exp.Identifier):
            raise self._error(part, f"{_name_of(part)} is not supported in expressions.")
        return self._member(part, self.bind(part.this), part.expression.name)

    def _literal(self, part: exp.Expression) -> Node:
        text = part.name
        if part.args.get("is_string"):
            return Constant(STRING, False, pa.scalar(text))
        if text.isdecimal() and len(text.lstrip("0")) < 20:
            value = int(text)
            kind = INT if value < 2**31 else BIGINT if value < 2**63 else DOUBLE
            return Constant(kind, False, pa.scalar(float(value) if kind == DOUBLE else value, kind))
        try:
            number = float(text)
        except ValueError:
            raise self._error(part, f"{text!r} is not a number.") from None
        if math.isinf(number):
            raise self._error(part, f"{text[:20]} is too large for a DOUBLE.")
        digits = text if "e" not in text.lower() and len(text) <= 38 else ""
        return Constant(DOUBLE, False, pa.scalar(number), digits if "." in digits else "")

    def _null(self, part: exp.Expression) -> Node:  # noqa: ARG002  # as the others
        return Constant(NOTHING, True, pa.scalar(None))

    def _boolean(self, part: exp.Expression) -> Node:
        return Constant(BOOLEAN, False, pa.scalar(bool(part.this)))

    def _parameter(self, part: exp.Expression) -> Node:
        name = part.name
        at = self._text.text.find("${" + name)
        if name not in self._parameters:
            known = ", ".join(f"${{{one}}}" for one in self._parameters) or "none"
            raise self._text.error(at, f"There is no parameter ${{{name}}}; declared are: {known}.")
        self._used[name] = None
        return Parameter(self._parameters[name], True, name)

    def _interval(self, part: exp.Expression) -> Node:
        unit = str(part.args.get("unit") or "").upper().removesuffix("S")
        amount = part.this.name if isinstance(part.this, exp.Literal) else ""
        if unit not in _UNIT_US or not amount.lstrip("-").isdecimal() or len(amount) > 12:
            raise self._error(
                part,
                "An interval is written as INTERVAL '5' MINUTE: a literal integer, and one of "
                f"{', '.join(_UNIT_US)}; months and years have no fixed length.",
            )
        kind = pa.duration("us")
        value = int(amount) * _UNIT_US[unit]
        if abs(value) >= 2**63:
            raise self._error(part, "The interval is too long.")
        return Constant(kind, False, pa.scalar(value, kind))

    # -- operators --

    def _arithmetic(self, part: exp.Expression, sign: str) -> Node:
        left, right = self.bind(part.this), self.bind(part.expression)
        found = arithmetic(sign, left, right)
        if found is None:
            types = f"{sql_name(left.type)} and {sql_name(right.type)}"
            verb = {"+": "added", "-": "subtracted", "*": "multiplied", "/": "divided", "%": "divided"}[sign]
            why = "; CAST one of them" if left.type != right.type or pa.types.is_decimal(left.type) else ""
            raise self._error(part, f"{types} cannot be {verb}{why}.")
        return found

    def _comparison(self, part: exp.Expression, left: Any, right: Any, sign: str) -> Node:
        first, second = self._coerced(part, self.bind(left), self.bind(right))
        found = comparison(sign, first, second)
        if found is None:
            raise self._error(
                part, f"{sql_name(first.type)} and {sql_name(second.type)} cannot be compared with {sign}."
            )
        return found

    def _coerced(self, part: exp.Expression, left: Node, right: Node) -> tuple[Node, Node]:
        """Return two nodes, of which a literal text becomes a time next to a time."""
        for time, text in ((left, right), (right, left)):
            if time.type in (DATE, TIMESTAMP) and is_text(text.type) and isinstance(text, Constant):
                kind = DATE if time.type.equals(DATE) and len(str(text.value).strip()) == 10 else TIMESTAMP
                read = cast(text, kind)
                assert read is not None
                literal = self._folded(read, part)
                return (left, literal) if text is right else (literal, right)
        return left, right

    def _null_safe(self, part: exp.Expression) -> Node:
        left, right = self.bind(part.this), self.bind(part.expression)
        both = same_type(*self._coerced(part, left, right))
        if both is None or pa.types.is_nested(both[0].type):
            raise self._error(part, f"{sql_name(left.type)} and {sql_name(right.type)} cannot be compared.")
        function = functools.partial(same, negated=isinstance(part, exp.NullSafeNEQ))
        return Call(BOOLEAN, False, function, both)

    def _logic(self, part: exp.Expression) -> Node:
        kind = type(part)
        waiting, terms = [part], []
        while waiting:
            one = waiting.pop()
            if isinstance(one, exp.Paren):
                one = one.this
            if type(one) is kind:
                waiting += [one.expression, one.this]
            else:
                terms.append(one)
        nodes = tuple(self._condition(term) for term in terms)
        return Logic(BOOLEAN, any(n.nullable for n in nodes), "and" if kind is exp.And else "or", nodes)

    def _condition(self, part: exp.Expression) -> Node:
        node = self.bind(part)
        if pa.types.is_null(node.type):
            return widen(node, BOOLEAN)
        if not pa.types.is_boolean(node.type):
            raise self._error(part, f"This is {sql_name(node.type)}, but a condition is BOOLEAN.")
        return node

    def _not(self, part: exp.Expression) -> Node:
        node = self._condition(part.this)
        return Call(BOOLEAN, node.nullable, pc.invert, (node,))

    def _negated(self, part: exp.Expression) -> Node:
        node = self.bind(part.this)
        if isinstance(node, Constant) and node.digits:
            return Constant(node.type, False, pc.negate(node.value), f"-{node.digits.lstrip('-')}")
        found = arithmetic("-", Constant(INT, False, pa.scalar(0, INT)), node)
        if found is None:
            raise self._error(part, f"{sql_name(node.type)} has no negative.")
        if pa.types.is_floating(node.type) or pa.types.is_decimal(node.type):
            return Call(node.type, node.nullable, pc.negate, (node,))
        return found

    def _paren(self, part: exp.Expression) -> Node:
        return self.bind(part.this)

    def _is(self, part: exp.Expression) -> Node:
        node = self.bind(part.this)
        if isinstance(part.expression, exp.Null):
            return Call(BOOLEAN, False, pc.is_null, (node,))
        if isinstance(part.expression, exp.Boolean):
            node = self._condition(part.this)
            both = (node, Constant(BOOLEAN, False, pa.scalar(bool(part.expression.this))))
            return Call(BOOLEAN, False, functools.partial(same, negated=False), both)
        raise self._error(part, "IS takes NULL, NOT NULL, TRUE or FALSE.")

    def _between(self, part: exp.Expression) -> Node:
        low = self._comparison(part, part.this, part.args["low"], ">=")
        high = self._comparison(part, part.this, part.args["high"], "<=")
        return Logic(BOOLEAN, low.nullable or high.nullable, "and", (low, high))

    def _in(self, part: exp.Expression) -> Node:
        if part.args.get("query") or part.args.get("unnest") or part.args.get("field"):
            raise self._error(
                part, "IN takes a list of values in parentheses; an expression only sees its record."
            )
        value = self.bind(part.this)
        items = [self._coerced(part, value, self.bind(one))[1] for one in part.expressions]
        both = same_type(value, *items)
        if both is None or pa.types.is_nested(value.type):
            types = ", ".join(dict.fromkeys(sql_name(item.type) for item in items))
            raise self._error(
                part, f"{sql_name(value.type)} is compared with values of other types: {types}."
            )
        value, *items = both
        if all(isinstance(item, Constant) for item in items):
            values = [item.value.as_py() for item in items]  # type: ignore[attr-defined]  # all items are constants
            known = pa.array([one for one in values if one is not None], value.type)
            function = functools.partial(is_in, values=known, has_null=None in values)
            return Call(BOOLEAN, value.nullable or None in values, function, (value,))
        terms = tuple(
            Call(BOOLEAN, value.nullable or item.nullable, pc.equal, (value, item)) for item in items
        )
        return Logic(BOOLEAN, True, "or", terms)

    def _like(self, part: exp.Expression) -> Node:
        text, pattern = self.bind(part.this), self.bind(part.expression)
        if not is_text(text.type):
            raise self._error(part, f"LIKE compares text, not {sql_name(text.type)}.")
        if not isinstance(pattern, Constant) or not is_text(pattern.type):
            raise self._error(part.expression, "The pattern of LIKE must be a literal text.")
        function = functools.partial(
            pc.match_like, pattern=pattern.value.as_py(), ignore_case=isinstance(part, exp.ILike)
        )
        return Call(BOOLEAN, text.nullable, function, (text,))

    def _joined(self, part: exp.Expression) -> Node:
        return self._call(part, "concat", [part.this, part.expression])

    def _regex(self, part: exp.Expression) -> Node:
        return self._call(part, "regexp_like", [part.this, part.expression])

    def _integer_division(self, part: exp.Expression) -> Node:
        found = integer_division(self.bind(part.this), self.bind(part.expression))
        if found is None:
            raise self._error(part, "DIV divides integers.")
        return found

    def _case(self, part: exp.Expression) -> Node:
        subject = part.this
        conditions, values = [], []
        for one in part.args["ifs"]:
            if subject is None:
                conditions.append(self._condition(one.this))
            else:
                conditions.append(self._comparison(one, subject, one.this, "="))
            values.append(self.bind(one.args["true"]))
        otherwise = part.args.get("default")
        values.append(Constant(NOTHING, True, pa.scalar(None)) if otherwise is None else self.bind(otherwise))
        found = same_type(*values)
        if found is None:
            types = ", ".join(dict.fromkeys(sql_name(value.type) for value in values))
            raise self._error(part, f"The results of CASE are of different types: {types}.")
        return Case(found[0].type, any(value.nullable for value in values), tuple(conditions), found)

    # -- functions --

    def _cast(self, part: exp.Expression) -> Node:
        if part.args.get("format") or part.args.get("default"):
            raise self._error(part, "CAST takes a value and a type only.")
        node = self.bind(part.this)
        name = part.args["to"].sql(dialect="spark")
        try:
            kind = type_of_sql(name)
        except SchemaError:
            raise self._error(
                part, f"{name!r} is not a type. Types are those of schemas, such as INT."
            ) from None
        found = cast(node, kind)
        if found is None:
            raise self._error(part, f"{sql_name(node.type)} cannot be cast to {sql_name(kind)}.")
        if isinstance(part, exp.TryCast):
            return Try(kind, True, found)
        return found

    def _extract(self, part: exp.Expression) -> Node:
        name = _EXTRACTED.get(part.this.name.lower())
        if name is None:
            raise self._error(part, f"EXTRACT has no {part.this.name.upper()}.")
        return self._call(part, name, [part.expression])

    def _function(self, part: exp.Expression) -> Node:
        return self._call(part, str(part.this).lower(), part.expressions)

    def _call(self, part: exp.Expression, name: str, arguments: Iterable[exp.Expression]) -> Node:
        function = self._functions.get(name) or FUNCTIONS.get(name)
        if function is None:
            if name in CHANGING:
                raise self._error(part, _changing(name))
            if name in _AGGREGATES:
                raise self._error(
                    part,
                    f"{name.upper()}() is over many records; use windows or aggregates of a keyed stream.",
                )
            close = difflib.get_close_matches(name, [*self._functions, *FUNCTIONS], 1)
            hint = f"did you mean {close[0]}()?" if close else "docs/tables.md lists all functions."
            raise self._error(part, f"There is no function {name}(); {hint}")
        nodes = [self.bind(one) for one in arguments]
        if len(nodes) < function.least or (function.most is not None and len(nodes) > function.most):
            raise self._error(part, f"Write {function.usage}; it has {len(nodes)} arguments here.")
        try:
            return function.bind(*nodes)
        except SchemaError as e:
            raise self._error(part, f"The arguments do not fit {function.usage}: {e}.") from None

    def _bracket(self, part: exp.Expression) -> Node:
        node = self.bind(part.this)
        if len(part.expressions) != 1:
            raise self._error(part, "Brackets take one index or key.")
        index = self.bind(part.expressions[0])
        found = element_of_array(node, index) or value_of_map(node, index)
        if found is None:
            raise self._error(
                part,
                f"{sql_name(node.type)}[{sql_name(index.type)}] has no value: an ARRAY takes a literal index from 0, a "
                "MAP a literal key.",
            )
        return found

    _methods: ClassVar[dict[type[exp.Expression], Callable[[Binder, Any], Node]]] = {
        exp.Column: _column,
        exp.Dot: _dot,
        exp.Literal: _literal,
        exp.Null: _null,
        exp.Boolean: _boolean,
        exp.Placeholder: _parameter,
        exp.Interval: _interval,
        exp.NullSafeEQ: _null_safe,
        exp.NullSafeNEQ: _null_safe,
        exp.And: _logic,
        exp.Or: _logic,
        exp.Not: _not,
        exp.Neg: _negated,
        exp.Paren: _paren,
        exp.Is: _is,
        exp.Between: _between,
        exp.In: _in,
        exp.Like: _like,
        exp.ILike: _like,
        exp.RegexpLike: _regex,
        exp.DPipe: _joined,
        exp.IntDiv: _integer_division,
        exp.Case: _case,
        exp.Cast: _cast,
        exp.TryCast: _cast,
        exp.Extract: _extract,
        exp.Anonymous: _function,
        exp.Bracket: _bracket,
    }


_AGGREGATES: Final = frozenset(
    ("avg", "count", "max", "mean", "min", "rank", "row_number", "stddev", "sum", "variance")
)
_EXTRACTED: Final = {
    **{unit: unit for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")},
    "dow": "dayofweek",
    "doy": "dayofyear",
}


def _changing(name: str) -> str:
    return f"{name.upper()} would have another value in a replay; use a field, such as the event time of the record."


def _name_of(part: exp.Expression) -> str:
    """Return how to call a part of SQL in a message: its keyword."""
    if isinstance(part, exp.Subquery | exp.Select | exp.Exists):
        return "A subquery"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(part).__name__).upper()
