"""Columns: expressions as Python objects, `col("celsius") > 30`, which stand for their SQL text."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterable
from typing import Any, Final

from penstock.errors import ExpressionError

__all__ = ["Column", "call", "col", "lit", "param", "sql_of"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class Column:
    """An expression on the fields of a record, as an object: `ps.col("celsius") * 1.8 + 32`.

    Operators mean what they mean in SQL: a comparison with null is null, and `&`, `|` and `~` are AND, OR and NOT.
    `sql` is the text that it stands for.
    """

    __slots__ = ("sql",)

    def __init__(self, sql: str) -> None:
        self.sql: Final = sql

    def __repr__(self) -> str:
        return f"Column({self.sql})"

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"The expression {self.sql} has no truth value before records come. Join conditions with & and |, negate "
            "with ~, and set each in parentheses."
        )

    __hash__ = None  # type: ignore[assignment]  # == is an expression

    def _with(self, sign: str, other: Any) -> Column:
        return Column(f"({self.sql} {sign} {sql_of(other)})")

    def _after(self, sign: str, other: Any) -> Column:
        return Column(f"({sql_of(other)} {sign} {self.sql})")

    def __add__(self, other: Any) -> Column:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Column:
        return self._after("+", other)

    def __sub__(self, other: Any) -> Column:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Column:
        return self._after("-", other)

    def __mul__(self, other: Any) -> Column:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Column:
        return self._after("*", other)

    def __truediv__(self, other: Any) -> Column:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Column:
        return self._after("/", other)

    def __mod__(self, other: Any) -> Column:
        return self._with("%", other)

    def __rmod__(self, other: Any) -> Column:
        return self._after("%", other)

    def __neg__(self) -> Column:
        return Column(f"(- {self.sql})")

    def __eq__(self, other: object) -> Column:  # type: ignore[override]  # an expression, as with other columns
        return self._with("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]  # as above
        return self._with("<>", other)

    def __lt__(self, other: Any) -> Column:
        return self._with("<", other)

    def __le__(self, other: Any) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Column:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Column:
        return self._with(">=", other)

    def __and__(self, other: Any) -> Column:
        return self._with("AND", other)

    def __or__(self, other: Any) -> Column:
        return self._with("OR", other)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __getitem__(self, key: int | str) -> Column:
        return Column(f"{self.sql}[{sql_of(key)}]")

    def is_in(self, values: Iterable[Any]) -> Column:
        """Return whether the value is one of some values."""
        return Column(f"({self.sql} IN ({', '.join(map(sql_of, values))}))")

    def between(self, low: Any, high: Any) -> Column:
        """Return whether the value lies between two values, both included."""
        return Column(f"({self.sql} BETWEEN {sql_of(low)} AND {sql_of(high)})")

    def is_null(self) -> Column:
        """Return whether the value is null."""
        return Column(f"({self.sql} IS NULL)")

    def is_not_null(self) -> Column:
        """Return whether there is a value."""
        return Column(f"({self.sql} IS NOT NULL)")

    def like(self, pattern: str) -> Column:
        """Return whether a text matches a pattern, in which `%` is any text and `_` any character."""
        return Column(f"({self.sql} LIKE {sql_of(pattern)})")

    def cast(self, kind: str) -> Column:
        """Return the value as another type, named as in a schema: `cast("DECIMAL(10, 2)")`."""
        return Column(f"CAST({self.sql} AS {kind})")

    def alias(self, name: str) -> Column:
        """Name the field that `select` makes of the expression."""
        return Column(f"{self.sql} AS {_quote(name)}")


def col(name: str) -> Column:
    """Return a field of the record as an expression, for `where` and `select`. Dots lead into a STRUCT.

    >>> col("celsius") * 1.8 + 32 > 100
    Column((((celsius * 1.8) + 32) > 100))
    """
    return Column(".".join(_quote(part) for part in name.split(".")))


def lit(value: Any) -> Column:
    """Return a value as an expression: None, or a bool, int, float, str, bytes, Decimal, date, datetime or timedelta.

    Raises ExpressionError for other values.

    >>> lit("it's")
    Column('it''s')
    """
    return Column(sql_of(value))


def param(name: str) -> Column:
    """Return a parameter as an expression, like `${name}` in SQL text: a setting that commands change.

    >>> col("amount") > param("limit")
    Column((amount > ${limit}))
    """
    return Column(f"${{{name}}}")


def call(function: str, *arguments: Any) -> Column:
    """Return a call of a function of docs/tables.md.

    >>> call("upper", col("room"))
    Column(upper(room))
    """
    return Column(f"{function}({', '.join(map(sql_of, arguments))})")


def _quote(name: str) -> str:
    return name if _NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def sql_of(value: Any) -> str:
    """Return the SQL text of a value or an expression. Raises ExpressionError when there is none."""
    if isinstance(value, Column):
        return value.sql
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float) and value == value and abs(value) != float("inf"):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        text = f"{value:f}"
        digits = text.lstrip("-").replace(".", "").lstrip("0")
        scale = len(text.partition(".")[2])
        return f"CAST('{text}' AS DECIMAL({max(len(digits), scale, 1)}, {scale}))"
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return f"TIMESTAMP '{moment.isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, dt.timedelta):
        return f"INTERVAL '{value // dt.timedelta(microseconds=1)}' MICROSECOND"
    raise ExpressionError(
        f"{value!r} cannot stand in an expression. Use None, or a bool, int, float, str, Decimal, date, datetime or "
        "timedelta."
    )
