"""SQL dialect: expressions and queries as penstock reads them, with windows as functions of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import sqlglot
from sqlglot import exp, tokens
from sqlglot.tokenizer_core import Token, TokenType

from penstock.errors import ExpressionError
from penstock.expressions.sql_text import ExpressionDialect, SqlText

__all__ = ["WINDOW_FUNCTIONS", "parse_expression", "parse_query", "read_tokens"]

WINDOW_FUNCTIONS: Final = ("TUMBLE", "HOP", "CUMULATE", "SESSION")


class QueryDialect(ExpressionDialect):
    """Standard SQL with the functions of tables that assign windows: `TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), ...))`."""

    class Tokenizer(ExpressionDialect.Tokenizer):  # the name is sqlglot's
        # A comment before SELECT could otherwise change how a query is parsed.
        KEYWORDS: ClassVar[dict[str, Any]] = {
            word: kind for word, kind in tokens.Tokenizer.KEYWORDS.items() if not word.startswith("/*+")
        }
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(ExpressionDialect.Parser):  # as above
        def _parse_table(self, *args: Any, **kwargs: Any) -> Any:
            wrapped = self._curr.token_type == TokenType.TABLE and self._next.token_type == TokenType.L_PAREN
            if wrapped:
                self._advance(2)
            is_window = self._curr.text.upper() in WINDOW_FUNCTIONS and (
                self._next.token_type == TokenType.L_PAREN
            )
            if not is_window and not wrapped:
                return super()._parse_table(*args, **kwargs)
            if not is_window:
                self.raise_error(f"TABLE(...) takes one of {', '.join(WINDOW_FUNCTIONS)}")
            found = self._window_function()
            if wrapped:
                self._match_r_paren()
            return self.expression(exp.Table(this=found, alias=self._parse_table_alias()))

        def _window_function(self) -> exp.Expression:
            name = self._curr
            self._advance(2)
            given = self._parse_csv(self._window_argument)
            self._match_r_paren()
            found = exp.Anonymous(this=name.text.upper(), expressions=given)
            found.update_positions(name)
            return found

        def _window_argument(self) -> Any:
            if self._curr.token_type == TokenType.TABLE:
                self._advance()
                table: Any = self._parse_table_parts()
                if self._match(TokenType.PARTITION_BY):
                    # The keys of sessions, after the table as in Flink.
                    keys = [self._parse_column()]
                    while self._curr.text == "," and self._next.text.upper() != "DESCRIPTOR":
                        self._advance()
                        keys.append(self._parse_column())
                    table = self.expression(exp.Tuple(expressions=[table, *keys]))
                return table
            if self._curr.token_type == TokenType.L_PAREN:
                return self._parse_select(table=True)
            return self._parse_disjunction()


def read_tokens(text: SqlText) -> list[Token]:
    """Return the tokens of a text. Raises ExpressionError where there is none."""
    prepared = text.prepared()
    try:
        return list(QueryDialect().tokenize(prepared))
    except sqlglot.errors.SqlglotError:
        raise text.error(0, "The text cannot be read as SQL.") from None


def parse_query(text: SqlText, found: Sequence[Token]) -> exp.Expression:
    """Return the query that tokens of a text form. Raises ExpressionError if they form none."""
    return _parse(text, found, "a query")


def parse_expression(text: SqlText, found: Sequence[Token]) -> exp.Expression:
    """Return the expression that tokens of a text form. Raises ExpressionError if they form none."""
    return _parse(text, found, "an expression")


def _parse(text: SqlText, found: Sequence[Token], what: str) -> exp.Expression:
    at = found[0].start if found else len(text.text)
    parser = QueryDialect().parser(error_level=sqlglot.ErrorLevel.IMMEDIATE)
    try:
        parsed = parser.parse(list(found), text.text)
    except sqlglot.ParseError as e:
        raise text.syntax_error(e.errors) from None
    except RecursionError:
        raise text.error(at, "This is nested too deeply; split it.") from None
    except ExpressionError:
        raise
    except Exception:  # a malformed text makes the parser raise anything
        raise text.error(at, f"This cannot be read as {what}.") from None
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Expression):
        raise text.error(at, f"This cannot be read as {what}.")
    return parsed[0]
