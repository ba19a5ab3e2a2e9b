"""Over planner: aggregates OVER the rows before a row, as one step that emits each row once."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from penstock.sql.relations import Expressions, Relation, column_named, unqualify
from penstock.tables.aggregate import Aggregate

__all__ = ["OverRows", "has_over"]

_FUNCTIONS: Final = ("count", "sum", "avg", "min", "max")
_USAGE: Final = (
    "Write OVER (PARTITION BY key ORDER BY at), perhaps with ROWS BETWEEN 9 PRECEDING AND CURRENT ROW, or RANGE "
    "BETWEEN INTERVAL '5' MINUTE PRECEDING AND CURRENT ROW."
)


def has_over(parts: Sequence[exp.Expression]) -> bool:
    """Return whether one of some expressions has an aggregate OVER rows."""
    return any(part.find(exp.Window) is not None for part in parts)


@dataclass
class OverRows:
    """The OVER aggregates of one query, which must all be over the same rows."""

    relation: Relation
    own: Expressions
    base: str
    frame: str = ""
    groups: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, exp.Expression] = field(default_factory=dict)
    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    first: exp.Expression | None = None

    def replaced(self, part: exp.Expression) -> exp.Expression:
        """Return an expression in which columns replace the aggregates OVER rows."""

        def plain(one: exp.Expression) -> exp.Expression:
            return column_named(self._aggregate(one), one) if isinstance(one, exp.Window) else one

        return unqualify(part, self.relation, self.own).transform(plain)

    def _aggregate(self, part: exp.Window) -> str:
        own = self.own
        self._take_rows(part)
        call, condition = part.this, None
        if isinstance(call, exp.Filter):
            call, condition = call.this, call.expression.this
        name = str(call.this).lower() if isinstance(call, exp.Anonymous) else ""
        if name not in _FUNCTIONS:
            raise own.error(
                part, f"OVER is for {', '.join(map(str.upper, _FUNCTIONS))}; ROW_NUMBER() for Top-N."
            )
        if len(call.expressions) != 1:
            raise own.error(part, f"{name.upper()} takes one argument.")
        (argument,) = call.expressions
        distinct = isinstance(argument, exp.Distinct)
        if distinct:
            if len(argument.expressions) != 1:
                raise own.error(part, "DISTINCT is for one column here.")
            (argument,) = argument.expressions
        if isinstance(argument, exp.Star):
            if name != "count" or distinct:
                raise own.error(argument, f"{name.upper()}(*) has no meaning; name a column.")
            field_name = (
                None if condition is None else self._argument(_where(condition, exp.Literal.number(1)))
            )
        else:
            field_name = self._argument(argument if condition is None else _where(condition, argument))
        made = f"over_{len(self.aggregates) + 1}"
        while made in self.relation.columns:
            made += "_"
        with own.errors_at(part):
            self.aggregates[made] = Aggregate(name, field_name, distinct=distinct)  # type: ignore[arg-type]  # the parser has checked the name
        return made

    def _argument(self, part: exp.Expression) -> str:
        if isinstance(part, exp.Column) and not part.table and part.name in self.relation.columns:
            return str(part.name)
        name = f"value_{len(self.arguments) + 1}"
        while name in self.relation.columns:
            name += "_"
        self.arguments[name] = part
        return name

    def _take_rows(self, part: exp.Window) -> None:
        """Take the rows that an aggregate is over. Raises ExpressionError if they differ from those before."""
        shown = " ".join(
            str(part.args[name].sql() if isinstance(part.args[name], exp.Expression) else [
                one.sql() for one in part.args[name]
            ])
            for name in ("partition_by", "order", "spec")
            if part.args.get(name)
        )  # fmt: skip
        if self.first is not None:
            if shown != self.frame:
                raise self.own.error(
                    part, "All OVER aggregates of a query must be over the same rows; use a view."
                )
            return
        self.first, self.frame = part, shown
        if part.args.get("alias"):
            raise self.own.error(part, _USAGE)
        self.groups = [self._argument(one) for one in part.args.get("partition_by") or ()]
        order = part.args.get("order")
        ordered = [] if order is None else order.expressions
        by = ordered[0].this if len(ordered) == 1 and not ordered[0].args.get("desc") else None
        if not isinstance(by, exp.Column) or not self.relation.is_time(by.name):
            raise self.own.error(part, f"Rows are in the order of their event time. {_USAGE}")
        self.options = self._frame_of(part)

    def _frame_of(self, part: exp.Window) -> dict[str, Any]:
        spec = part.args.get("spec")
        if spec is None:
            return {}
        start, kind = spec.args.get("start"), str(spec.args.get("kind")).upper()
        is_before = spec.args.get("start_side") == "PRECEDING" and spec.args.get("end") in (
            "CURRENT ROW",
            None,
        )
        if not is_before or spec.args.get("exclude"):
            raise self.own.error(part, _USAGE)
        if start == "UNBOUNDED":
            if kind == "ROWS":
                raise self.own.error(part, f"ROWS need a number; from the start there is RANGE. {_USAGE}")
            return {}
        if kind == "ROWS" and isinstance(start, exp.Literal) and start.name.isdecimal():
            return {"rows": int(start.name[:9])}
        if kind == "RANGE" and isinstance(start, exp.Interval):
            length: dt.timedelta = self.own.duration(start, "The range")
            return {"range": length}
        raise self.own.error(part, _USAGE)

    def described(self) -> Relation:
        """Add the step, and return the relation of its rows."""
        own, relation = self.own, self.relation
        assert self.first is not None
        stream = relation.stream
        if self.arguments:
            fields = [(name, column_named(name)) for name in relation.columns]
            stream = own.select(stream, [*fields, *self.arguments.items()], f"{self.base}.input")
        with own.errors_at(self.first):
            grouped = stream.group_by(*self.groups)
            made = grouped.over(own.unique(f"{self.base}.over"), self.aggregates, **self.options)
        return dataclasses.replace(relation, stream=made)


def _where(condition: exp.Expression, value: exp.Expression) -> exp.Expression:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])
