"""Grouping: GROUP BY with aggregates, as a step with windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from penstock.expressions.sql_text import parts_of
from penstock.expressions.value_types import BIGINT, DOUBLE, is_number, python_type_of, sql_name
from penstock.records.types import Field
from penstock.sql.relations import Expressions, Relation, column_named, unqualify
from penstock.tables.aggregate import Aggregate
from penstock.windows.distinct_values import distinct_values
from penstock.windows.record_aggregates import KINDS, AggregateColumn, record_aggregates

__all__ = ["Grouping", "has_aggregates"]

_BOUNDS: Final = ("window_start", "window_end")
_WINDOW_TIME: Final = "window_time"


@dataclass
class _Call:
    """A call of an aggregate: the column of its argument, and the one that it makes."""

    kind: str
    argument: str | None
    made: str
    part: exp.Expression
    distinct: bool = False


def has_aggregates(parts: Sequence[exp.Expression], own: Expressions) -> bool:
    """Return whether one of some expressions calls an aggregate."""
    return any(_is_aggregate(one, own) for part in parts for one in parts_of(part))


def _is_aggregate(part: exp.Expression, own: Expressions) -> bool:
    if not isinstance(part, exp.Anonymous) or isinstance(part.parent, exp.Window):
        return False
    name = str(part.this).lower()
    return name in KINDS or name in own.aggregates


@dataclass
class Grouping:
    """The groups of one query: their keys and aggregates, and the columns that stand for these afterwards."""

    relation: Relation
    own: Expressions
    base: str
    keys: dict[str, exp.Expression] = field(default_factory=dict)
    arguments: dict[str, exp.Expression] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    bounds: set[str] = field(default_factory=set)

    def read_keys(self, keys: Sequence[exp.Expression], items: Sequence[tuple[str, exp.Expression]]) -> None:
        """Take the keys of GROUP BY, which may name an item of the selection. Raises ExpressionError."""
        for key in keys:
            if self.relation.window is not None and isinstance(key, exp.Column) and key.name in _BOUNDS:
                self.bounds.add(key.name)
                continue
            part, name = key, ""
            if isinstance(key, exp.Literal):
                number = int(key.name) if key.name.isdecimal() else 0
                if not 1 <= number <= len(items):
                    raise self.own.error(key, f"There is no column {key.name} in the selection.")
                name, part = items[number - 1]
            elif isinstance(key, exp.Column) and key.name not in self.relation.columns:
                name, part = next(((n, p) for n, p in items if n == key.name), ("", key))
            plain = unqualify(part, self.relation, self.own)
            if has_aggregates([plain], self.own):
                raise self.own.error(key, "GROUP BY takes no aggregates.")
            if not name:
                name = next((n for n, p in items if _same(p, plain, self.relation, self.own)), "")
            if isinstance(plain, exp.Column) and not plain.table:
                name = plain.name
            self._add(self.keys, name or f"key_{len(self.keys) + 1}", plain)
        window = self.relation.window
        if window is not None and self.bounds != set(_BOUNDS):
            raise self.own.error(
                window.at, "Windows are grouped by both: GROUP BY ..., window_start, window_end."
            )

    def _add(self, to: dict[str, exp.Expression], name: str, part: exp.Expression) -> str:
        """Add a column to compute before grouping, under its name or one that is free; return that."""
        for known, other in to.items():
            if other.sql() == part.sql():
                return known
        found, number = name, 1
        taken = {**self.keys, **self.arguments}
        while found in _BOUNDS or (found in taken and taken[found].sql() != part.sql()):
            number += 1
            found = f"{name}_{number}"
        to[found] = part
        return found

    def replaced(self, part: exp.Expression) -> exp.Expression:
        """Return an expression of the result, in which columns replace the keys and aggregates."""
        return self._replaced(unqualify(part, self.relation, self.own))

    def _replaced(self, part: exp.Expression) -> exp.Expression:
        for name, key in self.keys.items():
            if part.sql() == key.sql():
                return column_named(name, part)
        if isinstance(part, exp.Column) and not part.table:
            if part.name in self.bounds:
                return column_named(part.name, part)
            if part.name == _WINDOW_TIME and self.bounds:
                unit = exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="MILLISECOND"))
                return exp.Sub(this=column_named("window_end", part), expression=unit)
        if isinstance(part, exp.Column):
            raise self.own.error(
                part, f"The column {part.name!r} is neither in GROUP BY nor in an aggregate."
            )
        if _is_aggregate(part, self.own) or (
            isinstance(part, exp.Filter) and _is_aggregate(part.this, self.own)
        ):
            return column_named(self._aggregate(part), part)
        made = part.copy()
        for name, value in part.args.items():
            if isinstance(value, exp.Expression) and not isinstance(value, exp.DataType):
                made.set(name, self._replaced(value))
            elif isinstance(value, list):
                made.set(name, [self._replaced(v) if isinstance(v, exp.Expression) else v for v in value])
        return made

    def _aggregate(self, part: exp.Expression) -> str:
        """Note a call of an aggregate, and return the column of its result."""
        call, condition = part, None
        if isinstance(part, exp.Filter):
            call, condition = part.this, part.expression.this
        kind = str(call.this).lower()
        given = call.expressions
        if len(given) != 1:
            raise self.own.error(part, f"{kind.upper()} takes one argument.")
        distinct = isinstance(given[0], exp.Distinct)
        if distinct:
            given = given[0].expressions
            if kind in self.own.aggregates or len(given) != 1 or isinstance(given[0], exp.Star):
                raise self.own.error(part, f"{kind.upper()}(DISTINCT ...) takes one column.")
            # The extremes of the different values are those of all.
            distinct = kind not in ("min", "max")
        if has_aggregates(given, self.own):
            raise self.own.error(given[0], "An aggregate takes no other aggregate.")
        argument: exp.Expression | None = given[0]
        if isinstance(argument, exp.Star):
            if kind != "count":
                raise self.own.error(argument, f"{kind.upper()}(*) has no meaning; name a column.")
            argument = None
        if condition is not None:
            kept = exp.Literal.number(1) if argument is None else argument
            argument = exp.Case(ifs=[exp.If(this=condition.copy(), true=kept.copy())])
        name = None
        if argument is not None:
            hint = argument.name if isinstance(argument, exp.Column) else f"value_{len(self.arguments) + 1}"
            name = self._add(self.arguments, hint, argument)
        for known in self.calls:
            if (known.kind, known.argument, known.distinct) == (kind, name, distinct):
                return known.made
        made = f"{kind}{'_distinct' if distinct else ''}_{name}" if name is not None else kind
        taken = {*self.keys, *_BOUNDS, *(known.made for known in self.calls)}
        while made in taken:
            made += "_"
        self.calls.append(_Call(kind, name, made, part, distinct))
        return made

    def described(self) -> Relation:
        """Add the step, and return the relation of its results."""
        window, own = self.relation.window, self.own
        if window is None:
            return self._add_group_step()
        if window.kind == "SESSION" and set(window.keys or ()) != set(self.keys):
            raise own.error(
                window.at,
                "The sessions of SESSION(TABLE t PARTITION BY ...) must be grouped by the same columns, and "
                "window_start, window_end.",
            )
        stream = self._selected()
        columns = [self._column(call, stream) for call in self.calls]
        if not columns:
            columns = [AggregateColumn("count", None, Field("count_", int, BIGINT, nullable=False))]
        function = record_aggregates(columns, stream.record_type)
        first = next(iter(self.keys.values()), None)
        with own.errors_at(window.at if first is None else first):
            keyed = stream.key_by(*self.keys).window(window.assigner) if self.keys else None
            grouped = keyed if keyed is not None else stream.window_all(window.assigner)
        with own.errors_at(window.at):
            made = grouped.aggregate(own.unique(f"{self.base}.group"), function, output=function.output)
        return Relation(made, self.relation.alias)

    def _add_group_step(self) -> Relation:
        """Add a step with groups that never end, whose results are a changelog."""
        own = self.own
        for call in self.calls:
            if call.kind in own.aggregates:
                raise own.error(call.part, "Functions of users aggregate windows only.")
        stream = self._selected()
        first: Any = next(iter(self.keys.values()), self.calls[0].part if self.calls else 0)
        calls = {
            call.made: Aggregate(call.kind, call.argument, distinct=call.distinct)  # type: ignore[arg-type]  # the parser has checked the kind
            for call in self.calls
        }
        with own.errors_at(first):
            grouped = stream.group_by(*self.keys)
            made = grouped.aggregate(own.unique(f"{self.base}.group"), calls or {"count_": Aggregate.count()})
        return Relation(made, self.relation.alias)

    def _selected(self) -> Any:
        """Return the stream of keys and arguments."""
        fields = {**self.keys, **self.arguments}
        if not fields:
            # At least one column must be left to count.
            fields = {self.relation.columns[0]: column_named(self.relation.columns[0])}
        return self.own.select(self.relation.stream, list(fields.items()), f"{self.base}.input")

    def _column(self, call: _Call, stream: Any) -> AggregateColumn:
        """Return an aggregate with its type. Raises ExpressionError if it does not fit its argument."""
        column = self._of_all(call, stream)
        if not call.distinct:
            return column
        given = stream.record_type.field(call.argument)
        if pa.types.is_nested(given.arrow_type):
            raise self.own.error(
                call.part, f"{sql_name(given.arrow_type)} has no order, which DISTINCT in windows needs."
            )
        self._check_digits(call, given.arrow_type)
        return dataclasses.replace(column, function=distinct_values(call.kind, given, column.made))

    def _of_all(self, call: _Call, stream: Any) -> AggregateColumn:
        if call.argument is None:
            return AggregateColumn("count", None, Field(call.made, int, BIGINT, nullable=False))
        given = stream.record_type.field(call.argument)
        if call.kind in self.own.aggregates:
            function, result = self.own.aggregates[call.kind]
            return AggregateColumn(
                call.kind, call.argument, dataclasses.replace(result, name=call.made), function
            )
        kind = given.arrow_type
        if call.kind == "count":
            return AggregateColumn("count", call.argument, Field(call.made, int, BIGINT, nullable=False))
        if call.kind in ("min", "max"):
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise self.own.error(call.part, f"{sql_name(kind)} has no {call.kind.upper()}.")
            self._check_digits(call, kind)
            return AggregateColumn(
                call.kind, call.argument, dataclasses.replace(given, name=call.made, nullable=True)
            )
        if not is_number(kind):
            raise self.own.error(call.part, f"{call.kind.upper()} takes a number, not {sql_name(kind)}.")
        self._check_digits(call, kind)
        result = _total_type(kind, averages=call.kind == "avg")
        return AggregateColumn(
            call.kind, call.argument, Field(call.made, python_type_of(result), result, nullable=True)
        )

    def _check_digits(self, call: _Call, kind: pa.DataType) -> None:
        if pa.types.is_decimal(kind) and (kind.precision - kind.scale > 18 or kind.scale > 18):
            raise self.own.error(
                call.part,
                f"{sql_name(kind)} has more digits than windows keep; CAST it to DECIMAL(36, 18) or less.",
            )


def _total_type(kind: pa.DataType, *, averages: bool) -> pa.DataType:
    """Return the type of a sum or a mean, which is that of Spark, as in groups without windows."""
    if pa.types.is_decimal(kind):
        if averages:
            more = min(4, 38 - kind.precision)
            return pa.decimal128(kind.precision + more, kind.scale + more)
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return BIGINT if pa.types.is_integer(kind) and not averages else DOUBLE


def _same(item: exp.Expression, key: exp.Expression, relation: Relation, own: Expressions) -> bool:
    return not has_aggregates([item], own) and unqualify(item, relation, own).sql() == key.sql()
