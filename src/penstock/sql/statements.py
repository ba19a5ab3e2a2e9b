"""Statements: reads the statements of a SQL file, each with its position."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from penstock.expressions.sql_text import SqlText
from penstock.sql.sql_dialect import parse_expression, parse_query, read_tokens

__all__ = [
    "CreateFunction",
    "CreateStream",
    "CreateTable",
    "CreateView",
    "Explain",
    "InsertInto",
    "NamedColumn",
    "SelectResult",
    "SetParameter",
    "Statement",
    "read_statements",
]

MAX_FILE_LENGTH: Final = 200_000
MAX_STATEMENTS: Final = 500

_UNITS: Final = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
}


@dataclass(frozen=True)
class NamedColumn:
    """A column as declared: its name and its type as in DDL."""

    name: str
    type: str
    at: int


@dataclass(frozen=True)
class Property:
    """A property in WITH (...)."""

    name: str
    value: str
    at: int


@dataclass(frozen=True)
class Statement:
    """A statement, and where it begins."""

    at: int


@dataclass(frozen=True)
class CreateStream(Statement):
    """CREATE STREAM: columns, the event time with the bound of its watermark, and properties."""

    name: str
    columns: tuple[NamedColumn, ...]
    time: str | None
    bound: dt.timedelta | None
    properties: tuple[Property, ...]


@dataclass(frozen=True)
class CreateTable(Statement):
    """CREATE TABLE: columns, which may be left out, its key, and properties."""

    name: str
    columns: tuple[NamedColumn, ...]
    key: tuple[str, ...]
    properties: tuple[Property, ...]


@dataclass(frozen=True)
class CreateView(Statement):
    """CREATE VIEW name AS query."""

    name: str
    query: exp.Expression


@dataclass(frozen=True)
class CreateFunction(Statement):
    """CREATE FUNCTION name AS 'module:object'."""

    name: str
    place: str
    place_at: int


@dataclass(frozen=True)
class SetParameter(Statement):
    """SET 'name' = value."""

    name: str
    value: exp.Expression


@dataclass(frozen=True)
class InsertInto(Statement):
    """INSERT INTO name [(columns)] query."""

    name: str
    columns: tuple[str, ...]
    query: exp.Expression


@dataclass(frozen=True)
class SelectResult(Statement):
    """A query on its own."""

    query: exp.Expression


@dataclass(frozen=True)
class Explain(Statement):
    """EXPLAIN of a query or of an INSERT INTO."""

    of: InsertInto | SelectResult


@dataclass
class _Cursor:
    """The tokens of one statement, read from left to right."""

    text: SqlText
    tokens: list[Token]
    place: int = field(default=0)

    @property
    def at(self) -> int:
        """Where the next token begins; at the end, where the last one ends."""
        if self.place < len(self.tokens):
            return int(self.tokens[self.place].start)
        return int(self.tokens[-1].end) + 1

    def peek(self, ahead: int = 0) -> str:
        """Return a token as a word; empty at the end, and for texts."""
        place = self.place + ahead
        if place >= len(self.tokens) or self.tokens[place].token_type == TokenType.STRING:
            return ""
        return str(self.tokens[place].text).upper()

    def next(self, what: str) -> Token:
        """Return the next token. Raises ExpressionError at the end."""
        if self.place >= len(self.tokens):
            raise self.text.error(self.at, f"The statement ends here, but {what} must follow.")
        self.place += 1
        return self.tokens[self.place - 1]

    def take(self, *words: str) -> bool:
        """Read some words if they are next, and return whether they were."""
        found = self._split(len(words))
        if found != list(words):
            return False
        self.place += self._width(len(words))
        return True

    def _width(self, count: int) -> int:
        """Return how many tokens some words take, since the tokenizer joins a few, such as PRIMARY KEY."""
        words = width = 0
        while words < count and self.place + width < len(self.tokens):
            words += len(self.peek(width).split())
            width += 1
        return width

    def _split(self, count: int) -> list[str]:
        return [word for n in range(self._width(count)) for word in self.peek(n).split()]

    def want(self, *words: str) -> None:
        """Read some words. Raises ExpressionError if others are next."""
        if not self.take(*words):
            raise self.text.error(self.at, f"{' '.join(words)} must follow here.")

    def name(self, what: str) -> str:
        """Read a name."""
        at = self.at
        token = self.next(what)
        name = str(token.text)
        if token.token_type == TokenType.STRING or not name.isidentifier() or name.startswith("__"):
            raise self.text.error(at, f"{name!r} is not {what}, which is as a name in Python.")
        return name

    def string(self, what: str) -> str:
        """Read a text in single quotes."""
        at = self.at
        token = self.next(what)
        if token.token_type != TokenType.STRING:
            raise self.text.error(at, f"{what} in single quotes must follow here.")
        return str(token.text)

    def rest(self) -> list[Token]:
        """Read all that is left."""
        found, self.place = self.tokens[self.place :], len(self.tokens)
        return found

    def end(self) -> None:
        """Raise ExpressionError unless the statement ends."""
        if self.place < len(self.tokens):
            raise self.text.error(self.at, f"The statement must end before {self.tokens[self.place].text!r}.")


def read_statements(text: SqlText) -> list[Statement]:
    """Return the statements of a text. Raises ExpressionError, with the position, for text that cannot be read."""
    if len(text.text) > MAX_FILE_LENGTH:
        raise text.error(MAX_FILE_LENGTH, f"The text is longer than {MAX_FILE_LENGTH} characters; split it.")
    chunks: list[list[Token]] = [[]]
    for token in read_tokens(text):
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    found = [chunk for chunk in chunks if chunk]
    if not found:
        raise text.error(0, "There is no statement.")
    if len(found) > MAX_STATEMENTS:
        raise text.error(
            int(found[MAX_STATEMENTS][0].start),
            f"There are more than {MAX_STATEMENTS} statements; split them.",
        )
    return [_statement(_Cursor(text, chunk)) for chunk in found]


def _statement(cursor: _Cursor) -> Statement:
    at = cursor.at
    if cursor.take("CREATE"):
        return _create(cursor, at)
    if cursor.take("SET"):
        return _set(cursor, at)
    if cursor.take("EXPLAIN"):
        cursor.take("PLAN", "FOR")
        return Explain(at, _query_or_insert(cursor))
    if cursor.peek() in ("INSERT", "SELECT", "WITH", "("):
        return _query_or_insert(cursor)
    raise cursor.text.error(
        at,
        f"{cursor.tokens[0].text!r} begins no statement of a SQL job; these do: CREATE STREAM, CREATE TABLE, CREATE "
        "VIEW, CREATE FUNCTION, SET, INSERT INTO, SELECT, WITH and EXPLAIN.",
    )


def _query_or_insert(cursor: _Cursor) -> InsertInto | SelectResult:
    at = cursor.at
    if not cursor.take("INSERT"):
        return SelectResult(at, parse_query(cursor.text, cursor.rest()))
    cursor.want("INTO")
    name = cursor.name("the name of a sink")
    columns: list[str] = []
    if cursor.peek() == "(" and cursor.peek(1) not in ("SELECT", "WITH", "("):
        cursor.want("(")
        columns.append(cursor.name("a column"))
        while cursor.take(","):
            columns.append(cursor.name("a column"))
        cursor.want(")")
    if not cursor.peek():
        cursor.next("a query")
    return InsertInto(at, name, tuple(columns), parse_query(cursor.text, cursor.rest()))


def _create(cursor: _Cursor, at: int) -> Statement:
    cursor.take("TEMPORARY")
    if cursor.take("STREAM"):
        return _create_stream(cursor, at)
    if cursor.take("TABLE"):
        return _create_table(cursor, at)
    if cursor.take("VIEW"):
        name = cursor.name("the name of a view")
        cursor.want("AS")
        if not cursor.peek():
            cursor.next("a query")
        return CreateView(at, name, parse_query(cursor.text, cursor.rest()))
    if cursor.take("FUNCTION"):
        name = cursor.name("the name of a function")
        cursor.want("AS")
        place_at = cursor.at
        place = cursor.string("The place of a function, 'module:object',")
        cursor.end()
        return CreateFunction(at, name, place, place_at)
    raise cursor.text.error(cursor.at, "CREATE is followed by STREAM, TABLE, VIEW or FUNCTION.")


def _create_stream(cursor: _Cursor, at: int) -> CreateStream:
    name = cursor.name("the name of a stream")
    columns: list[NamedColumn] = []
    time: tuple[str, dt.timedelta] | None = None
    cursor.want("(")
    while True:
        if cursor.peek() == "WATERMARK" and cursor.peek(1) == "FOR":
            if time is not None:
                raise cursor.text.error(cursor.at, "A stream has one watermark.")
            time = _watermark(cursor, columns)
        elif cursor.peek() in ("PRIMARY", "PRIMARY KEY", "CONSTRAINT"):
            raise cursor.text.error(cursor.at, "A stream has no key; CREATE TABLE does.")
        else:
            columns.append(_column(cursor, columns))
        if not cursor.take(","):
            break
    cursor.want(")")
    if not columns:
        raise cursor.text.error(at, f"The stream {name!r} has no columns.")
    properties = _properties(cursor)
    cursor.end()
    field_name, bound = time if time is not None else (None, None)
    return CreateStream(at, name, tuple(columns), field_name, bound, properties)


def _create_table(cursor: _Cursor, at: int) -> CreateTable:
    name = cursor.name("the name of a table")
    columns: list[NamedColumn] = []
    key: tuple[str, ...] = ()
    if cursor.take("("):
        while True:
            if cursor.peek() == "WATERMARK" and cursor.peek(1) == "FOR":
                raise cursor.text.error(cursor.at, "A table has no watermark; CREATE STREAM does.")
            if cursor.take("PRIMARY", "KEY"):
                key = _key(cursor, columns, key)
            else:
                columns.append(_column(cursor, columns))
            if not cursor.take(","):
                break
        cursor.want(")")
    properties = _properties(cursor)
    cursor.end()
    return CreateTable(at, name, tuple(columns), key, properties)


def _key(cursor: _Cursor, columns: list[NamedColumn], before: tuple[str, ...]) -> tuple[str, ...]:
    if before:
        raise cursor.text.error(cursor.at, "A table has one primary key.")
    cursor.want("(")
    found = [_known(cursor, columns)]
    while cursor.take(","):
        found.append(_known(cursor, columns))
    cursor.want(")")
    cursor.take("NOT", "ENFORCED")
    return tuple(found)


def _known(cursor: _Cursor, columns: list[NamedColumn]) -> str:
    at = cursor.at
    name = cursor.name("a column")
    if name not in [column.name for column in columns]:
        raise cursor.text.error(at, f"There is no column {name!r} before this.")
    return name


def _column(cursor: _Cursor, before: list[NamedColumn]) -> NamedColumn:
    at = cursor.at
    name = cursor.name("a column")
    if name in [column.name for column in before]:
        raise cursor.text.error(at, f"There are two columns {name!r}; rename one.")
    words: list[str] = []
    first, depth = cursor.at, 0
    while cursor.place < len(cursor.tokens):
        word = str(cursor.tokens[cursor.place].text)
        if depth == 0 and word in (",", ")"):
            break
        depth += sum(map(word.count, "(<")) - sum(map(word.count, ")>"))
        words.append(word)
        cursor.place += 1
    if not words:
        raise cursor.text.error(first, f"The type of the column {name!r} must follow here.")
    return NamedColumn(name, " ".join(words), first)


def _watermark(cursor: _Cursor, columns: list[NamedColumn]) -> tuple[str, dt.timedelta]:
    cursor.want("WATERMARK")
    cursor.want("FOR")
    name = _known(cursor, columns)
    cursor.want("AS")
    at = cursor.at
    if cursor.name("a column") != name:
        raise cursor.text.error(at, f"The watermark for {name!r} is {name}, or {name} - INTERVAL '5' SECOND.")
    if not cursor.take("-"):
        return name, dt.timedelta(0)
    cursor.want("INTERVAL")
    at = cursor.at
    amount = cursor.string("The length of an interval")
    unit = str(cursor.next("the unit of the interval").text).upper().removesuffix("S")
    if not amount.isdecimal() or unit not in _UNITS or len(amount) > 12:
        raise cursor.text.error(
            at, f"An interval is written as INTERVAL '5' SECOND: an integer, and one of {', '.join(_UNITS)}."
        )
    try:
        return name, dt.timedelta(milliseconds=int(amount) * _UNITS[unit])
    except OverflowError:
        raise cursor.text.error(at, "The interval is too long.") from None


def _properties(cursor: _Cursor) -> tuple[Property, ...]:
    if not cursor.take("WITH"):
        return ()
    cursor.want("(")
    found: list[Property] = []
    while True:
        at = cursor.at
        name = cursor.string("The name of a property")
        if name in [one.name for one in found]:
            raise cursor.text.error(at, f"The property {name!r} is given twice.")
        cursor.want("=")
        found.append(Property(name, cursor.string(f"The value of {name!r}"), at))
        if not cursor.take(","):
            break
    cursor.want(")")
    return tuple(found)


def _set(cursor: _Cursor, at: int) -> SetParameter:
    name_at = cursor.at
    token = cursor.next("the name of a parameter")
    name = str(token.text)
    if not name.isidentifier() or name.startswith("_"):
        raise cursor.text.error(name_at, f"{name!r} is not the name of a parameter.")
    cursor.want("=")
    if not cursor.tokens[cursor.place :]:
        cursor.next("a value")
    return SetParameter(at, name, parse_expression(cursor.text, cursor.rest()))
