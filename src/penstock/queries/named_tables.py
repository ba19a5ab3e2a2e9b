"""Named tables: the tables that a query can name, those that it names, and its views over the loaded ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import QueryError
from penstock.queries.locked_engine import quote

__all__ = ["StepColumns", "Wanted", "explain_names", "find_wanted", "select"]

_SCHEMA: Final = "state"
_KEY: Final = "key"


@dataclass(frozen=True)
class StepColumns:
    """The columns of a step in a query: those of its key, then its states. All have different names, in any case.

    A key of one field has the name of the field, and a computed one the name `key`. A state with the name of a column
    of the key gets `_state` added, once more if the step has another state of that name.
    """

    key_type: pa.DataType
    key_name: str
    states: tuple[str, ...]

    def key_columns(self) -> dict[str, str]:
        """Return the columns of the key: their names, with their SQL over the column `key`."""
        if not pa.types.is_struct(self.key_type):
            return {self.key_name: _KEY}
        return {field.name: f"{_KEY}.{quote(field.name)}" for field in self.key_type}

    def state_columns(self) -> dict[str, str]:
        """Return the states, with the names of their columns."""
        keys = {name.lower() for name in self.key_columns()}
        taken = keys | {state.lower() for state in self.states}
        shown = {}
        for state in self.states:
            name = state
            while name.lower() in (taken if name != state else keys):
                name += "_state"
            taken.add(name.lower())
            shown[state] = name
        return shown


@dataclass(frozen=True)
class Wanted:
    """The names in a query: relations, and columns in lower case; all columns if `columns` is None."""

    relations: tuple[str, ...]
    columns: frozenset[str] | None

    def wants(self, column: str) -> bool:
        """Return whether the query may use a column of this name."""
        return self.columns is None or column.lower() in self.columns


def find_wanted(query: str, known: Collection[str]) -> Wanted:
    """Return the names in a query, so that nothing else is read; everything if the query cannot be parsed."""
    # Imported late, since describing a job needs no parser.
    import sqlglot
    from sqlglot import exp

    # It warns of statements that it does not know; DuckDB decides on them.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [one for one in sqlglot.parse(query, dialect="duckdb") if one is not None]
        # Names without quotes count in any case.
        tables = {table.name.lower() for one in statements for table in one.find_all(exp.Table)}
        names = {name.name.lower() for one in statements for name in one.find_all(exp.Identifier)}
        whole = any(_names_all(one) for one in statements)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return Wanted(tuple(known), None)
    found = tuple(name for name in known if name.lower() in tables)
    return Wanted(found, None if whole or "#" in query else frozenset(names))


def _names_all(statement: object) -> bool:
    """Return whether a statement may use columns that it does not name, such as by a star or as a whole row."""
    from sqlglot import exp

    if not isinstance(statement, exp.Query):
        return True
    kinds = (exp.Star, exp.Columns, exp.Pivot)
    if any(not isinstance(found.parent, exp.Count) for found in statement.find_all(*kinds)):
        return True
    if any(join.method for join in statement.find_all(exp.Join)):
        return True
    aliases = list(statement.find_all(exp.TableAlias))
    if any(alias.args.get("columns") for alias in aliases):
        return True
    rows = {alias.name.lower() for alias in aliases}
    rows |= {table.name.lower() for table in statement.find_all(exp.Table)}
    return any(column.name.lower() in rows for column in statement.find_all(exp.Column))


def explain_names(error: QueryError, steps: Iterable[str], single: Sequence[str]) -> QueryError:
    """Return an error about an unknown name with the names that a query can use; any other error as it is."""
    if "does not exist" not in str(error) and "not found" not in str(error):
        return error
    named = ", ".join(map(_format_name, steps)) or "none"
    return QueryError(
        f"{error}\nSteps with keys are {named}. Each table has its own name, such as "
        f"{_format_name(single[0]) if single else 'none'}."
    )


def _format_name(name: str) -> str:
    return f"{_SCHEMA}.{name if name.isidentifier() else quote(name)}"


def select(columns: Mapping[str, str], source: str) -> str:
    """Return the SQL that selects columns: expressions by their names."""
    listed = ", ".join(f"{expression} AS {quote(name)}" for name, expression in columns.items())
    return f"SELECT {listed} FROM {source}"  # noqa: S608  # names are quoted
