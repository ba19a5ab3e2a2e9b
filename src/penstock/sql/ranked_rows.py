"""Ranked rows: ROW_NUMBER() in a query, and its limit in the query around it, as Top-N or deduplication."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from penstock.sql.relations import Expressions, Relation, unqualify

__all__ = ["RankedRows", "find_ranking", "is_rank", "limit_rows"]


@dataclass(frozen=True)
class RankedRows:
    """Rows with their number in a group, before it is known how many are wanted."""

    column: str
    groups: tuple[str, ...]
    orders: tuple[str, ...]
    directions: tuple[str, ...]
    part: exp.Expression


def is_rank(part: exp.Expression) -> bool:
    """Return whether a part is ROW_NUMBER() OVER (...)."""
    return (
        isinstance(part, exp.Window)
        and isinstance(part.this, exp.Anonymous)
        and str(part.this.this).upper() == "ROW_NUMBER"
    )


def find_ranking(name: str, part: exp.Window, relation: Relation, own: Expressions) -> RankedRows:
    """Return the ranking that ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) describes. Raises ExpressionError."""
    if part.this.expressions or part.args.get("spec") or part.args.get("alias"):
        raise own.error(part, "Write ROW_NUMBER() OVER (PARTITION BY column ORDER BY column DESC).")
    groups = tuple(_column(one, relation, own) for one in part.args.get("partition_by") or ())
    order = part.args.get("order")
    if order is None:
        raise own.error(part, "ROW_NUMBER() needs an order: OVER (PARTITION BY column ORDER BY column DESC).")
    names, directions = [], []
    for one in order.expressions:
        names.append(_column(one.this, relation, own))
        # The parser writes the default of its dialect, which is that of Spark: null is the smallest.
        directions.append(
            f"{'DESC' if one.args.get('desc') else 'ASC'} NULLS {'FIRST' if one.args.get('nulls_first') else 'LAST'}"
        )
    return RankedRows(name, groups, tuple(names), tuple(directions), part)


def _column(part: exp.Expression, relation: Relation, own: Expressions) -> str:
    plain = unqualify(part, relation, own)
    if not isinstance(plain, exp.Column) or plain.table or plain.name not in relation.columns:
        raise own.error(part, "Rows are ranked by columns; compute them in a query in FROM first.")
    return str(plain.name)


def limit_rows(
    relation: Relation, condition: exp.Expression | None, keeps_rank: bool, own: Expressions, base: str
) -> tuple[Relation, exp.Expression | None]:
    """Return the first rows that a condition such as `rank <= 3` selects, and the rest of the condition."""
    ranked = relation.ranked
    assert ranked is not None
    count: int | None = None
    rest: list[exp.Expression] = []
    for term in _terms(condition):
        found = _limit(term, ranked.column)
        if found is None or count is not None:
            rest.append(term)
        else:
            count = found
    if count is None or count < 1:
        raise own.error(
            ranked.part,
            f"ROW_NUMBER() must be limited by the query around it: WHERE {ranked.column} <= 3. Without a limit all "
            "rows would be kept.",
        )
    for term in rest:
        if any(one.name == ranked.column for one in term.find_all(exp.Column)):
            raise own.error(term, f"{ranked.column!r} may only be limited: {ranked.column} <= {count}.")
    with own.errors_at(ranked.part):
        grouped = relation.stream.group_by(*ranked.groups)
        made = _first_rows(relation, ranked, grouped, count, keeps_rank, own.unique(f"{base}.top"))
    left: Any = exp.and_(*rest, copy=False) if rest else None
    return dataclasses.replace(relation, stream=made, ranked=None), left


def _first_rows(
    relation: Relation, ranked: RankedRows, grouped: Any, count: int, keeps_rank: bool, step: str
) -> Any:
    is_time = len(ranked.orders) == 1 and ranked.orders[0] == relation.stream.origin.time
    if count == 1 and is_time and not keeps_rank and ranked.groups and not relation.stream.is_changelog:
        keep = "last" if ranked.directions[0].startswith("DESC") else "first"
        return grouped.deduplicate(step, keep=keep)
    order_by = [
        f"{name} {direction}" for name, direction in zip(ranked.orders, ranked.directions, strict=True)
    ]
    return grouped.top(step, count, order_by=order_by, rank=ranked.column if keeps_rank else None)


def _terms(condition: exp.Expression | None) -> list[exp.Expression]:
    """Return the terms that AND joins, in order."""
    found: list[exp.Expression] = []
    waiting = [] if condition is None else [condition]
    while waiting:
        one = waiting.pop()
        if isinstance(one, exp.Paren):
            waiting.append(one.this)
        elif isinstance(one, exp.And):
            waiting += [one.expression, one.this]
        else:
            found.append(one)
    return found


def _limit(term: exp.Expression, column: str) -> int | None:
    """Return N if a term is `column <= N`, `column < N + 1` or `column = 1`, also the other way round."""
    kinds: dict[type, int] = {exp.LTE: 0, exp.LT: -1}
    left, right = term.args.get("this"), term.args.get("expression")
    kind: Any = type(term)
    if isinstance(left, exp.Literal):
        left, right = right, left
        kind = {exp.GTE: exp.LTE, exp.GT: exp.LT}.get(kind, exp.EQ if kind is exp.EQ else None)
    if not isinstance(left, exp.Column) or left.name != column or not isinstance(right, exp.Literal):
        return None
    if right.args.get("is_string") or not right.name.isdecimal() or len(right.name) > 6:
        return None
    number = int(right.name)
    if kind is exp.EQ:
        return 1 if number == 1 else None
    return None if kind not in kinds else number + kinds[kind]
