"""Join planner: maps JOIN ... ON to interval joins, to joins with versions of a time, and to lookups."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sqlglot import exp

from penstock.sql.relations import Expressions, LookedUp, Relation, WindowTable

__all__ = ["JoinTerms", "is_now", "plan_join"]

_Side: TypeAlias = Relation | LookedUp

_SIGNS: Final[dict[type, str]] = {exp.GTE: ">=", exp.GT: ">", exp.LTE: "<=", exp.LT: "<"}
_TURNED: Final = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
_BOUNDS: Final = ("window_start", "window_end")
_LEAST: Final = dt.timedelta(milliseconds=1)


@dataclass
class JoinTerms:
    """The terms of a join's condition: equal keys, the bounds of time, and all others."""

    left: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    lower: dt.timedelta | None = None
    upper: dt.timedelta | None = None
    bounds: set[str] = field(default_factory=set)
    rest: list[exp.Expression] = field(default_factory=list)


@dataclass(frozen=True)
class _Sides:
    left: Relation
    right: _Side
    own: Expressions

    def side_of(self, part: exp.Column) -> tuple[_Side, str]:
        """Return the side of a column, and its name there. Raises ExpressionError if it is of neither side, or both."""
        sides: tuple[_Side, ...] = (self.left, self.right)
        if part.table:
            for side in sides:
                if part.parts[0].name == side.alias and len(part.parts) == 2:
                    if part.name not in side.columns:
                        raise self.own.error(
                            part,
                            f"{side.alias!r} has no column {part.name!r}; its columns are {', '.join(side.columns)}.",
                        )
                    return side, part.name
        found = [side for side in sides if part.name in side.columns and not part.table]
        if len(found) != 1:
            what = "both sides have it; qualify it" if found else "no side has it"
            raise self.own.error(part, f"The column {part.sql()!r} is unknown here: {what}.")
        return found[0], part.name

    def key(self, term: exp.Expression, terms: JoinTerms) -> bool:
        """Take a term if it has the form `a.x = b.y`; return whether it has."""
        if not isinstance(term, exp.EQ):
            return False
        if not isinstance(term.this, exp.Column) or not isinstance(term.expression, exp.Column):
            return False
        if self.left.window is not None and term.this.name in _BOUNDS:
            pair = {part.table for part in (term.this, term.expression)}
            if term.expression.name == term.this.name and pair == {self.left.alias, self.right.alias}:
                terms.bounds.add(term.this.name)
                return True
        (one, x), (other, y) = self.side_of(term.this), self.side_of(term.expression)
        if one is other:
            return False
        terms.left.append(x if one is self.left else y)
        terms.right.append(y if one is self.left else x)
        return True

    def time(self, term: exp.Expression, terms: JoinTerms) -> bool:
        """Take a term if it bounds the difference of both event times; return whether it does."""
        if isinstance(term, exp.Between):
            pairs = [(term.this, term.args["low"], ">="), (term.this, term.args["high"], "<=")]
        elif type(term) in _SIGNS:
            pairs = [(term.this, term.expression, _SIGNS[type(term)])]
        else:
            return False
        bounds = []
        for one, other, sign in pairs:
            first, second = self._moment(one), self._moment(other)
            if first is None or second is None or first[0] is second[0]:
                return False
            bounds.append((first, second, sign))
        for (side, plus), (_, more), found in bounds:
            # right - left against a length
            sign, length = (found, more - plus) if side is self.right else (_TURNED[found], plus - more)
            length += {">": _LEAST, "<": -_LEAST}.get(sign, dt.timedelta(0))
            if sign.startswith(">"):
                terms.lower = length if terms.lower is None else max(terms.lower, length)
            else:
                terms.upper = length if terms.upper is None else min(terms.upper, length)
        return True

    def _moment(self, part: exp.Expression) -> tuple[_Side, dt.timedelta] | None:
        """Return the side and the length of `side.time + INTERVAL ...`, or None for another expression."""
        while isinstance(part, exp.Paren):
            part = part.this
        if isinstance(part, exp.Column):
            side, name = self.side_of(part)
            return (side, dt.timedelta(0)) if side.is_time(name) else None
        if isinstance(part, exp.Add | exp.Sub) and isinstance(part.expression, exp.Interval):
            inner = self._moment(part.this)
            if inner is None:
                return None
            length = self.own.duration(part.expression, "A bound of a join")
            return inner[0], inner[1] + (length if isinstance(part, exp.Add) else -length)
        return None


def plan_join(
    left: Relation, join: exp.Join, right_of: Callable[[exp.Table], _Side], own: Expressions, base: str
) -> Relation:
    """Return the relation of a join. Raises ExpressionError for what is not supported."""
    how = _how(join, own)
    source = join.this
    version = source.args.get("version") if isinstance(source, exp.Table) else None
    right = right_of(source)
    if right.alias == left.alias or left.sides:
        raise own.error(
            source,
            "A join has two sides with names of their own; join the result with a third in a query around it.",
        )
    if left.ranked is not None or right.ranked is not None:
        raise own.error(source, "Ranked rows cannot be joined here; limit them first.")
    sides = _Sides(left, right, own)
    terms = _read(join, sides, own)
    window = _common_window(terms, sides, source)
    fields, names = _fields(left, right, with_bounds=window is not None)
    rest: Any = exp.and_(*terms.rest, copy=False) if terms.rest else None
    options: dict[str, Any] = {
        "how": how,
        "fields": fields,
        "where": None if rest is None else own.part(rest),
        "aliases": (left.alias, right.alias),
        "settings": None if rest is None else own.used_settings(rest) or None,
    }
    with own.errors_at(source):
        step = own.unique(f"{base}.join")
        if isinstance(right, LookedUp):
            # Without a key, a record that has a null there finds no row, and is not a dead letter.
            pairs = list(zip(terms.left, terms.right, strict=True))
            looked_up = left.stream.lookup_join(step, right.table, on=pairs, **options)
            return Relation(looked_up, "", sides=names)
        keyed, other = left.stream.key_by(*terms.left), right.stream.key_by(*terms.right)
        if version is not None and is_now(version):
            made = keyed.lookup_join(step, other, **options)
        elif version is not None:
            _check_version(version, terms, sides)
            made = keyed.as_of_join(step, other, **options)
        elif window is not None:
            made = keyed.window_join(step, other, window.assigner, **options)
        elif terms.lower is None or terms.upper is None:
            raise own.error(
                source,
                "A join of streams is bounded in time on both ends, so that its state is: ON a.id = b.id AND b.at "
                "BETWEEN a.at AND a.at + INTERVAL '1' HOUR.",
            )
        else:
            made = keyed.interval_join(step, other, lower=terms.lower, upper=terms.upper, **options)
    return Relation(made, "", sides=names)


def _how(join: exp.Join, own: Expressions) -> str:
    side, kind = (join.side or "").upper(), (join.kind or "").upper()
    if kind not in ("", "INNER", "OUTER") or join.args.get("method") or join.args.get("using"):
        word = " ".join(filter(None, (str(join.args.get("method") or ""), side, kind, "JOIN")))
        raise own.error(
            join.this, f"{word.strip()} is not supported; write [LEFT | RIGHT | FULL] JOIN ... ON."
        )
    if join.args.get("on") is None:
        raise own.error(join.this, "A join needs ON, with equal keys of both sides.")
    return side.lower() or "inner"


def _read(join: exp.Join, sides: _Sides, own: Expressions) -> JoinTerms:
    terms = JoinTerms()
    waiting = [join.args["on"]]
    while waiting:
        one = waiting.pop()
        if isinstance(one, exp.Paren):
            waiting.append(one.this)
        elif isinstance(one, exp.And):
            waiting += [one.expression, one.this]
        elif not sides.key(one, terms) and not sides.time(one, terms):
            terms.rest.append(one)
    if not terms.left:
        raise own.error(join.args["on"], "A join needs an equal key of both sides: ON a.id = b.id.")
    return terms


def _common_window(terms: JoinTerms, sides: _Sides, source: exp.Expression) -> WindowTable | None:
    """Return the windows of both sides, None if they have none. Raises ExpressionError if they are not the same."""
    left, right, own = sides.left.window, sides.right.window, sides.own
    if left is None and right is None:
        return None
    if left is None or right is None or left.shown != right.shown:
        raise own.error(
            source, "Both sides of a join in windows have the same function of a table, such as TUMBLE."
        )
    if terms.bounds != set(_BOUNDS):
        raise own.error(
            source,
            "A join in windows says so: ON a.id = b.id AND a.window_start = b.window_start AND a.window_end = "
            "b.window_end.",
        )
    if left.kind == "SESSION" and [list(one.keys or ()) for one in (left, right)] != [
        terms.left,
        terms.right,
    ]:
        raise own.error(
            source, "Sessions that are joined are partitioned by the keys of the join, in their order."
        )
    return left


def is_now(version: exp.Expression) -> bool:
    """Return whether the newest version is wanted: FOR SYSTEM_TIME AS OF PROCTIME()."""
    at = version.args.get("expression")
    return isinstance(at, exp.Anonymous) and str(at.this).upper() == "PROCTIME" and not at.expressions


def _check_version(version: exp.Expression, terms: JoinTerms, sides: _Sides) -> None:
    """Raise ExpressionError unless the versions are those at the event time of the left side."""
    at = version.args.get("expression")
    if version.args.get("kind") != "AS OF" or not isinstance(at, exp.Column):
        raise sides.own.error(version, "Versions are asked for as FOR SYSTEM_TIME AS OF a.at.")
    side, name = sides.side_of(at)
    if side is not sides.left or not side.is_time(name):
        raise sides.own.error(at, f"{name!r} is not the event time of {sides.left.alias!r}.")
    if terms.lower is not None or terms.upper is not None:
        raise sides.own.error(
            at, "FOR SYSTEM_TIME AS OF says what time counts; leave bounds of time out of ON."
        )


def _fields(
    left: Relation, right: _Side, *, with_bounds: bool
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the fields of a join, with unique names, and these names by side and column."""
    fields: list[str] = []
    names: dict[str, dict[str, str]] = {left.alias: {}, right.alias: {}}
    taken = {*left.columns}
    if with_bounds:
        taken |= set(_BOUNDS)
        names[left.alias] |= dict(zip(_BOUNDS, _BOUNDS, strict=True))
        fields += _BOUNDS
    sides: tuple[_Side, ...] = (left, right)
    for side in sides:
        for column in side.columns:
            made = column
            if side is right:
                while made in taken:
                    made = f"{right.alias}_{made}"
                taken.add(made)
            names[side.alias][column] = made
            fields.append(f'"{side.alias}"."{column}" AS "{made}"')
    return fields, names
