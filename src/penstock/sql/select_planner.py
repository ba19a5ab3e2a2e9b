"""Select planner: maps a query to streams and steps, from its FROM to its SELECT."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from penstock.sql.fitted_columns import common_columns, fit_columns
from penstock.sql.grouping import Grouping, has_aggregates
from penstock.sql.join_planner import is_now, plan_join
from penstock.sql.over_planner import OverRows, has_over
from penstock.sql.ranked_rows import find_ranking, is_rank, limit_rows
from penstock.sql.relations import Expressions, LookedUp, Relation, column_named, unqualify
from penstock.sql.sql_dialect import WINDOW_FUNCTIONS
from penstock.sql.unnested_rows import unnest
from penstock.sql.window_tables import apply_window
from penstock.streams.lookup_table import LookupTable

__all__ = ["Query", "SelectPlanner"]

MAX_DEPTH: Final = 40

_READ: Final = frozenset(("expressions", "from_", "joins", "where", "group", "having", "with_", "kind"))
_WORDS: Final = {
    "laterals": "LATERAL",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "distinct": "SELECT DISTINCT",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "into": "SELECT INTO",
    "pivots": "PIVOT",
    "match": "MATCH_RECOGNIZE",
    "sample": "TABLESAMPLE",
    "locks": "FOR UPDATE",
    "hint": "A hint",
    "operation_modifiers": "A modifier of SELECT",
}

Named = Callable[[], Relation]
Outside = Callable[[], LookupTable]


@dataclass(frozen=True)
class Query:
    """A query to plan: the name that its steps begin with, what FROM may name, and names for unnamed columns."""

    part: exp.Expression
    base: str
    tables: dict[str, Named]
    names: tuple[str, ...] | None = None
    depth: int = 0

    def inner(self, part: exp.Expression, base: str, tables: dict[str, Named] | None = None) -> Query:
        """Return a query inside of this one."""
        return Query(part, base, self.tables if tables is None else tables, None, self.depth + 1)


class SelectPlanner:
    """Plans the queries of one text. `outside` are the tables outside the job that a query may look records up in."""

    def __init__(self, own: Expressions, outside: Mapping[str, Outside]) -> None:
        self._own: Final = own
        self._outside: Final = outside

    def plan(self, query: Query) -> Relation:
        """Return the relation of a query's results. Raises ExpressionError at an error or an unsupported part."""
        part = query.part
        if query.depth > MAX_DEPTH:
            raise self._own.error(part, f"Queries are nested more than {MAX_DEPTH} levels deep; use views.")
        if isinstance(part, exp.Subquery) and part.this is not None:
            self._check(part, frozenset(("this", "alias", "with_")))
            return self.plan(dataclasses.replace(query, part=part.this, depth=query.depth + 1))
        if not isinstance(part, exp.Select | exp.Union):
            raise self._own.error(part, f"{_word_of(part)} is not supported; write SELECT, or UNION ALL.")
        query = dataclasses.replace(query, tables=self._with_ctes(query))
        if isinstance(part, exp.Union):
            return self._union(query, part)
        return self._select(query, part)

    def plan_all(self, query: Query) -> Relation:
        """Return the relation of a query without a limit on ranked rows."""
        found = self.plan(query)
        if found.ranked is not None:
            raise self._own.error(
                found.ranked.part,
                f"ROW_NUMBER() must be limited by a query around this one: WHERE {found.ranked.column} <= 3.",
            )
        return found

    def _check(self, part: exp.Expression, known: frozenset[str]) -> None:
        """Raise ExpressionError if a part has a clause that is not read here."""
        for name, value in part.args.items():
            if value and name not in known:
                inside = value[0] if isinstance(value, list) else value
                at = inside if isinstance(inside, exp.Expression) else part
                word = _WORDS.get(name) or name.strip("_").upper().replace("_", " ")
                raise self._own.error(at, f"{word} is not supported here.")

    def _with_ctes(self, query: Query) -> dict[str, Named]:
        clause = query.part.args.get("with_")
        if clause is None:
            return query.tables
        if clause.args.get("recursive"):
            raise self._own.error(clause, "WITH RECURSIVE is not supported.")
        tables = dict(query.tables)
        for cte in clause.expressions:
            self._check(cte, frozenset(("this", "alias")))
            name = self._alias_of(cte)
            if name in query.tables:
                raise self._own.error(cte, f"There is a table {name!r} already; rename this query.")
            tables[name] = self._once(query.inner(cte.this, f"{query.base}.{name}", dict(tables)))
        return tables

    def _once(self, query: Query) -> Named:
        """Return a function that plans a query when it is first read."""
        found: list[Relation] = []

        def relation() -> Relation:
            if not found:
                found.append(self.plan(query))
            return found[0]

        return relation

    def _alias_of(self, part: exp.Expression) -> str:
        alias = part.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise self._own.error(alias.args["columns"][0], "Name columns in the query itself, with AS.")
        return str(part.alias)

    # -- UNION ALL --

    def _union(self, query: Query, part: exp.Union) -> Relation:
        branches = self._branches(part)
        found: list[Relation] = []
        for number, branch in enumerate(branches, 1):
            names = query.names if not found else found[0].columns
            inner = query.inner(branch, f"{query.base}.{number}")
            found.append(self.plan_all(dataclasses.replace(inner, names=names)))
        wanted = common_columns(found, branches, self._own)
        for number, (relation, branch) in enumerate(zip(found, branches, strict=True)):
            is_again = any(relation.stream.port == other.stream.port for other in found[:number])
            found[number] = fit_columns(
                relation, wanted, branch, self._own, f"{query.base}.{number + 1}.fitted", always=is_again
            )
        with self._own.errors_at(branches[1]):
            first, *others = [relation.stream for relation in found]
            stream = first.union(*others, name=self._own.unique(query.base))
        times = frozenset.intersection(*(relation.times for relation in found))
        return Relation(stream, query.base, times)

    def _branches(self, part: exp.Union) -> list[exp.Expression]:
        """Return the queries of a UNION ALL in order, without recursion."""
        found: list[exp.Expression] = []
        waiting: list[exp.Expression] = [part]
        while waiting:
            one = waiting.pop()
            if isinstance(one, exp.Union) and (one is part or "with_" not in one.args):
                if type(one) is not exp.Union or one.args.get("distinct"):
                    word = "UNION" if type(one) is exp.Union else _word_of(one)
                    raise self._own.error(one.expression, f"{word} is not supported; UNION ALL is.")
                self._check(one, frozenset(("this", "expression", "with_", "distinct")))
                waiting += [one.expression, one.this]
            else:
                found.append(one)
        return found

    # -- SELECT --

    def _select(self, query: Query, part: exp.Select) -> Relation:
        own = self._own
        self._check(part, _READ)
        if part.args.get("kind"):
            raise own.error(part, f"SELECT AS {part.args['kind']} is not supported.")
        source = part.args.get("from_")
        if source is None:
            raise own.error(part, "The query must read a table: SELECT ... FROM name.")
        relation = self._from(query, source.this)
        for join in part.args.get("joins") or ():
            if isinstance(join.this, exp.Unnest):
                relation = unnest(relation, join, own, query.base)
            else:
                relation = plan_join(
                    relation, join, functools.partial(self._joined_table, query), own, query.base
                )
        where = part.args.get("where")
        condition = None if where is None else unqualify(where.this, relation, own)
        if condition is not None and has_aggregates([condition], own):
            raise own.error(condition, "WHERE takes no aggregates; HAVING does.")
        if relation.ranked is not None:
            keeps_rank = relation.ranked.column in _names_in(part.expressions, relation)
            relation, condition = limit_rows(relation, condition, keeps_rank, own, query.base)
        if condition is not None:
            stream = own.where(relation.stream, condition, f"{query.base}.where")
            relation = dataclasses.replace(relation, stream=stream)
        items = self._items(query, part.expressions, relation)
        ranks = [(name, one) for name, one in items if is_rank(one)]
        if ranks:
            return self._ranked(query, part, relation, items)
        group, having = part.args.get("group"), part.args.get("having")
        if group is not None or having is not None or has_aggregates([p for _, p in items], own):
            return self._grouped(query, part, relation, items)
        if relation.window is not None:
            raise own.error(
                relation.window.at, "Windows must be grouped by: GROUP BY ..., window_start, window_end."
            )
        if has_over([one for _, one in items]):
            over = OverRows(relation, own, query.base)
            made = [(name, over.replaced(one)) for name, one in items]
            return self._selected(query, over.described(), made)
        plain = [(name, unqualify(one, relation, own)) for name, one in items]
        return self._selected(query, relation, plain)

    def _ranked(
        self, query: Query, part: exp.Select, relation: Relation, items: list[tuple[str, exp.Expression]]
    ) -> Relation:
        """Return rows with ROW_NUMBER(), which the query around this one limits."""
        own = self._own
        ranks = [(name, one) for name, one in items if isinstance(one, exp.Window)]
        if (
            len(ranks) != 1
            or part.args.get("group")
            or part.args.get("having")
            or relation.window is not None
        ):
            raise own.error(ranks[0][1], "A query has one ROW_NUMBER(), and no groups or windows beside it.")
        ((name, rank),) = ranks
        ranked = find_ranking(name, rank, relation, own)
        plain = [(n, unqualify(one, relation, own)) for n, one in items if one is not rank]
        kept = {one.name: n for n, one in plain if isinstance(one, exp.Column) and not one.table}
        for column in (*ranked.groups, *ranked.orders):
            if column not in kept:
                raise own.error(rank, f"The query must also select {column!r}, by which its rows are ranked.")
        selected = self._selected(query, relation, plain)
        ranked = dataclasses.replace(
            ranked,
            groups=tuple(kept[one] for one in ranked.groups),
            orders=tuple(kept[one] for one in ranked.orders),
        )
        return dataclasses.replace(selected, ranked=ranked)

    def _joined_table(self, query: Query, source: exp.Expression) -> Relation | LookedUp:
        """Return the right side of a join."""
        if not isinstance(source, exp.Table) or not source.args.get("version"):
            return self._from(query, source)
        plain = source.copy()
        plain.set("version", None)
        name = source.name
        if name in query.tables or name not in self._outside:
            return self._from(query, plain)
        self._check(plain, frozenset(("this", "alias")))
        if not is_now(source.args["version"]):
            raise self._own.error(
                source, f"The table {name!r} has its rows of now alone: FOR SYSTEM_TIME AS OF PROCTIME()."
            )
        with self._own.errors_at(source):
            return LookedUp(self._outside[name](), self._alias_of(plain) or name)

    def _from(self, query: Query, source: exp.Expression) -> Relation:
        own = self._own
        if isinstance(source, exp.Subquery):
            self._check(source, frozenset(("this", "alias")))
            alias = self._alias_of(source) or "from"
            inner = self.plan(query.inner(source.this, f"{query.base}.{alias}"))
            return dataclasses.replace(inner, alias=alias)
        if not isinstance(source, exp.Table):
            raise own.error(source, f"{_word_of(source)} is not supported in FROM.")
        self._check(source, frozenset(("this", "alias")))
        if isinstance(source.this, exp.Anonymous):
            if str(source.this.this) not in WINDOW_FUNCTIONS:
                raise own.error(
                    source,
                    f"There is no function {source.this.this} of tables; these are: {', '.join(WINDOW_FUNCTIONS)}.",
                )
            relation = self._window_function(query, source.this)
        else:
            relation = self._named(query, source)
        alias = self._alias_of(source)
        return dataclasses.replace(relation, alias=alias) if alias else relation

    def _named(self, query: Query, source: exp.Expression) -> Relation:
        if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
            raise self._own.error(source, "FROM takes the name of a table, or a query in parentheses.")
        if source.args.get("db") or source.args.get("catalog"):
            raise self._own.error(source, "A table has a plain name, without a dot; no files can be named.")
        name = str(source.this.name)
        if name not in query.tables and name in self._outside:
            raise self._own.error(
                source,
                f"{name!r} is a table outside the job, in which records are looked up: JOIN {name} FOR SYSTEM_TIME AS "
                "OF PROCTIME() ON a.id = b.id.",
            )
        if name not in query.tables:
            raise self._own.error(
                source,
                f"There is no stream or view {name!r} here; there are: {', '.join(query.tables) or 'none'}.",
            )
        return dataclasses.replace(query.tables[name](), alias=name)

    def _window_function(self, query: Query, call: exp.Anonymous) -> Relation:
        own = self._own
        if not call.expressions:
            raise own.error(call, f"{call.this} takes a table first: {call.this}(TABLE t, ...).")
        source, keys = call.expressions[0], None
        if isinstance(source, exp.Tuple):
            source, *keys = source.expressions
        if isinstance(source, exp.Subquery):
            relation = self._from(query, source)
        elif isinstance(source, exp.Table):
            relation = self._named(query, source)
        else:
            raise own.error(source, f"{call.this} takes a table first: {call.this}(TABLE t, ...).")
        return apply_window(call, relation, own, keys)

    def _items(
        self, query: Query, given: Sequence[exp.Expression], relation: Relation
    ) -> list[tuple[str, exp.Expression]]:
        """Return the columns of a selection, each with its name."""
        found: list[tuple[str, exp.Expression]] = []
        for part in given:
            if isinstance(part, exp.Star) or (
                isinstance(part, exp.Column) and isinstance(part.this, exp.Star)
            ):
                self._check_star(part, relation)
                found += self._all_columns(part, relation)
            elif isinstance(part, exp.Alias):
                found.append((part.alias, part.this))
            elif isinstance(part, exp.Column):
                found.append((part.name, part))
            elif query.names is not None and len(found) < len(query.names):
                found.append((query.names[len(found)], part))
            else:
                raise self._own.error(part, "Name this column: write AS and a name after the expression.")
        if not found:
            raise self._own.error(query.part, "The query selects nothing; name columns after SELECT.")
        names = [name for name, _ in found]
        for number, (name, part) in enumerate(found):
            if name in names[:number]:
                raise self._own.error(part, f"There are two columns {name!r}; name one with AS.")
            if not name.isidentifier() or name.startswith("__"):
                raise self._own.error(part, f"{name!r} is not a name of a column, which is as in Python.")
        return found

    def _all_columns(self, part: exp.Expression, relation: Relation) -> list[tuple[str, exp.Expression]]:
        if isinstance(part, exp.Column) and relation.sides:
            of = relation.sides[part.table]
            return [(made, exp.column(name, part.table)) for name, made in of.items()]
        if relation.sides:
            pairs = [(side, name, made) for side, of in relation.sides.items() for name, made in of.items()]
            return [(made, exp.column(name, side)) for side, name, made in pairs]
        return [(name, column_named(name, part)) for name in relation.columns]

    def _check_star(self, part: exp.Expression, relation: Relation) -> None:
        star = part if isinstance(part, exp.Star) else part.this
        if any(star.args.values()):
            raise self._own.error(part, "'*' stands alone, for all columns.")
        if isinstance(part, exp.Column) and part.table not in (relation.sides or (relation.alias,)):
            raise self._own.error(part, f"There is no table {part.table!r} here.")

    def _grouped(
        self, query: Query, part: exp.Select, relation: Relation, items: list[tuple[str, exp.Expression]]
    ) -> Relation:
        own = self._own
        group, having = part.args.get("group"), part.args.get("having")
        grouping = Grouping(relation, own, query.base)
        if group is not None:
            self._check(group, frozenset(("expressions",)))
            grouping.read_keys(group.expressions, items)
        else:
            grouping.read_keys([], items)
        made = [(name, grouping.replaced(one)) for name, one in items]
        condition = None if having is None else grouping.replaced(having.this)
        times = frozenset(
            name for name, one in items if isinstance(one, exp.Column) and one.name == "window_time"
        )
        result = grouping.described()
        if condition is not None:
            stream = own.where(result.stream, condition, f"{query.base}.having")
            result = dataclasses.replace(result, stream=stream)
        return dataclasses.replace(self._selected(query, result, made), times=times)

    def _selected(
        self, query: Query, relation: Relation, items: list[tuple[str, exp.Expression]]
    ) -> Relation:
        """Return the relation of a selection. The step is left out if it would change nothing."""
        own = self._own
        plain = [
            (name, one.name if isinstance(one, exp.Column) and not one.table else "") for name, one in items
        ]
        if [name for name, _ in items] == list(relation.columns) and all(name == of for name, of in plain):
            return dataclasses.replace(relation, window=None)
        time = relation.stream.origin.time
        for (name, of), (_, one) in zip(plain, items, strict=True):
            if name == time and of != name:
                raise own.error(
                    one,
                    f"{name!r} is the name of the event time of these records; name this column otherwise.",
                )
        times = frozenset(name for name, of in plain if of and relation.is_time(of))
        stream = own.select(relation.stream, items, f"{query.base}.select")
        return Relation(stream, query.base, times)


def _names_in(given: Sequence[exp.Expression], relation: Relation) -> set[str]:
    """Return the names of the columns that a selection reads."""
    if any(part.find(exp.Star) for part in given if not part.find(exp.Anonymous)):
        return {*relation.columns, relation.ranked.column}
    return {column.name for part in given for column in part.find_all(exp.Column)}


def _word_of(part: exp.Expression) -> str:
    return type(part).__name__.upper()
